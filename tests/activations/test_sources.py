"""Sources: the same examples each time, one line for what is none, and memory that does not grow with their length."""

import datetime
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from llama_jax.plumbing.errors import UserError
from llama_lab import corpus
from llama_lab.activations import hub, readers, sources
from llama_lab.activations.sources import chunks, open_source

TEXTS = ["One.", "Zwei — drei 四.", "Five\nsix."]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """The library, with a cache of its own and without a network."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
    import datasets

    # where it was imported before
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    yield datasets
    patch.undo()


def jsonl(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(v) + "\n" for v in values))
    return path


def table(path, group=None, compression="snappy", **columns):
    parquet.write_table(
        pa.table(columns), path, row_group_size=group, compression=compression, use_dictionary=compression != "none"
    )
    return path


def says(*words):
    """pytest.raises for a UserError of one line with these words in this order."""
    return pytest.raises(UserError, match="^" + ".*".join(r"[^\n]*" + re.escape(w) for w in words) + r"[^\n]*$")


def test_the_manual_is_the_default_that_needs_nothing():
    source = open_source("manual", limit=5)
    assert list(source) == corpus.paragraphs()[:5]
    assert list(source) == corpus.paragraphs()[:5]  # each iteration starts anew
    assert source.about == {"kind": "manual", "sha256": open_source("manual").about["sha256"], "limit": 5}


def test_paragraphs_are_parted_by_blank_lines_of_any_ending(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeff\r\nOne.\r\n \t \r\n\nZwei — drei 四.\n\n\n   Five\nsix.  ".encode())
    assert list(open_source(path)) == TEXTS
    # a separator of Unicode ends no line
    (tmp_path / "b.MD").write_text("# A title\n\nA paragraph\u2028of one line.\n")
    assert list(open_source(str(tmp_path / "b.MD"))) == ["# A title", "A paragraph\u2028of one line."]


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip).filter(bool), min_size=1
    )
)
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
    path = table(tmp_path / "a.parquet", group, text=texts, ids=pa.array(ids, pa.list_(pa.int32())), n=range(333))
    assert list(open_source(path)) == texts
    assert list(open_source(path, field="ids", limit=200)) == ids[:200]


def test_dictionary_encoded_and_large_strings_are_texts_too(tmp_path):
    coded = pa.array(["x", "y", "x"]).dictionary_encode()
    path = table(tmp_path / "a.parquet", coded=coded, large=pa.array(["p", "q", "r"], pa.large_string()))
    assert list(open_source(path, field="coded")) == ["x", "y", "x"]
    assert list(open_source(path, field="large")) == ["p", "q", "r"]


def test_folders_and_globs_are_files_in_order_of_their_names(tmp_path):
    for name, values in {
        "b.jsonl": ["2"],
        "a.jsonl": ["1"],
        "c/d.jsonl": ["3"],
        ".hidden.jsonl": ["no"],
        ".git/x.jsonl": ["no"],
    }.items():
        jsonl(tmp_path / name, values)
    (tmp_path / "LICENSE").write_text("not a source")
    assert list(open_source(tmp_path)) == ["1", "2", "3"]
    assert open_source(tmp_path).about["files"] == ["a.jsonl", "b.jsonl", "d.jsonl"]
    assert list(open_source(f"{tmp_path}/*.jsonl")) == ["1", "2"]
    assert list(open_source(f"{tmp_path}/**/*.jsonl")) == ["1", "2", "3"]
    (tmp_path / "README.md").write_text("About these data.")
    with says("files of several kinds: *.jsonl, *.md"):
        open_source(tmp_path)
    assert list(open_source(f"{tmp_path}/[aR]*")) == ["About these data.", "1"]  # asked for


def test_a_file_with_the_signs_of_a_glob_in_its_name_is_that_file(tmp_path):
    jsonl(tmp_path / "[1].jsonl", ["this"])
    jsonl(tmp_path / "1.jsonl", ["not this"])
    assert list(open_source(tmp_path / "[1].jsonl")) == ["this"]


def test_about_knows_the_contents_and_not_the_place(tmp_path):
    one, other = jsonl(tmp_path / "x" / "a.jsonl", TEXTS), jsonl(tmp_path / "y" / "a.jsonl", TEXTS)
    about = open_source(one).about
    assert about == open_source(other).about
    assert about == {
        "kind": "files",
        "files": ["a.jsonl"],
        "field": "text",
        "limit": None,
        "sha256": hashlib.sha256(one.read_bytes()).hexdigest(),
    }
    assert json.loads(json.dumps(about)) == about
    other.write_bytes(other.read_bytes()[:-2] + b"'\n")  # one byte, in the last line
    assert about["sha256"] != hashlib.sha256(other.read_bytes()).hexdigest()
    changed = [open_source(one, field="t"), open_source(one, limit=2)]
    for source in changed:
        assert source.about != about
    jsonl(tmp_path / "x" / "b.jsonl", ["more"])
    both = open_source(tmp_path / "x").about
    assert both["files"] == ["a.jsonl", "b.jsonl"]
    os.replace(tmp_path / "x" / "a.jsonl", tmp_path / "kept")
    os.replace(tmp_path / "x" / "b.jsonl", tmp_path / "x" / "a.jsonl")
    os.replace(tmp_path / "kept", tmp_path / "x" / "b.jsonl")
    assert open_source(tmp_path / "x").about["sha256"] != both["sha256"]  # the same files, exchanged
    assert "field" not in open_source("manual").about


def test_units_are_fixed_ranges_and_their_digest_is_of_the_examples(tmp_path):
    texts = [f"text {i}" for i in range(10)]
    found = list(chunks(open_source(texts), 4))
    assert [(c.number, c.first, len(c.examples)) for c in found] == [(0, 0, 4), (1, 4, 4), (2, 8, 2)]
    assert [e for c in found for e in c.examples] == texts
    path = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in texts])
    assert [c.sha256 for c in chunks(open_source(path), 4)] == [c.sha256 for c in found]  # whatever carries them
    others = [["12"], [[1, 2]], [[12]], ["1", "2"], ["1\n2"], [["1", "2"]]]
    assert len({sources.Chunk(0, 0, examples).sha256 for examples in others}) == len(others)
    assert [len(c.examples) for c in chunks(open_source(texts, limit=8), 4)] == [4, 4]
    with says("A unit of 0 examples"):
        next(chunks(texts, 0))


def test_python_iterables_hold_texts_ids_or_records():
    values = ["a", [1, 2], (3,), np.array([4, 5], np.int32), {"text": "b"}, [np.int64(6)]]
    expected = ["a", [1, 2], [3], [4, 5], "b", [6]]
    source = open_source(values)
    assert list(source) == list(source) == expected
    assert all(type(i) is int for e in source if isinstance(e, list) for i in e)  # so that they are JSON
    assert list(open_source(np.arange(6).reshape(3, 2))) == [[0, 1], [2, 3], [4, 5]]
    assert source.about["sha256"] == open_source(tuple(values)).about["sha256"]
    assert source.about["sha256"] != open_source(values[:-1]).about["sha256"]


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


def test_a_source_that_is_open_stays_itself():
    source = open_source(["x"])
    assert open_source(source) is source
    with says("is open already"):
        open_source(source, limit=3)


def test_an_error_of_the_users_own_iterator_is_theirs():
    def fails():
        yield "one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
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


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'"ok"\n{"text": }\n', ["a.jsonl, line 2 is not JSON", "column 10"]),
        (b'"ok"\n\n{"txt": 1, "id": 2}\n', ["a.jsonl, line 3 has no field 'text'; it has 'txt', 'id'"]),
        (b'"ok"\n{}\n', ["line 2 has no field", "it has none"]),
        (b'"ok"\n{"text": null}\n', ["line 2, field 'text' is neither", "NoneType None"]),
        (b'"ok"\n12\n', ["line 2 is neither a text nor a list of token ids but int 12"]),
        (b'"ok"\n[1, 2.0]\n', ["line 2 is neither", "list [1, 2.0]"]),
        (b'"ok"\n[true]\n', ["line 2 is neither", "list [True]"]),
        (b'"ok"\n[[1]]\n', ["line 2 is neither"]),
        (b'"ok"\n"\xff"\n', ["line 2 is not UTF-8: byte 0xff at column 2"]),
        (b'"ok"\n"x\\ud800"\n', ["line 2 is not JSON", "hex escape"]),
        (b'"ok"\n{"text": NaN}\n', ["line 2 is not JSON"]),
        (b'"ok"\n' + b"[" * 100000 + b"\n", ["line 2 is not JSON"]),
        (
            b'"ok"\n' + json.dumps({"text": {"a": "long " * 1000}}).encode() + b"\n",
            ["line 2, field 'text' is neither", "..."],
        ),
        (b'"ok"\n' + b"1" * 5000 + b"\n", ["line 2 is not JSON"]),
    ],
)
def test_a_line_that_is_no_example_is_named(tmp_path, content, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    source = open_source(path)
    with says(*words) as caught:
        list(source)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert list(open_source(path, limit=1)) == ["ok"]  # what is not asked for is not read


def test_mistakes_of_the_first_example_show_when_a_source_is_opened(tmp_path):
    with says("line 1 has no field 'body'; it has 'text'"):
        open_source(jsonl(tmp_path / "a.jsonl", [{"text": "a"}]), field="body")
    (tmp_path / "latin.txt").write_bytes("plain\nçà".encode("latin-1"))
    with says("latin.txt, line 2 is not UTF-8: byte 0xe7 at column 1"):
        open_source(tmp_path / "latin.txt")
    with says("The list, example 0 is neither", "int 1"):
        open_source([1, 2, 3])
    for nothing in ([], iter([]), np.zeros((0, 3), int)):
        with says("is empty: there is no example in it"):
            open_source(nothing)
    for name in ("empty.txt", "empty.jsonl"):
        (tmp_path / name).write_text("\n \n")
        with says(name, "is empty"):
            open_source(tmp_path / name)
    with says("empty.parquet is empty"):
        open_source(table(tmp_path / "empty.parquet", text=pa.array([], pa.string())))


@pytest.mark.parametrize("name", ["x" * 5000, "a\0.jsonl", "\ud800.txt", "*\0*", "**x/*.txt", "", "~", "/"])
def test_a_name_that_no_file_has_is_one_short_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with says("") as caught:
        open_source(name) if name != "/" else open_source(tmp_path)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "asked", [dict(limit=1.5), dict(limit="2"), dict(limit=True), dict(limit=2**62), dict(field=5)]
)
def test_what_is_asked_of_a_source_has_a_type_and_a_range(asked):
    with says("What is asked of the source", next(iter(asked))):
        open_source("manual", **asked)
    assert len(list(open_source("manual", limit=np.int64(2)))) == 2


def test_an_example_is_bounded(tmp_path):
    """Whatever its file: it is refused before all of it is read."""
    (tmp_path / "line.jsonl").write_bytes(b'"ok"\n"' + b"x" * readers.LONGEST_LINE + b'"\n')
    with says("line.jsonl, line 2 is longer than 16,777,216 bytes"):
        list(open_source(tmp_path / "line.jsonl"))
    long = "x" * (readers.LONGEST + 1)
    (tmp_path / "long.txt").write_text("ok\n\nand\n" + long)
    with says("long.txt, the paragraph at line 3 is too long: an example has at most 4,194,304"):
        list(open_source(tmp_path / "long.txt"))
    (tmp_path / "many.txt").write_text("short\n" * (readers.LONGEST // 5))
    with says("many.txt, the paragraph at line 1 is too long"):
        open_source(tmp_path / "many.txt")
    jsonl(tmp_path / "long.jsonl", [long])
    for source in (tmp_path / "long.jsonl", table(tmp_path / "a.parquet", text=[long]), [long], [[0] * len(long)],
                   [np.zeros(len(long), np.int32)]):  # fmt: skip
        with says("is too long: an example has at most 4,194,304 characters or token ids"):
            open_source(source)


def test_a_unit_is_bounded():
    half = "x" * (readers.LONGEST // 2)
    with says("Unit 0 has more than 67,108,864 characters or token ids; make units smaller"):
        list(chunks(open_source([half] * 40), 40))
    assert [len(chunk.examples) for chunk in chunks(open_source([half] * 40), 20)] == [20, 20]


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
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    assert "pipe.jsonl is no regular file; standard input is the source '-'" in lines[0]
    assert "zero.txt is no regular file" in lines[2]


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
    command = [sys.executable, "-c", FLIPPED, str(path), str(tmp_path / "b.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def test_what_is_no_source_is_told_apart(tmp_path):
    jsonl(tmp_path / "texts.jsonl", ["x"])
    with says("No such source", "Did you mean 'texts.jsonl'?"):
        open_source(tmp_path / "text.jsonl")
    with says("No such source: 'manaul'", "Did you mean 'manual'?"):
        open_source("manaul")
    with says("No such source", "A source is 'manual', a file"):
        open_source("qqq/*.zip")
    (tmp_path / "a.json").write_text("[]")
    with says("a.json' is of no known format", "Did you mean '.jsonl'"):
        open_source(tmp_path / "a.json")
    (tmp_path / "sub").mkdir()
    with says("sub has no file in a known format (.txt, .md, .jsonl, .parquet)"):
        open_source(tmp_path / "sub")
    for value in (5, {"text": ["a"]}, {"a", "b"}, None):
        with says(f"A {type(value).__name__} is no source"):
            open_source(value)
    for limit in (0, -1):
        with says(f"limit is {limit}"):
            open_source("manual", limit=limit)


def test_parquet_that_does_not_fit_is_one_line(tmp_path):
    path = table(tmp_path / "a.parquet", texts=["a"], n=[1], when=[datetime.date(2020, 1, 1)], raw=[b"x"])
    with says("a.parquet has no column 'text'. Did you mean 'texts'?"):
        open_source(path)
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")])
    with says("bad.parquet cannot be read as parquet", "can't decode byte"):
        open_source(table(tmp_path / "bad.parquet", text=bad))
    for column in ("n", "when", "raw"):
        with says(f"a.parquet, row 1, column '{column}' is neither"):
            open_source(path, field=column)
    late = table(tmp_path / "late.parquet", text=["x"] * 99 + [None])
    with says("late.parquet, row 100, column 'text' is neither", "None"):
        list(open_source(late))
    content = late.read_bytes()
    for broken in (b"", b"not parquet", content[:-30]):
        (tmp_path / "b.parquet").write_bytes(broken)
        with says("b.parquet cannot be read as parquet"):
            open_source(tmp_path / "b.parquet")
    with says("a.parquet cannot be read as parquet"):  # its pages are cut out, the footer is whole
        path.write_bytes(b"PAR1" + bytes(40) + path.read_bytes()[44:])
        list(open_source(path, field="texts"))


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


def test_a_streamed_dataset_is_a_source(datasets, tmp_path):
    jsonl(tmp_path / "mine" / "train.jsonl", [{"text": t, "n": i} for i, t in enumerate(TEXTS)])
    jsonl(tmp_path / "mine" / "test.jsonl", [{"text": "held out"}])
    stream = datasets.load_dataset(str(tmp_path / "mine"), split="train", streaming=True)
    source = open_source(stream)
    assert list(source) == list(source) == TEXTS
    assert source.about == {
        "kind": "dataset",
        "name": "mine",
        "config": "default",
        "split": "train",
        "version": "0.0.0",
        "fingerprint": None,
        "field": "text",
        "limit": None,
    }
    assert list(open_source(stream.map(lambda row: {"ids": [row["n"]] * 2}), field="ids", limit=2)) == [[0, 0], [1, 1]]
    with says("Dataset mine has no column 'txt'. Did you mean 'text'?"):
        open_source(stream, field="txt")
    with says("Dataset mine, example 0, field 'n' is neither"):
        open_source(stream, field="n")
    with says("has the splits 'train', 'test'; give one of them"):
        open_source(datasets.load_dataset(str(tmp_path / "mine"), streaming=True))


def test_a_dataset_at_hand_is_known_by_its_fingerprint(datasets):
    rows = [{"text": t} for t in TEXTS]
    source = open_source(datasets.Dataset.from_list(rows))
    assert list(source) == list(source) == TEXTS
    again, other = (open_source(datasets.Dataset.from_list(r)).about for r in (rows, rows[:-1]))
    assert source.about == again
    assert source.about != other
    assert source.about["fingerprint"]


def test_a_dataset_by_name_is_streamed(datasets, tmp_path):
    folder = tmp_path / "mine"
    jsonl(folder / "train.jsonl", [{"text": t} for t in TEXTS])
    jsonl(folder / "test.jsonl", [{"text": "held out"}])
    source = open_source(f"hf:{folder}", limit=2)
    assert list(source) == list(source) == TEXTS[:2]
    assert list(open_source(f"hf:{folder}::test")) == list(open_source(f"hf:{folder}:default:test")) == ["held out"]
    digest = hashlib.sha256((folder / "train.jsonl").read_bytes()).hexdigest()
    assert source.about == {
        "kind": "hub",
        "name": "mine",
        "config": "default",
        "split": "train",
        "files": ["train.jsonl"],
        "sha256": digest,
        "field": "text",
        "limit": 2,
    }
    for name, words in {
        "::tset": "Bad split: tset",
        ":odd": "BuilderConfig 'odd' not found",
        "/none": "Couldn't find",
    }.items():
        with says(f"hf:{folder}{name} cannot be opened", words):
            open_source(f"hf:{folder}{name}")
    for name in ("hf:", "hf:a:b:c:d"):
        with says(f"{name!r} is no dataset; it must read hf:OWNER/NAME"):
            open_source(name)


def test_a_dataset_of_parquet_files_is_read_from_any_unit(datasets, tmp_path):
    texts = [f"text {i}" for i in range(45)]
    for i in range(3):
        name = f"train-{i:05d}-of-00003.parquet"
        (tmp_path / "mine" / "data").mkdir(parents=True, exist_ok=True)
        table(tmp_path / "mine" / "data" / name, 5, text=texts[15 * i : 15 * (i + 1)])
    source = open_source(f"hf:{tmp_path / 'mine'}")
    assert list(source) == texts == [row["text"] for row in hub.load(f"hf:{tmp_path / 'mine'}", "text").dataset]
    parts = list(source.parts(10))
    assert [source.chunk(part).examples for part in reversed(parts)][::-1] == [
        texts[i : i + 10] for i in range(0, 45, 10)
    ]
    assert source.about["kind"] == "hub"
    assert json.loads(json.dumps(source.stamp)) == source.stamp
    jsonl(tmp_path / "lines" / "train.jsonl", [{"text": text} for text in texts])
    with says("can be read in order only"):
        open_source(f"hf:{tmp_path / 'lines'}").parts(10)
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


def test_without_the_datasets_library_it_says_how_to_get_it(datasets, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with says("Datasets of the hub need the datasets library: pip install datasets"):
        open_source("hf:owner/name")
    assert list(open_source(["and the rest works"])) == ["and the rest works"]


def test_a_hub_out_of_reach_is_one_line(datasets):
    with says("hf:HuggingFaceFW/fineweb:sample-10BT:train cannot be opened", "Couldn't reach 'HuggingFaceFW/fineweb'"):
        open_source("hf:HuggingFaceFW/fineweb:sample-10BT:train")


def test_a_network_that_fails_on_the_way_is_one_line(datasets):
    def shaky():
        yield {"text": "one"}
        raise ConnectionError("reset by peer")

    stream = datasets.IterableDataset.from_generator(shaky)
    with says("cannot be read on after example 0: reset by peer"):
        list(open_source(stream))


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
    texts, folder = (f"{i} {'word ' * 200}".strip() for i in range(count)), folder / str(count)
    folder.mkdir()
    if kind == "parquet":  # one row group, as long in the file as in memory: the worst case
        return table(folder / "a.parquet", count, "none", text=list(texts))
    if kind in ("jsonl", "hf"):
        return jsonl(folder / "a.jsonl", ({"text": t} for t in texts))
    path = folder / "a.txt"
    path.write_text("\n\n".join(texts))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet", "hf", "generator"])
def test_memory_does_not_grow_with_the_source(tmp_path, kind):
    found = []
    for count in (6_000, 60_000):  # 6 MB and 60 MB
        command = [sys.executable, "-c", PEAK, kind, str(written(kind, tmp_path, count))]
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        found.append([int(word) for word in done.stdout.split()])
    assert found[1][0] > 9 * found[0][0]  # it was all read
    assert found[1][1] - found[0][1] < 25e6, found  # what allocators keep differs by some megabytes


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
