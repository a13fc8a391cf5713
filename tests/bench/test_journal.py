"""Nothing that was measured is lost."""

import errno
import json
import os
from unittest.mock import Mock

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import record
from llama_lab.bench.journal import Journal
from llama_lab.bench.seal import ROW
from tests.bench.test_record import trial

PLAN = {"blocks": 2}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "run.jsonl"


def filled(path, count=3):
    journal = Journal(path, PLAN)
    for block in range(count):
        journal.append(trial(block=block))
    return journal


def test_each_trial_is_on_disk_before_the_next_and_it_goes_on_there(path):
    journal = Journal(path, PLAN)
    for block in range(3):
        journal.append(trial(block=block))
        assert [t.block for t in record.read(path)[0]] == list(range(block + 1))
    journal.note(process=4, load=1.5)
    again = Journal(path, PLAN)
    assert (again.resumed, again.torn, again.notes) == (3, False, [{"process": 4, "load": 1.5}])
    assert again.next_process() == 5
    again.append(trial(block=3))
    assert len(record.read(path)[0]) == 4


@pytest.mark.parametrize(("count", "kept", "left"), [(3, slice(-40), [0, 1]), (0, slice(20), [])])
def test_a_torn_line_costs_that_line_only(path, count, kept, left):
    """Torn in its first line a file starts anew."""
    filled(path, count)
    path.write_bytes(path.read_bytes()[kept])
    again = Journal(path, PLAN)
    assert (again.torn, [t.block for t in again.trials]) == (True, left)
    again.append(trial(block=2))
    assert [t.block for t in record.read(path)[0]] == [*left, 2]


def cut(text):
    lines = text.splitlines()
    lines[2], lines[4] = lines[2][:30], '{"a": 1}'
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("damage", "words", "left"),
    [
        (cut, "lines 3, 5 cannot be read", [0, 2, 4]),
        (lambda text: text.replace('"block": 1', '"block": 7'),
         r"line 3 changed since it was written; skip_corrupt \(--skip-corrupt\)", [0, 2, 3, 4]),
    ],
    ids=["cut", "edited"],
)  # fmt: skip
def test_damaged_lines_are_reported_by_number_and_skipped_only_when_asked(path, damage, words, left):
    filled(path, 5)
    path.write_text(damage(path.read_text()))
    for attempt in (lambda: record.read(path), lambda: Journal(path, PLAN)):
        with pytest.raises(UserError, match=words):
            attempt()
    assert [t.block for t in record.read(path, skip_corrupt=True)[0]] == left
    assert [t.block for t in Journal(path, PLAN, skip_corrupt=True).trials] == left


def test_a_journal_of_an_earlier_version_goes_on(path):
    """Its lines have no digest."""
    filled(path)
    first, *rows = path.read_text().splitlines()
    bare = ({k: v for k, v in json.loads(row).items() if k != ROW} for row in rows)
    path.write_text("".join(f"{line}\n" for line in (first, *map(json.dumps, bare))))
    again = Journal(path, PLAN)
    again.append(trial(block=3))
    assert [t.block for t in record.read(path)[0]] == [0, 1, 2, 3]


def table(path):
    record.write(path, [trial()], parameters={})


@pytest.mark.parametrize(
    ("make", "plan", "words"),
    [
        (filled, {"blocks": 9}, r"another blocks \(2, now 9\); name another file"),
        (lambda path: Journal(path, {"parameters": {"seed": 1, "batch": 2}}), {"parameters": {"seed": 5, "batch": 2}},
         r"another seed \(1, now 5\)"),
        (table, PLAN, "finished table"),
        (lambda path: path.write_text("hello\n"), PLAN, "line 1 does not say"),
        (os.mkfifo, PLAN, "not a regular file"),
        (lambda path: path.parent.rmdir() or path.parent.write_text(""), PLAN, "Cannot write"),
    ],
    ids=["other plan", "other part of a plan", "finished table", "foreign file", "pipe", "no folder"],
)  # fmt: skip
def test_what_cannot_be_continued_is_refused_and_left_as_it_is(path, make, plan, words):
    path.parent.mkdir()
    make(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UserError, match=words):
        Journal(path, plan)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_full_disk_is_one_line_and_loses_nothing(path, monkeypatch):
    journal = filled(path, 2)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UserError, match="No space left on device. The 2 trials before this one are safe"):
        journal.append(trial(block=2))
    monkeypatch.undo()
    assert [t.block for t in Journal(path, PLAN).trials][:2] == [0, 1]


def test_without_a_path_it_is_memory(tmp_path):
    journal = Journal(None, PLAN)
    journal.append(trial())
    journal.discard()
    assert len(journal.trials) == 1
    assert json.dumps(journal.plan) == json.dumps(PLAN)


@pytest.mark.parametrize("note", [None, [], "x", {"process": None}, {"process": -1}, {"missing": {}}, {"missing": "x"}])
def test_a_note_that_is_none_is_a_line_that_cannot_be_read(tmp_path, note):
    path = tmp_path / "run.jsonl"
    Journal(path, {"plan": 1}).append(trial())
    with path.open("a") as file:
        file.write(json.dumps({"note": note}) + "\n")
    with pytest.raises(UserError, match="line 3 cannot be read"):
        Journal(path, {"plan": 1})
    assert len(Journal(path, {"plan": 1}, skip_corrupt=True).trials) == 1
