"""Sources of examples, stores of activations, and their names."""

import itertools
import json
import shutil
from pathlib import Path

from hypothesis import strategies as st

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import verification
from llama_lab.activations.folder import open_folder
from llama_lab.activations.reading import ActivationStore
from llama_lab.activations.sources import open_source
from tests.fuzz import hostile

LINES = (
    *b'{} {"text":null} {"text":1} {"text":["a"]} {"text":"\\ud800"} [1,2,null] [true] [-1] [1e9] [NaN] NaN "x'.split(),
    *(b"", b"[9223372036854775808]", b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"[" * 200_000, b"{" * 1_000, b"1" * 5_000),
    *(b'{"text": "' + b"a" * (17 << 20) + b'"}', b"a" * (5 << 20), b'{"text": "a", "text": 2}'),
)
NAMES = (
    "memory://a", "http://127.0.0.1:9/a", "s3://a/b", "gs://a/b", "zip://a::/nowhere.zip", "ftp://127.0.0.1:9/a",
    "hdfs://a/b", "nonsense://a", "file:///nowhere/a.jsonl", "github://a:b@c/d", "data:,a", "sftp://127.0.0.1/a", "::",
    "://", "local://a", "simplecache::memory://a", "reference://a", "~nosuchuser/a", "/", "/etc", "/dev/zero",
    "/dev/null", "/proc/self/mem", "hf:", "hf:a", "hf:a/b:c:d:e", "**/**/**", "[", "manual/", "-.jsonl", "", " ",
    "a\0b", "x" * 5_000, "\ud800.jsonl",
)  # fmt: skip


@st.composite
def sources(draw):
    """(name, content or None, field, limit) of a source."""
    if draw(st.integers(0, 4)) == 0:
        name, *options = (draw(st.sampled_from(choices)) for choices in (NAMES, [None, "text", ""], [None, 3]))
        return name, None, *options
    suffix = draw(st.sampled_from(["jsonl", "jsonl", "txt", "md", "parquet", "odd"]))
    if suffix == "odd":
        return "texts.jsonl", draw(st.sampled_from(hostile.ODD)), None, None
    if suffix == "parquet":
        return "texts.parquet", draw(hostile.damage()), draw(st.sampled_from([None, "text", "none"])), None
    lines = draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=3))
    return f"texts.{suffix}", draw(st.sampled_from([b"\n", b"\r\n", b"", b"\n\n"])).join([b'"a"', *lines]), None, None


def source(example, base: Path, folder: Path) -> str:
    name, content, field, limit = example
    if content is not None:
        if isinstance(content, tuple):
            content = hostile.damaged((base / name).read_bytes(), content)
        hostile.put(folder / name, content)
    opened = open_source(name if content is None else str(folder / name), field, limit)
    count = sum(1 for _ in itertools.islice(opened, 5_000))
    return f"{count} {len(json.dumps(opened.about))} {len(json.dumps(opened.stamp))}"


@st.composite
def stores(draw):
    """(what is done, a file of the store as a number, what becomes of it)."""
    content = draw(st.one_of(hostile.damage(), hostile.damage(), st.sampled_from(hostile.ODD), st.tuples(
        st.just("document"), st.integers(0, 10**6), hostile.values), st.just("deep")))  # fmt: skip
    return draw(st.sampled_from(["verify", "verify", "read"])), draw(st.integers(0, 10**6)), content


def store(example, base: Path, folder: Path) -> str:
    action, number, content = example
    shutil.copytree(base / "store", folder / "store")
    paths = sorted(p for p in (folder / "store").rglob("*") if p.is_file())
    path = paths[number % len(paths)]
    if content == "deep":
        content = "[" * hostile.DEEP
    elif isinstance(content, tuple) and content[0] == "document":
        documents = [p for p in paths if p.suffix == ".json"]
        path = documents[number % len(documents)] if documents else path
        whole = json.loads(path.read_bytes())
        places = list(hostile.places(whole))
        content = json.dumps(hostile.changed(whole, places[content[1] % len(places)], "put", content[2]))
    elif isinstance(content, tuple):
        content = hostile.damaged(path.read_bytes(), content)
    before = path.read_bytes()
    hostile.put(path, content)
    if action == "verify":
        if problems := verification.verify(folder / "store"):
            raise UserError(str(problems[0]))
        same = path.is_file() and path.read_bytes() == before
        return "" if same else f"silently accepted: {path.relative_to(folder / 'store')}"
    opened = ActivationStore.open(folder / "store")
    column = opened["resid_post:0"]
    opened.mean("resid_post:0")
    return f"{column[0 : min(len(opened), 9)].shape} {opened.example(1)['token']}"


def store_name(example, base: Path, folder: Path) -> str:
    open_folder(example)
    verification.verify(example)
    return ""
