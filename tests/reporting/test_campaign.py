"""Everything in order: what is due, how long it takes, and that it goes on where it stopped."""

import json

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import provenance, record
from llama_lab.bench.seal import sealed
from llama_lab.reporting import campaign, headline, notebooks
from llama_lab.reporting.campaign import Step
from llama_lab.reporting.notebooks import Result


def leave(out, name, code="llama_lab.experiments.kv_cache.measure", wall_s=90.0):
    """What a step that was measured leaves."""
    for path in campaign.tables_of(name, out):
        notes = [dict(process=1, watch=dict(wall_s=wall_s))]
        record.write(path, [], environment={}, processes=notes, code=provenance.describe([code]))
    return Result(name, True, 1.0, [], "Found.", "")


def test_everything_that_has_a_table_is_a_step_in_the_order_of_reading(tmp_path):
    names = [step.name for step in campaign.steps((), "quick", tmp_path)]
    assert names[:2] == [headline.NAME, "01-what-may-be-jitted"]
    assert not [name for name in names if name[:2] in ("18", "19") or name == "00-start-here"]
    assert [step.name for step in campaign.steps(("4", "06"), "full", tmp_path)] == ["04-kv-cache", "06-fewer-bits"]


@pytest.mark.parametrize(
    ("only", "profile", "words"),
    [
        ("77", "quick", "Nothing named '77' can be measured"),
        ("19", "quick", "make gpu"),
        ("04", "ful", "profile is 'ful'"),
    ],
)
def test_what_does_not_exist_is_named(only, profile, words, tmp_path):
    with pytest.raises(UserError, match=words):
        campaign.steps((only,), profile, tmp_path)


def test_minutes_are_kept_and_ones_own_come_first(tmp_path):
    (step,) = campaign.steps(("04",), "quick", tmp_path)
    campaign.keep_time(tmp_path, "04-kv-cache", "quick", step.minutes + 3)
    campaign.keep_time(tmp_path, "04-kv-cache", "full", 99.94)
    assert campaign.steps(("04",), "quick", tmp_path)[0].minutes == pytest.approx(step.minutes + 3)
    assert campaign.steps(("04",), "full", tmp_path)[0].minutes == 99.9
    assert (tmp_path / "data" / "minutes.csv").read_text().startswith("name,profile,minutes\n04-kv-cache,full,99.9\n")


def test_the_plan_is_said_first():
    due = [Step("a", 4.0), Step("b", 9.6), Step("c", 5.0, "2026-01-01 10:00")]
    first, *rest = campaign.lines(due)
    assert first.startswith("about 14 min for 2 of 3 parts")
    assert rest == ["  a: about 4 min", "  b: about 10 min", "  c: measured 2026-01-01 10:00"]
    assert campaign.lines(due[2:])[0].startswith("all 1 parts are measured")


def test_what_was_interrupted_goes_on_and_what_is_done_is_left(tmp_path, monkeypatch):
    measured = []

    def measure(name, profile, out_dir, rest):
        measured.append(name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return leave(out_dir, name)

    monkeypatch.setattr(campaign, "measure", measure)
    wanted = ("04", "17")
    with pytest.raises(KeyboardInterrupt):
        campaign.run(campaign.steps(wanted, "quick", tmp_path), "quick", tmp_path, lambda line: None)
    steps = campaign.steps(wanted, "quick", tmp_path)
    assert [bool(step.done) for step in steps] == [True, False]
    assert steps[0].minutes == 1.5  # that its processes took, though this run was shorter
    results = campaign.run(steps, "quick", tmp_path, lambda line: None)
    assert measured == ["04-kv-cache", "17-growth", "17-growth"]
    assert [result.ok for result in results] == [True]
    assert all(step.done for step in campaign.steps(wanted, "quick", tmp_path))
    assert not campaign.steps(("04",), "full", tmp_path)[0].done  # other parameters


def test_neither_a_failure_nor_a_table_of_other_code_is_a_step_that_is_done(tmp_path, monkeypatch):
    def measured(result):
        monkeypatch.setattr(campaign, "measure", result)
        campaign.run(campaign.steps(("04",), "quick", tmp_path), "quick", tmp_path, lambda line: None)
        return bool(campaign.steps(("04",), "quick", tmp_path)[0].done)

    assert not measured(lambda *rest: Result("04-kv-cache", False, 1.0, [], "", "cell 3 failed"))
    assert measured(lambda name, profile, out, rest: leave(out, name))
    path = record.meta_path(tmp_path / "data" / "04-kv-cache.csv")
    about = json.loads(path.read_text())
    about["code"]["modules"]["llama_jax.generate"] = "0" * 12
    path.write_text(json.dumps(sealed(about)))
    assert not campaign.steps(("04",), "quick", tmp_path)[0].done


def test_a_notebook_is_run_with_its_profile(tmp_path, monkeypatch):
    def run(selected, source, profile, out_dir, progress):
        progress("04-kv-cache: block 1: step (1/9) (3 s)")
        return [(selected, source, profile, out_dir)]

    monkeypatch.setattr(notebooks, "run", run)
    rest = campaign.Remaining({"04-kv-cache": 1.0}, lambda line: None)
    asked = campaign.measure("04-kv-cache", "full", tmp_path, rest)
    assert asked == (["04-kv-cache"], "measure", "full", tmp_path)
    assert rest.what == "block 1: step (1/9) (3 s)"
