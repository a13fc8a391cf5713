"""Sources: the same examples each time, one line for what is none, and memory that does not grow with their length."""

import datetime
import hashlib
import io
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from llama_lab import corpus
from llama_lab.activations import hub, readers, sources
from llama_lab.activations.sources import chunks, open_source
from tests.activations.stores import says
from tests.conftest import python

TEXTS = ["One.", "Zwei — drei 四.", "Five\nsix."]
TOO_LONG = "is too long: an example has at most 4,194,304"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """The library, with a cache of its own and without a network."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
    import datasets

    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))  # it was imported before
    yield datasets
    patch.undo()


def jsonl(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(v) + "\n" for v in values))
    return path


def table(path, group=None, compression="snappy", **columns):
    coded = compression != "none"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path, row_group_size=group, compression=compression, use_dictionary=coded)
    return path


# What is read ---


def test_paragraphs_are_parted_by_blank_lines_of_any_ending(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff\r\nOne.\r\n \t \r\n\nZwei — drei 四.\n\n\n   Five\nsix.  ".encode())
    assert list(open_source(path)) == TEXTS
    # a separator of Unicode ends no line
    (tmp_path / "b.MD").write_text("# A title\n\nA paragraph\u2028of one line.\n")
    assert list(open_source(str(tmp_path / "b.MD"))) == ["# A title", "A paragraph\u2028of one line."]


CHARACTERS = st.characters(exclude_categories=["Cs", "Cc"])


@given(st.lists(st.text(CHARACTERS, min_size=1).map(str.strip).filter(bool), min_size=1))
def test_texts_joined_by_blank_lines_come_back(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    path.write_text("\n\n".join(texts), newline="")
    assert list(open_source(path)) == texts


def test_lines_are_objects_strings_or_ids(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"text": "a", "n": 1}, "b", [3, 4], {"text": [5]}, []])
    path.write_text("\n" + path.read_text() + "  \n")
    assert list(open_source(path)) == ["a", "b", [3, 4], [5], []]
    path = jsonl(tmp_path / "b.jsonl", [{"ids": [1, 2]}, {"ids": "x"}])
    assert list(open_source(path, field="ids")) == [[1, 2], "x"]


@pytest.mark.parametrize("group", [None, 100])
def test_a_column_is_read_in_order_across_batches_and_row_groups(tmp_path, group):
    texts, ids = [f"text {i}" for i in range(333)], [[i, i + 1] for i in range(333)]
    coded, large = pa.array(["x", "y", "x"] * 111).dictionary_encode(), pa.array(texts, pa.large_string())
    arrays = dict(text=texts, ids=pa.array(ids, pa.list_(pa.int32())), coded=coded, large=large)
    path = table(tmp_path / "a.parquet", group, **arrays)
    assert list(open_source(path)) == list(open_source(path, field="large")) == texts
    assert list(open_source(path, field="ids", limit=200)) == ids[:200]
    assert list(open_source(path, field="coded")) == ["x", "y", "x"] * 111


def test_folders_and_globs_are_files_in_order_of_their_names(tmp_path):
    files = {"b": "2", "a": "1", "c/d": "3", ".hidden": "no", ".git/x": "no"}
    for name, value in files.items():
        jsonl(tmp_path / f"{name}.jsonl", [value])
    (tmp_path / "LICENSE").write_text("not a source")
    assert list(open_source(tmp_path)) == ["1", "2", "3"]
    assert open_source(tmp_path).about["files"] == ["a.jsonl", "b.jsonl", "d.jsonl"]
    assert list(open_source(f"{tmp_path}/*.jsonl")) == ["1", "2"]
    assert list(open_source(f"{tmp_path}/**/*.jsonl")) == ["1", "2", "3"]
    assert list(open_source(f"{tmp_path}/.h*")) == ["no"]
    (tmp_path / "README.md").write_text("About these data.")
    with says("files of several kinds: *.jsonl, *.md"):
        open_source(tmp_path)
    assert list(open_source(f"{tmp_path}/[aR]*")) == ["About these data.", "1"]  # asked for
    jsonl(tmp_path / "[1].jsonl", ["the file of this very name"])
    jsonl(tmp_path / "1.jsonl", ["not this"])
    assert list(open_source(tmp_path / "[1].jsonl")) == ["the file of this very name"]


def test_about_knows_the_contents_and_not_the_place(tmp_path):
    one, other = jsonl(tmp_path / "x" / "a.jsonl", TEXTS), jsonl(tmp_path / "y" / "a.jsonl", TEXTS)
    about = open_source(one).about
    digest = hashlib.sha256(one.read_bytes()).hexdigest()
    assert about == open_source(other).about
    assert about == {"kind": "files", "files": ["a.jsonl"], "field": "text", "limit": None, "sha256": digest}
    other.write_bytes(other.read_bytes()[:-2] + b"'\n")  # one byte, in the last line
    for source in (open_source(other), open_source(one, field="t"), open_source(one, limit=2)):
        assert source.about != about
    jsonl(tmp_path / "x" / "b.jsonl", ["more"])
    both = open_source(tmp_path / "x").about
    os.replace(tmp_path / "x" / "a.jsonl", tmp_path / "kept")
    os.replace(tmp_path / "x" / "b.jsonl", tmp_path / "x" / "a.jsonl")
    os.replace(tmp_path / "kept", tmp_path / "x" / "b.jsonl")
    assert both["files"] == ["a.jsonl", "b.jsonl"]
    assert open_source(tmp_path / "x").about["sha256"] != both["sha256"]  # the same files, exchanged
    manual = open_source("manual", limit=5)
    assert list(manual) == list(manual) == corpus.paragraphs()[:5]  # each iteration starts anew
    assert manual.about == {"kind": "manual", "sha256": open_source("manual").about["sha256"], "limit": 5}


def test_chunks_are_fixed_ranges_and_their_digest_is_of_the_examples(tmp_path):
    texts = [f"text {i}" for i in range(10)]
    found = list(chunks(open_source(texts), 4))
    assert [(c.number, c.first, len(c.examples)) for c in found] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    assert [e for c in found for e in c.examples] == texts
    path = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in texts])
    assert [c.sha256 for c in chunks(open_source(path), 4)] == [c.sha256 for c in found]  # whatever carries them
    others = [["12"], [[1, 2]], [[12]], ["1", "2"], ["1\n2"], [["1", "2"]]]
    assert len({sources.Chunk(0, 0, examples).sha256 for examples in others}) == len(others)
    assert [len(c.examples) for c in chunks(open_source(texts, limit=8), 4)] == [4, 4]
    half = ["x" * (readers.LONGEST // 2)] * 40
    with says("Unit 0 has over 67,108,864 characters or token ids; make it smaller"):
        list(chunks(open_source(half), 40))
    assert [len(chunk.examples) for chunk in chunks(open_source(half), 20)] == [20, 20]


def test_python_iterables_hold_texts_ids_or_records():
    values = ["a", [1, 2], (3,), np.array([4, 5], np.int32), {"text": "b"}, [np.int64(6)]]
    expected = ["a", [1, 2], [3], [4, 5], "b", [6]]
    source = open_source(values)
    assert list(source) == list(source) == expected
    assert all(type(i) is int for e in source if isinstance(e, list) for i in e)  # so that they are JSON
    assert list(open_source(np.arange(6).reshape(3, 2))) == [[0, 1], [2, 3], [4, 5]]
    assert source.about["sha256"] == open_source(tuple(values)).about["sha256"]
    assert source.about["sha256"] != open_source(values[:-1]).about["sha256"]
    assert open_source(source) is source
    with says("is open already"):
        open_source(source, limit=3)


def test_an_iterator_is_read_lazily_and_once():
    asked = []

    def made():
        for i in range(100):
            asked.append(i)
            yield f"text {i}"

    source = open_source(made(), limit=3)
    assert not source.repeatable
    assert asked == [0]  # the first, to see that it is one
    assert list(source) == ["text 0", "text 1", "text 2"]
    assert asked == [0, 1, 2]
    with says("made", "only once"):
        iter(source)
    assert source.about == {"kind": "iterable", "name": "made", "limit": 3}
    assert open_source(["x"]).repeatable

    def fails():
        yield "one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # an error of the user's own
        list(open_source(fails()))


def test_standard_input_is_json_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"text": "a"}\n[1]\n"b"\n')))
    source = open_source("-")
    assert list(source) == ["a", [1], "b"]
    assert source.about == {"kind": "stdin", "field": "text", "limit": None}
    with says("Standard input", "only once"):
        list(source)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"plain text\n")))
    with says("standard input, line 1 is not JSON"):
        open_source("-")


# What is no example, and no source ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": }', ["a.jsonl, line 2 is not JSON", "column 10"]),
        (b'\n{"txt": 1, "id": 2}', ["a.jsonl, line 3 has no field 'text'; it has 'txt', 'id'"]),
        (b"{}", ["line 2 has no field", "it has none"]),
        (b'{"text": null}', ["line 2, field 'text' is neither", "NoneType None"]),
        (b"12", ["line 2 is neither a text nor a list of token ids but int 12"]),
        (b"[1, 2.0]", ["line 2 is neither", "list [1, 2.0]"]),
        (b"[true]", ["line 2 is neither", "list [True]"]),
        (b"[[1]]", ["line 2 is neither"]),
        (b'"\xff"', ["line 2 is not UTF-8: byte 0xff at column 2"]),
        (b'"x\\ud800"', ["line 2 is not JSON", "hex escape"]),
        (b'{"text": NaN}', ["line 2 is not JSON"]),
        (b"[" * 100000, ["line 2 is not JSON"]),
        (json.dumps({"text": {"a": "long " * 1000}}).encode(), ["line 2, field 'text' is neither", "..."]),
        (b"1" * 5000, ["line 2 is not JSON"]),
        (b'"' + b"x" * readers.LONGEST_LINE + b'"', ["line 2 is longer than 16,777,216 bytes. Cut it into several"]),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path, content, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'"ok"\n' + content + b"\n")
    source = open_source(path)
    with says(*words) as caught:
        list(source)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert list(open_source(path, limit=1)) == ["ok"]  # what is not asked for is not read


def mistakes(folder):
    """A source that cannot be, as a file's name and content, or as a Python object, with what is said of it."""
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")])
    odd = dict(texts=["a"], n=[1], when=[datetime.date(2020, 1, 1)], raw=[b"x"])
    path, late = table(folder / "a.parquet", **odd), table(folder / "late.parquet", text=["x"] * 99 + [None])
    long = "x" * (readers.LONGEST + 1)
    yield jsonl(folder / "lines.jsonl", [{"text": "a"}]), "body", "line 1 has no field 'body'; it has 'text'"
    yield [1, 2, 3], None, "The list, example 0 is neither"
    for nothing in ([], iter([]), np.zeros((0, 3), int)):
        yield nothing, None, "is empty: it has no examples"
    yield table(folder / "empty.parquet", text=pa.array([], pa.string())), None, "empty.parquet is empty"
    for name, content, words in (
        ("latin.txt", "plain\nçà".encode("latin-1"), "latin.txt, line 2 is not UTF-8: byte 0xe7 at column 1"),
        ("empty.txt", b"\n \n", "is empty"),
        ("empty.jsonl", b"\n \n", "is empty"),
        ("a.json", b"[]", "a.json' is of no known format. Did you mean '.jsonl'"),
        ("long.txt", f"ok\n\nand\n{long}".encode(), f"long.txt, the paragraph at line 3 {TOO_LONG}"),
        ("many.txt", b"short\n" * (readers.LONGEST // 5), f"many.txt, the paragraph at line 1 {TOO_LONG}"),
        ("none.parquet", b"", "none.parquet cannot be read as parquet"),
        ("no.parquet", b"not parquet", "no.parquet cannot be read as parquet"),
        ("cut.parquet", late.read_bytes()[:-30], "cut.parquet cannot be read as parquet"),
        ("pages.parquet", b"PAR1" + bytes(40) + path.read_bytes()[44:], "pages.parquet cannot be read as parquet"),
    ):
        (folder / name).write_bytes(content)
        yield folder / name, "texts" if name == "pages.parquet" else None, words
    for source in (jsonl(folder / "long.jsonl", [long]), table(folder / "long.parquet", text=[long]), [long]):
        yield source, None, f"{TOO_LONG} characters or token ids"
    yield [[0] * len(long)], None, TOO_LONG
    yield [np.zeros(len(long), np.int32)], None, TOO_LONG
    yield path, None, "a.parquet has no column 'text'. Did you mean 'texts'?"
    yield table(folder / "bad.parquet", text=bad), None, "bad.parquet cannot be read as parquet"
    for column in ("n", "when", "raw"):
        yield path, column, f"a.parquet, row 1, column '{column}' is neither"
    yield late, None, "late.parquet, row 100, column 'text' is neither"
    yield folder / "line.jsonl", None, "Did you mean 'lines.jsonl'"
    yield "manaul", None, "No such source: 'manaul'. Did you mean 'manual'?"
    yield "qqq/*.zip", None, "A source is 'manual', a file"
    (folder / "sub").mkdir()
    yield folder / "sub", None, "sub has no file in a known format (.txt, .md, .jsonl, .parquet)"
    for value in (5, {"text": ["a"]}, {"a", "b"}, None):
        yield value, None, f"A {type(value).__name__} is not a source"
    for name in ("x" * 5000, "a\0.jsonl", "\ud800.txt", "*\0*", "**x/*.txt", "", "~"):
        yield name, None, ""
    for name in ("hf:", "hf:a:b:c:d"):
        yield name, None, f"{name!r} is not a dataset; write hf:OWNER/NAME"


def test_what_is_no_source_is_one_short_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source, field, words in mistakes(tmp_path):
        with says(words) as caught:
            list(open_source(source, field))
        assert len(str(caught.value)) < 400 + len(str(tmp_path)), words
        assert str(caught.value).isprintable(), words


@pytest.mark.parametrize(
    "asked", [*(dict(limit=limit) for limit in (0, -1, 1.5, "2", True, 2**62)), dict(field=5)], ids=str
)
def test_what_is_asked_of_a_source_has_a_type_and_a_range(asked):
    with says("What is asked of the source", next(iter(asked))):
        open_source("manual", **asked)
    assert len(list(open_source("manual", limit=np.int64(2)))) == 2


def test_a_file_that_is_gone_or_closed_to_us_is_one_line(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", ["x"])
    source = open_source(path)
    path.unlink()
    with says("Cannot read", "a.jsonl: No such file"):
        list(source)
    with says("Cannot read", "a.jsonl: No such file"):
        _ = source.about
    with says("Cannot read", "Is a directory"):
        readers.digest([tmp_path])


def test_a_folder_without_end_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST", 20)
    for i in range(3):
        (tmp_path / f"f{i}" / "deep").mkdir(parents=True)
        for j in range(5):
            (tmp_path / f"f{i}" / "deep" / f"{j}.txt").write_text("A paragraph.")
    for source in (tmp_path, tmp_path / "**" / "*.txt", tmp_path / "*" / "*" / "*.txt"):
        with says("holds more than 20 files and folders; name what is further down"):
            open_source(source)
    assert len(list(open_source(tmp_path / "f1"))) == 5
    assert len(list(open_source(tmp_path / "f1" / "*" / "*.txt"))) == 5
    with says("No such source"):  # only as deep as the pattern reaches
        open_source(tmp_path / "*" / "*.txt")


WAITING = """
import os, sys
from pathlib import Path
from llama_lab.activations.sources import open_source
from llama_jax.plumbing.errors import UserError

os.chdir(sys.argv[1])
os.mkfifo("pipe.jsonl")
os.mkdir("tree")
for name in "abcdef":
    os.symlink(".", f"tree/{name}")
os.symlink("loop.txt", "loop.txt")
os.symlink("/dev/zero", "zero.txt")
for source in ("pipe.jsonl", "pipe.*", "zero.txt", "loop.txt", "tree", "tree/**/*.txt", "**/**/**/**/*.txt"):
    try:
        open_source(source)
    except UserError as error:
        print(error)
"""


def test_nothing_is_waited_for(tmp_path):
    """A pipe, a device without an end, links in circles: in a process that would hang."""
    lines = python(WAITING, tmp_path)[0].splitlines()
    assert len(lines) == 7
    assert "pipe.jsonl is not a regular file; standard input is the source '-'" in lines[0]
    assert "zero.txt is not a regular file" in lines[2]


FLIPPED = """
import resource, sys
import numpy as np
from llama_lab.activations.sources import open_source
from llama_jax.plumbing.errors import UserError

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
content, told = open(sys.argv[1], "rb").read(), 0
rng = np.random.default_rng(0)
for number in range(400):
    damaged = bytearray(content)
    at = int(rng.integers(len(content) - 600, len(content)) if number % 2 else rng.integers(0, len(content)))
    damaged[at] ^= 1 << int(rng.integers(0, 8))
    if number % 10 == 0:
        del damaged[at:]
    open(sys.argv[2], "wb").write(damaged)
    try:
        source = open_source(sys.argv[2])
        for example in source:
            assert isinstance(example, str)
    except UserError as error:
        told += 1
        assert str(error).isprintable() and len(str(error)) < 600, error
print(told)
"""


def test_damaged_parquet_is_one_line(tmp_path):
    """Bits flipped anywhere, and most in the footer, in a process that may crash or take too much."""
    path = table(tmp_path / "a.parquet", group=40, text=[f"{i} ünï " * 9 for i in range(100)], n=list(range(100)))
    assert int(python(FLIPPED, path, tmp_path / "b.parquet", limit=300)[0]) > 50


# Datasets ---


def test_a_streamed_dataset_is_a_source(datasets, tmp_path):
    jsonl(tmp_path / "mine" / "train.jsonl", [{"text": t, "n": i} for i, t in enumerate(TEXTS)])
    jsonl(tmp_path / "mine" / "test.jsonl", [{"text": "held out"}])
    stream = datasets.load_dataset(str(tmp_path / "mine"), split="train", streaming=True)
    source = open_source(stream)
    assert list(source) == list(source) == TEXTS
    expected = dict(name="mine", config="default", split="train", version="0.0.0", fingerprint=None, field="text")
    assert source.about == {"kind": "dataset", "limit": None} | expected
    assert list(open_source(stream.map(lambda row: {"ids": [row["n"]] * 2}), field="ids", limit=2)) == [[0, 0], [1, 1]]
    with says("Dataset mine has no column 'txt'. Did you mean 'text'?"):
        open_source(stream, field="txt")
    with says("Dataset mine, example 0, field 'n' is neither"):
        open_source(stream, field="n")
    with says("has the splits 'train', 'test'; give one of them"):
        open_source(datasets.load_dataset(str(tmp_path / "mine"), streaming=True))

    def shaky():
        yield {"text": "one"}
        raise ConnectionError("reset by peer")

    with says("cannot be read on after example 0: reset by peer"):
        list(open_source(datasets.IterableDataset.from_generator(shaky)))


def test_a_dataset_at_hand_is_known_by_its_fingerprint(datasets):
    rows = [{"text": t} for t in TEXTS]
    source = open_source(datasets.Dataset.from_list(rows))
    assert list(source) == list(source) == TEXTS
    again, other = (open_source(datasets.Dataset.from_list(r)).about for r in (rows, rows[:-1]))
    assert source.about == again != other
    assert source.about["fingerprint"]


def test_a_dataset_by_name_is_streamed(datasets, tmp_path):
    folder = tmp_path / "mine"
    train = jsonl(folder / "train.jsonl", [{"text": t} for t in TEXTS])
    jsonl(folder / "test.jsonl", [{"text": "held out"}])
    source = open_source(f"hf:{folder}", limit=2)
    assert list(source) == list(source) == TEXTS[:2]
    assert list(open_source(f"hf:{folder}::test")) == list(open_source(f"hf:{folder}:default:test")) == ["held out"]
    known = dict(kind="hub", name="mine", config="default", split="train", field="text", limit=2)
    digest = hashlib.sha256(train.read_bytes()).hexdigest()
    assert source.about == known | dict(files=["train.jsonl"], sha256=digest)
    with says("can be read in order only"):
        source.parts(10)
    for name, words in {
        "::tset": "Bad split: tset",
        ":odd": "BuilderConfig 'odd' not found",
        "/none": "Couldn't find",
    }.items():
        with says(f"hf:{folder}{name} cannot be opened", words):
            open_source(f"hf:{folder}{name}")


def test_a_dataset_of_parquet_files_is_read_from_any_unit(datasets, tmp_path):
    texts = [f"text {i}" for i in range(45)]
    for i in range(3):
        path = tmp_path / "mine" / "data" / f"train-{i:05d}-of-00003.parquet"
        table(path, 5, text=texts[15 * i : 15 * (i + 1)])
    name = f"hf:{tmp_path / 'mine'}"
    source = open_source(name)
    assert list(source) == texts == [row["text"] for row in hub.load(name, "text").dataset]
    parts = list(source.parts(10))
    found = [source.chunk(part).examples for part in reversed(parts)][::-1]
    assert found == [texts[i : i + 10] for i in range(0, 45, 10)]
    assert source.about["kind"] == "hub"
    assert json.loads(json.dumps(source.stamp)) == source.stamp
    at_hand = open_source(datasets.Dataset.from_list([{"text": text} for text in texts]))
    assert [at_hand.chunk(part).examples[0] for part in at_hand.parts(20)] == ["text 0", "text 20", "text 40"]


def test_a_dataset_of_the_hub_is_known_by_its_revision(datasets, monkeypatch):
    asked = []

    class Builder:
        hash, config = "c0ffee", SimpleNamespace(name="sample-10BT")

        def __init__(self, path, name, revision):
            asked.append((path, name, revision))

        def as_streaming_dataset(self, split):
            asked.append(split)
            return datasets.Dataset.from_list([{"text": "one"}]).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset_builder", Builder)
    source = open_source("hf:HuggingFaceFW/fineweb@c0f:sample-10BT")
    assert asked == [("HuggingFaceFW/fineweb", "sample-10BT", "c0f"), "train"]
    assert list(source) == ["one"]
    assert source.about == {"kind": "hub", "name": "HuggingFaceFW/fineweb", "config": "sample-10BT", "split": "train",
                            "revision": "c0ffee", "field": "text", "limit": None}  # fmt: skip
    open_source("hf:owner/name::test")
    assert asked[2:] == [("owner/name", None, None), "test"]


def test_a_hub_out_of_reach_or_no_library_is_one_line(datasets, monkeypatch):
    with says("hf:HuggingFaceFW/fineweb:sample-10BT:train cannot be opened", "Couldn't reach 'HuggingFaceFW/fineweb'"):
        open_source("hf:HuggingFaceFW/fineweb:sample-10BT:train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with says("Datasets of the hub need the datasets library: pip install datasets"):
        open_source("hf:owner/name")
    assert list(open_source(["and the rest works"])) == ["and the rest works"]


# Units that are read alone: the same examples as in order, and of the rest of the source nothing ---

BLANK = st.sampled_from(["", "\n", "\n\n", " \t\n", "\r\n", "\u00a0\n", "\x1c\n"])
PIECES = st.lists(st.tuples(st.text("aé四 ", min_size=1).filter(str.strip), BLANK, st.sampled_from(["\n", "\r\n"])))


def alone(source, size):
    """Every unit read by itself, in another order."""
    found = {part.number: source.chunk(part) for part in reversed(list(source.parts(size)))}
    return [found[number] for number in sorted(found)]


def lines(values):
    """JSON lines with whatever is between them."""
    return "".join(blank + json.dumps(text) + end for text, blank, end in values)


def paragraphs(values):
    return "".join(blank + text + end + end for text, blank, end in values)


@given(st.lists(PIECES, min_size=1, max_size=3).filter(any), st.integers(1, 5), st.sampled_from(["jsonl", "txt"]),
       st.booleans(), st.sampled_from([None, 1, 3]))  # fmt: skip
def test_units_alone_are_the_units_in_order(tmp_path_factory, contents, size, kind, marked, limit):
    """Of several files, with blank lines of all kinds, line ends of both, and a mark at the beginning."""
    folder = tmp_path_factory.mktemp("texts")
    for i, values in enumerate(contents):
        text = lines(values) if kind == "jsonl" else paragraphs(values)
        (folder / f"{i}.{kind}").write_bytes(b"\xef\xbb\xbf" * marked + text.encode())
    source = open_source(folder, limit=limit)
    assert alone(source, size) == list(chunks(source, size))


@pytest.mark.parametrize("after", ["", "\n", "\n \n\n"])
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_what_follows_the_last_example_is_no_part_of_its_unit(tmp_path, kind, after):
    """Blank lines, and files that hold nothing or no more than a mark."""
    values = [("a", "", "\n"), ("b", "", "\n"), ("c", "", "\n")]
    (tmp_path / f"0.{kind}").write_text((lines if kind == "jsonl" else paragraphs)(values) + after)
    (tmp_path / f"1.{kind}").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / f"2.{kind}").write_bytes(b"")
    source = open_source(tmp_path)
    assert [len(chunk.examples) for chunk in alone(source, 2)] == [2, 1]
    assert alone(source, 2) == list(chunks(source, 2))


@pytest.mark.parametrize("group", [None, 7, 64])
@pytest.mark.parametrize("size", [1, 10, 64, 500])
def test_rows_of_parquet_files_are_units_too(tmp_path, group, size):
    for i, count in enumerate((150, 1, 33)):
        texts = pa.array([f"{i} {row}" for row in range(count)])
        parquet.write_table(pa.table({"text": texts}), tmp_path / f"{i}.parquet", row_group_size=group)
    for limit in (None, 151):
        source = open_source(tmp_path, limit=limit)
        assert alone(source, size) == list(chunks(source, size))


def test_what_is_at_hand_and_files_of_several_kinds_are_read_from_any_number(tmp_path):
    values = [f"text {i}" for i in range(23)]
    (tmp_path / "a.md").write_text("one\n\ntwo\n")
    (tmp_path / "b.jsonl").write_text('"three"\n"four"\n"five"\n')
    mixed = open_source(f"{tmp_path}/*")
    assert [part.start for part in mixed.parts(2)] == [(0, 0, 0), (0, 9, 3), (1, 15, 2)]
    for source in ("manual", values, tuple(values), np.arange(46).reshape(23, 2), mixed):
        source = source if source is mixed else open_source(source, limit=21)
        assert alone(source, 2) == list(chunks(source, 2))


def test_of_parquet_only_the_row_groups_are_read(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"text {i}" for i in range(1000)]}), path, row_group_size=50)
    source, asked = open_source(path), []
    parts = list(source.parts(30))

    def iter_batches(file, size, groups, original=parquet.ParquetFile.iter_batches, **options):
        def noting():
            for group in groups:
                asked.append(group)
                yield from original(file, size, [group], **options)

        return noting()

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", iter_batches)
    assert source.chunk(parts[16]).examples == [f"text {i}" for i in range(480, 510)]
    assert asked == [9, 10]
    asked.clear()
    assert len(list(source.parts(30))) == 34
    assert asked == []  # planning needs the footer only


