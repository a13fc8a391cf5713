"""Nothing that was measured is lost."""

import errno
import json
import os

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


def test_each_trial_is_on_disk_before_the_next(path):
    journal = Journal(path, PLAN)
    for block in range(3):
        journal.append(trial(block=block))
        assert [t.block for t in record.read(path)[0]] == list(range(block + 1))


def test_it_goes_on_where_it_stopped(path):
    filled(path).note(process=4, load=1.5)
    again = Journal(path, PLAN)
    assert (again.resumed, again.torn, again.notes) == (3, False, [{"process": 4, "load": 1.5}])
    again.append(trial(block=3))
    assert len(record.read(path)[0]) == 4


def test_a_torn_last_line_costs_that_trial_only(path):
    filled(path)
    path.write_bytes(path.read_bytes()[:-40])
    again = Journal(path, PLAN)
    assert (again.torn, [t.block for t in again.trials]) == (True, [0, 1])
    again.append(trial(block=2))
    assert [t.block for t in record.read(path)[0]] == [0, 1, 2]


def test_a_file_torn_in_its_first_line_starts_anew(path):
    filled(path, 0)
    path.write_bytes(path.read_bytes()[:20])
    again = Journal(path, PLAN)
    again.append(trial())
    assert len(record.read(path)[0]) == 1


def test_another_plan_is_refused_by_what_differs(path):
    filled(path)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"another blocks \(2, now 9\); name another file"):
        Journal(path, {"blocks": 9})
    assert path.read_bytes() == before


def test_corrupted_lines_are_reported_by_number_and_skipped_only_when_asked(path):
    filled(path, 5)
    lines = path.read_text().splitlines()
    lines[2], lines[4] = lines[2][:30], '{"a": 1}'
    path.write_text("\n".join(lines) + "\n")
    for attempt in (lambda: record.read(path), lambda: Journal(path, PLAN)):
        with pytest.raises(UserError, match="lines 3, 5 cannot be read"):
            attempt()
    trials, _ = record.read(path, skip_corrupt=True)
    assert [t.block for t in trials] == [0, 2, 4]
    assert [t.block for t in Journal(path, PLAN, skip_corrupt=True).trials] == [0, 2, 4]


def test_an_edited_line_is_one_that_is_left_out_when_asked(path):
    filled(path)
    path.write_text(path.read_text().replace('"block": 1', '"block": 7'))
    for attempt in (lambda: record.read(path), lambda: Journal(path, PLAN)):
        with pytest.raises(UserError, match=r"line 3 changed since it was written; skip_corrupt \(--skip-corrupt\)"):
            attempt()
    assert [t.block for t in Journal(path, PLAN, skip_corrupt=True).trials] == [0, 2]


def test_a_journal_of_an_earlier_version_goes_on(path):
    """Its lines have no digest."""
    filled(path)
    first, *rows = path.read_text().splitlines()
    bare = ({k: v for k, v in json.loads(row).items() if k != ROW} for row in rows)
    path.write_text("".join(f"{line}\n" for line in (first, *map(json.dumps, bare))))
    again = Journal(path, PLAN)
    again.append(trial(block=3))
    assert [t.block for t in record.read(path)[0]] == [0, 1, 2, 3]


def test_a_finished_table_is_no_journal(path):
    record.write(path, [trial()], parameters={})
    with pytest.raises(UserError, match="finished table"):
        Journal(path, PLAN)


def test_a_plan_within_a_plan_is_named_by_its_own_key(path):
    Journal(path, {"parameters": {"seed": 1, "batch": 2}})
    with pytest.raises(UserError, match=r"another seed \(1, now 5\)"):
        Journal(path, {"parameters": {"seed": 5, "batch": 2}})


def test_a_foreign_file_is_named(path):
    path.parent.mkdir()
    path.write_text("hello\n")
    with pytest.raises(UserError, match="line 1 does not say"):
        Journal(path, PLAN)


def test_a_full_disk_is_one_line_and_loses_nothing(path, monkeypatch):
    journal = filled(path, 2)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device. The 2 trials before this one are safe"):
        journal.append(trial(block=2))
    monkeypatch.undo()
    assert [t.block for t in Journal(path, PLAN).trials][:2] == [0, 1]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        Journal(tmp_path / "file" / "run.jsonl", PLAN)


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


def test_a_pipe_is_no_journal(tmp_path):
    os.mkfifo(tmp_path / "run.jsonl")
    with pytest.raises(UserError, match="no regular file"):
        Journal(tmp_path / "run.jsonl", {})
