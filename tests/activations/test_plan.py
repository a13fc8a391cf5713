"""Plans and claims: made once or by many at once, of the same bytes; and what is pending."""

import json
import time

import pytest

from llama_lab.activations import finish, pending, plan, units
from llama_lab.activations.folder import open_folder
from llama_lab.activations.sources import open_source
from tests.activations import stores
from tests.activations.runs import finished, spawn
from tests.activations.stores import content, says


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(f"text {i}") + "\n" for i in range(14)))
    return path


def fingerprint(about):
    return stores.fingerprint() | {"source": about}


def begin(out, source, unit=stores.EXAMPLES, resume=True, **options):
    return plan.begin(open_folder(out), open_source(source, **options), unit, fingerprint, resume)


def test_units_are_known_without_a_model(source):
    found = units(source, 4)
    assert [part[:3] for part in found] == [(0, 0, 4), (1, 4, 4), (2, 8, 4), (3, 12, 2)]
    assert units(open_source(source, limit=5), 4)[1].examples == 1
    assert len(units(source)) == 1
    with says("in order only"):
        units(iter(["a"]))


def test_a_plan_is_made_once_and_found_again(source, tmp_path, monkeypatch):
    out = tmp_path / "out"
    made = begin(out, source)
    assert [made.part(number) for number in range(5)] == units(source, stores.EXAMPLES)
    before = content(out)
    assert set(before) == {"run.json", "plan.json"}
    monkeypatch.setattr(plan, "made", None)
    monkeypatch.setattr("llama_lab.activations.readers.digest", None)  # nobody reads the whole source again
    assert begin(out, source) == made
    assert content(out) == before
    for number in (-1, 5):
        with says(f"There is no unit {number}: this source has 5"):
            made.part(number)


def test_a_process_that_died_between_claim_and_plan_is_made_good(source, tmp_path):
    made = begin(tmp_path / "out", source)
    whole = (tmp_path / "out" / "plan.json").read_bytes()
    (tmp_path / "out" / "plan.json").unlink()
    assert begin(tmp_path / "out", source) == made
    assert (tmp_path / "out" / "plan.json").read_bytes() == whole


def test_a_plan_that_somebody_else_has_made_is_taken(source, tmp_path, monkeypatch):
    other = begin(tmp_path / "other", source, unit=1)
    monkeypatch.setattr(plan, "LOOK", 3)
    asked = []

    def stop():
        asked.append(1)
        (tmp_path / "out" / "plan.json").write_bytes((tmp_path / "other" / "plan.json").read_bytes())
        return True

    assert plan.made(open_source(source), 1, lambda: False) == other
    monkeypatch.setattr(plan, "made", lambda source, unit, _, made=plan.made: made(source, unit, stop))
    assert begin(tmp_path / "out", source, unit=1) == other
    assert asked == [1]


def test_a_damaged_or_changed_plan_is_one_line(source, tmp_path):
    begin(tmp_path / "out", source)
    path = tmp_path / "out" / "plan.json"
    sound = path.read_bytes()
    changed = sound.replace(b'"examples": 14', b'"examples": 13')
    for damage in (b"", b"{}", b"[1]", b"\xff", b'{"unit": 0}', changed):
        path.write_bytes(damage)
        for act in (lambda: begin(tmp_path / "out", source), lambda: pending(tmp_path / "out")):
            with says("plan.json", "changed since it was written" if damage == changed else "Remove it, and the next"):
                act()
    path.unlink()
    assert begin(tmp_path / "out", source)


def test_another_source_or_unit_is_refused_and_changes_nothing(source, tmp_path):
    out = tmp_path / "out"
    begin(out, source)
    before = content(out)
    for options, words in ((dict(limit=3), "source.limit"), (dict(field="body"), "source.field")):
        with says(words):
            begin(out, source, **options)
    source.write_text(source.read_text().replace("text 13", "text 31"))
    for resume in (True, False):
        with says("source.sha256"):
            begin(out, source, resume=resume)
    assert content(out) == before


def test_more_units_than_a_plan_holds_are_one_line(source, tmp_path, monkeypatch):
    monkeypatch.setattr(plan.boundary, "LIMIT", 4096 + 300)
    with says("14 units are more than a plan holds; make units larger"):
        begin(tmp_path / "out", source, unit=1)


def test_pending_is_what_has_no_commit(source, tmp_path):
    with says("holds no run yet"):
        pending(tmp_path / "out")
    out = tmp_path / "out"
    begin(out, source)
    assert pending(out) == [0, 1, 2, 3, 4]
    stores.write(out, stores.ROWS, finish=False, skip=(1, 3), claim=False)
    assert pending(out) == [1, 3]
    assert pending(out, (1, 2)) == [1, 3]
    assert pending(out, (0, 2)) == []
    assert pending(out, (3, 4)) == [3]
    assert not finish(out)
    shard = out / "units" / "000" / "000002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert pending(out) == [1, 2, 3]
    stores.write(out, stores.ROWS, finish=False, claim=False)
    assert finish(out)
    before = content(out)
    assert finish(out)  # twice is once
    assert pending(out) == []
    assert content(out) == before
    for wrong in ((2, 2), (-1, 2), (0,), "01", (0.0, 1), 3):
        with says("shard"):
            pending(out, wrong)


def test_what_is_read_in_order_has_no_plan(tmp_path):
    out = tmp_path / "out"
    assert begin(out, (x for x in ["a", "b"])) is None
    assert [p.name for p in out.iterdir()] == ["run.json"]
    with says("is not known yet: its source is read in order, and has not been read to its end yet"):
        pending(out)
    stores.write(out, stores.ROWS, claim=False)
    assert pending(out) == []


CLAIM = """
import sys, time
from llama_jax.plumbing.errors import UserError
from tests.activations.test_plan import fingerprint, plan, open_folder, open_source
out, source, start, different = sys.argv[1:]
source = open_source(source)
while time.time() < float(start):
    pass
try:
    plan.begin(open_folder(out), source, 3, lambda about: fingerprint(about) | {"other": different}, True)
except UserError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("different", [False, True])
def test_many_that_begin_at_once(different, source, tmp_path):
    """All of the same run succeed; of two runs one does, and the other is refused by one line."""
    begin(tmp_path / "alone", source)
    for attempt in range(1 + different):
        out, start = tmp_path / str(attempt), str(time.time() + 4)
        others = [spawn("-c", CLAIM, out, source, start, i % 2 if different else 0) for i in range(4)]
        errors = [finished(other).err for other in others]
        assert [other.returncode for other in others].count(0) == (2 if different else 4), errors
        refused = [error for error in errors if error]
        assert all("holds another run: other is" in error and error.count("\n") == 1 for error in refused), refused
        assert content(out).keys() == {"run.json", "plan.json"}
        assert (out / "plan.json").read_bytes() == (tmp_path / "alone" / "plan.json").read_bytes()