def test_parquet_behind_a_url_is_read_by_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"text {i}" for i in range(100)]}), path, row_group_size=10)
    assert list(readers.rows(f"file://{path}", "text", 95)) == [f"text {i}" for i in range(95, 100)]
    with says("none.parquet cannot be read as parquet"):
        list(readers.rows(f"file://{tmp_path}/none.parquet", "text"))


def test_a_source_that_changes_after_it_was_cut_is_noticed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'"text {i}"\n' for i in range(10)))
    source = open_source(path)
    parts = list(source.parts(4))
    path.write_text(path.read_text().replace("text 5", "taxt 5"))  # as long as before
    assert source.chunk(parts[0]).examples == [f"text {i}" for i in range(4)]
    with says("source has changed: examples 4 to 7 are not those of unit 1"):
        source.chunk(parts[1])
    path.write_text('"text 0"\n')
    with says("source has changed: examples 8 to 9"):
        source.chunk(parts[2])


def test_a_stamp_tells_most_changes_and_reads_little(tmp_path):
    path = tmp_path / "a.jsonl"
    content = "".join(f'"text {i}"\n' for i in range(20_000))
    path.write_text(content)
    stamp = open_source(path).stamp
    assert json.loads(json.dumps(stamp)) == stamp == open_source(str(path)).stamp
    assert open_source(path, limit=3).stamp != stamp
    for other in (content + "\n", content[:-5] + 'x"\n"', content[:-3] + '0"\n'):
        path.write_text(other)
        assert open_source(path).stamp != stamp


