"""Runs by command, engine beside engine: what is asked of each, what does not count, and what the rows say."""

from dataclasses import replace

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench.journal import Journal
from llama_lab.experiments.activation_extraction import simulation, workers, workers_table
from llama_lab.experiments.activation_extraction.workers import (
    CHILDREN,
    ONE,
    OVERHEAD,
    RAY,
    SCALING,
    SMALL,
    UNIT,
    Run,
    Workers,
)

PLAN = Workers(
    model=SMALL,
    seed=0,
    batch=2,
    length=16,
    workers=(1, 2),
    worker_unit=2,
    worker_examples=4,
    worker_starts=2,
    unit_sizes=(1, 4),
    unit_examples=256,
)


def row(subject=ONE, n=1, block=0, run=SCALING, **changes):
    made = Run(
        run=run, block=block, order=0, process=1, seed=0, phase="warm", valid=True, subject=subject, model="m",
        weights_hash="w", workers=n, unit=8, units=10, tokens=1000, bytes=10, wall_ns=10**9, start_ns=5 * 10**9,
        sha256="d",
    )  # fmt: skip
    return made.model_copy(update=changes)


def measured(blocks=6, seed=0):
    """Two workers make 1.5 times as much; a unit costs 10, 20 and 30 ms of a worker."""
    draw = np.random.default_rng(seed)
    rows = []
    for block in range(blocks):
        luck = [round(10**9 * (1 + 0.01 * draw.random())) for _ in range(4)]
        rows += [row(ONE, 1, block, wall_ns=luck[0]), row(CHILDREN, 2, block, wall_ns=luck[1] * 2 // 3)]
        rows += [row(RAY, n, block, wall_ns=luck[2] * 2 // (n + 1)) for n in (1, 2)]
        rows += [row(ONE, 1, block, UNIT, wall_ns=luck[3] // 10) for _ in range(9)]
        for milliseconds, subject in ((10, ONE), (20, CHILDREN), (30, RAY)):
            n = 1 if subject == ONE else 2
            for units in (2, 100):
                wall = 10**9 + units * milliseconds * 10**6 // n
                rows.append(row(subject, n, block, OVERHEAD, units=units, wall_ns=wall))
    return rows


def test_what_is_asked_of_each_engine(monkeypatch):
    monkeypatch.setattr(workers, "find_spec", lambda name: True)
    asked = PLAN.kinds
    assert [(k.subject, k.workers) for k in asked if k.run == SCALING] == [(ONE, 1), (CHILDREN, 2), (RAY, 1), (RAY, 2)]
    small = [(k.subject, k.workers, k.unit) for k in asked if k.run == OVERHEAD]
    assert small == [(s, n, u) for u in (32, 128) for s, n in ((ONE, 1), (CHILDREN, 2), (RAY, 2))]
    assert [k.options for k in asked[:3]] == [{"processes": 1}, {"processes": 2}, {"engine": "ray", "processes": 1}]
    monkeypatch.setattr(workers, "find_spec", lambda name: None)
    assert {k.subject for k in PLAN.kinds} == {ONE, CHILDREN}


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Commands that are not run: what each was asked, and what it wrote."""
    asked = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.tempdir", None)

    def extracted(examples, folder, options, limit):
        asked.append(options)
        units = 3
        for number in range(units):
            path = folder / "store" / "units" / "000" / f"{number:06d}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("other" if options.get("engine") and options["unit"] == 2 else "{}")
        report = dict(units=units, tokens=90, bytes=5, seconds=2.0, complete=options["unit"] != 128)
        failed = options["processes"] == 2 and not options.get("engine")
        return ({}, "no room", 1.0) if failed else (report, "", 7.0)

    monkeypatch.setattr(workers, "extracted", extracted)
    monkeypatch.setattr(workers, "find_spec", lambda name: True)
    return asked


def test_every_run_leaves_its_row_and_what_does_not_count_says_why(ran):
    journal = Journal(kind=Run)
    rows = list(PLAN.record(journal)[0])
    assert len(ran) == PLAN.worker_starts * len(PLAN.kinds)
    good = [t for t in rows if t.valid and t.run == SCALING]
    assert {(t.subject, t.tokens, t.wall_ns, t.start_ns) for t in good} <= {
        (ONE, 90, 2 * 10**9, 5 * 10**9), (RAY, 90, 2 * 10**9, 5 * 10**9),
    }  # fmt: skip
    assert len({t.subject for t in good}) == 1  # whoever came first; the other wrote other bytes
    void = {t.reason for t in rows if not t.valid}
    assert void == {"no room", "not all units are committed", "wrong: other bytes than the first run wrote"}
    assert {t.wrong for t in rows if t.reason.startswith("wrong")} == {True}
    of_one = [t for t in rows if t.run == UNIT]
    assert len(of_one) == 2 * sum(t.subject == ONE for t in good)
    assert all(t.wall_ns >= 0 for t in of_one)
    assert PLAN.record(journal)[0] == rows  # an interrupted run goes on: nothing is measured again


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(unit_sizes=[2, 2]), "two different numbers"),
        (dict(unit_sizes=[0, 2]), "two different numbers"),
        (dict(workers=[0]), r"workers\[0\] is 0"),
        (dict(worker_starts=0), "worker_starts is 0"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(change, words):
    with pytest.raises(UserError, match=words):
        replace(PLAN, **change).record()


def test_the_command_is_run_and_a_failure_is_its_line(tmp_path):
    options = dict(sites="q:0", model=SMALL)
    report, why, seconds = workers.extracted([[1, 2, 3], [4]], tmp_path, options, 60)
    assert (report["tokens"], report["complete"], why) == (4, True, "")
    assert seconds > report["seconds"]
    report, why, _ = workers.extracted([[1]], tmp_path, options | dict(sites="nowhere:0"), 60)
    assert report == {}
    assert "nowhere" in why
    assert workers.extracted([], tmp_path, options, 0.01)[1] == "stopped after 0.01 s"


def test_rates_and_overheads_are_found_again():
    rows = measured()
    found = {(e["subject"], e["workers"]): e for e in workers_table.scaled(rows)}
    assert found[RAY, 2]["ratio"].value == pytest.approx(1.5, rel=0.02)
    assert found[ONE, 1]["rate"].n == 6
    costs = workers_table.overheads(rows)
    assert {name: cost.median for name, cost in costs.items()} == pytest.approx(
        {ONE: 0.010, CHILDREN: 0.020, RAY: 0.030}, rel=1e-6
    )
    void = [t.model_copy(update=dict(valid=False)) for t in rows]
    assert workers_table.scaled(void) == []
    assert workers_table.overheads(void) == {}
    assert workers_table.fleets(void) == []


def test_a_unit_of_the_smallest_size_has_the_share_that_is_asked_for():
    tokens = workers_table.smallest(0.02, 1500.0, 0.02)
    assert 0.02 / (0.02 + tokens / 1500.0) == pytest.approx(0.02)  # overhead over the whole time of a unit
    assert workers_table.smallest(-0.001, 1500.0) == 0


@pytest.fixture
def few(monkeypatch):
    """A simulation of seconds less."""
    monkeypatch.setattr(workers_table, "FLEET", (1, 10, 100))
    monkeypatch.setattr(workers_table, "FLEET_UNITS", 300)
    monkeypatch.setattr(workers_table, "FLEET_SEEDS", 2)


def test_a_fleet_is_drawn_from_what_was_measured(few, monkeypatch):
    seen = []
    monkeypatch.setattr(
        workers_table, "simulate", lambda fleet, seed: seen.append(fleet) or simulation.simulate(fleet, seed)
    )
    found = workers_table.fleets(measured(2))
    assert [e["workers"] for e in found] == [1, 10, 100] * 3
    assert all(len(e["shares"]) == 2 and 0 < share <= 1 for e in found for share in e["shares"])
    fleet = replace(seen[-1], rate=0.0)
    assert fleet.starts == [5.0] * 4  # of Ray: four commands
    assert len(fleet.durations) == 18
    assert fleet.overhead == pytest.approx(0.030)
    assert {round(3600 * one.rate, 3) for one in seen} == {0.0, 0.125, 1.0}
    assert workers_table.simulated([dict(shares=[0.5, 0.75]), dict(shares=[0.2, 0.25])]) == (
        "SIMULATED: each share is the median of 2 runs, which differ by up to 0.25."
    )
    assert workers_table.simulated([]).startswith("No fleet was simulated")
