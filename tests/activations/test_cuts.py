"""Units that are read alone: the same examples as in order, and of the rest of the source nothing."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from llama_lab.activations import readers
from llama_lab.activations.sources import chunks, open_source
from tests.activations.stores import says

BLANK = st.sampled_from(["", "\n", "\n\n", " \t\n", "\r\n", "\u00a0\n", "\x1c\n"])
TEXTS = st.lists(st.tuples(st.text("aé四 ", min_size=1).filter(str.strip), BLANK, st.sampled_from(["\n", "\r\n"])))


def alone(source, size):
    """Every unit read by itself, in another order."""
    found = {part.number: source.chunk(part) for part in reversed(list(source.parts(size)))}
    return [found[number] for number in sorted(found)]


def lines(values):
    """JSON lines with whatever is between them."""
    return "".join(blank + json.dumps(text) + end for text, blank, end in values)


def paragraphs(values):
    return "".join(blank + text + end + end for text, blank, end in values)


@given(st.lists(TEXTS, min_size=1, max_size=3).filter(any), st.integers(1, 5), st.sampled_from(["jsonl", "txt"]),
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
    with says("A unit of 0 examples"):
        list(open_source(["a"]).parts(0))
    with says("A unit of 0 examples"):
        next(chunks(["a"], 0))