def test_what_is_read_in_order_has_no_parts():
    with says("can be read in order only"):
        open_source(iter(["a", "b"])).parts(1)
    with says("A unit needs at least 1 example"):
        list(open_source(["a"]).parts(0))
    with says("A unit needs at least 1 example"):
        next(chunks(["a"], 0))


# Memory ---


PEAK = """
import sys
from llama_lab.activations.sources import chunks, open_source
from llama_lab.bench.environment import peak_rss

def streamed(path):
    import datasets
    return datasets.load_dataset("json", data_files=path, split="train", streaming=True, chunksize=1 << 18)

kind, path = sys.argv[1:]
source = open_source({"hf": streamed, "generator": lambda path: (line for line in open(path))}.get(kind, str)(path))
assert source.about
print(sum(len(c.examples) + len(c.sha256) for c in chunks(source, 16)), peak_rss())
"""


def written(kind, folder, count):
    """A file of so many examples of a kilobyte each."""
    texts, folder = [f"{i} {'word ' * 200}".strip() for i in range(count)], folder / str(count)
    if kind == "parquet":  # one row group, as long in the file as in memory: the worst case
        return table(folder / "a.parquet", count, "none", text=texts)
    path = jsonl(folder / f"a.{'jsonl' if kind in ('jsonl', 'hf') else 'txt'}", ({"text": t} for t in texts))
    if path.suffix == ".txt":
        path.write_text("\n\n".join(texts))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "hf", "generator"])
def test_memory_does_not_grow_with_the_source(tmp_path, kind):
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
    small, large = (  # 6 MB and 60 MB
        list(map(int, python(PEAK, kind, written(kind, tmp_path, count), limit=300, **environment)[0].split()))
        for count in (6_000, 60_000)
    )
    assert large[0] > 9 * small[0]  # it was all read
    assert large[1] - small[1] < 25e6  # what allocators keep differs by some megabytes
