"""Each rule is broken once, and only that rule says so."""

import numpy as np
import pytest

from llama_lab.experiments.honest_measurement import checklist
from tests.bench.test_record import trial

NAMES = ("step", "step (again)", "loop")
META = dict(
    environment=dict(
        cpu="a", cores=2, ram_bytes=8 * 10**9, devices=["cpu:cpu"], os="b", python="3.11.7", packages=dict(jax="1"),
        settings={}, runtime={"division in a loop": "right"}, git=dict(commit="c" * 40, dirty=False),
        limits=dict(memory_bytes=None), watch=dict(others_cpu=0.01, steal=0.0, load_before=0.1),
    ),
    processes=[dict(affinity=[0, 1], settings={}, watch={})] * 2,
)  # fmt: skip


def good():
    noise = np.random.default_rng(0).normal(0, 0.3, (6, 3))
    warm = [
        trial(n, b, (10, 20, 40 + noise[b, i]), live_buffers_before=9, live_buffers_after=9)
        for b in range(6)
        for i, n in enumerate(NAMES)
    ]
    alone = dict(phase="cold", block=-1, lowered=2, compiled=2)
    return warm + [trial(n, process=9 + i, peak_rss_bytes=10**9, **alone) for i, n in enumerate(("step", "loop"))]


def broken(trials, meta=META):
    return [r["rule"] for r in checklist.examine(trials, meta) if r["kept"] != "yes"]


def around(**changes):
    """The meta with another environment."""
    return META | dict(environment=META["environment"] | changes)


def change(where, **update):
    return [t.model_copy(update=update) if where(t) else t for t in good()]


def test_a_good_run_keeps_every_rule():
    assert broken(good()) == []
    assert [r["rule"] for r in checklist.examine(good(), META)] == [*checklist.RULES, *checklist.AROUND]


@pytest.mark.parametrize(
    ("trials", "rule"),
    [
        (
            change(lambda t: (t.subject, t.block) == ("loop", 2), lowered=1, compiled=1),
            "warmed up at least as long as the test",
        ),
        (change(lambda t: t.subject == "loop", cache_slots=32), "equal configuration"),
        (
            [
                t.model_copy(update=dict(live_buffers_before=9 + t.block, live_buffers_after=10 + t.block))
                if t.subject == "loop"
                else t
                for t in good()
            ],
            "loaded once",
        ),
        ([t for t in good() if t.block < 4], "several trials"),
        (
            [t for t in good() if (t.subject, t.phase) != ("loop", "cold")],
            "memory of each subject in a process of its own",
        ),
        (change(lambda t: (t.subject, t.block) == ("loop", 0), reason="wrong: token 0 is 1"), "the same tokens"),
        ([t for t in good() if (t.subject, t.block) != ("loop", 5)], "interleaved"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule_notices_its_own_breach(trials, rule):
    assert broken(trials) == [rule]


def test_what_was_not_checked_is_not_kept():
    once = [t.model_copy(update=dict(process=t.block)) for t in good()]
    found = next(r for r in checklist.examine(once, META) if r["rule"] == "loaded once")
    assert (found["kept"], found["evidence"]) == ("not checked", "no process has two trials of a subject")


def test_a_control_that_differs_is_noticed():
    slower = change(lambda t: t.subject == "step (again)", token_times_ns=[10**7, 2 * 10**7, 6 * 10**7])
    assert broken(slower) == ["an A/A control that finds no difference"]
    assert broken([t for t in good() if t.subject != "step (again)"]) == ["an A/A control that finds no difference"]


def test_cold_starts_are_not_timed_trials():
    assert broken([*good(), trial("loop", phase="cold", lowered=3, compiled=3)]) == []


@pytest.mark.parametrize(
    ("meta", "rule", "evidence"),
    [
        (around(ram_bytes=10**9), "memory of each subject in a process of its own", "1.00 GB in a process"),
        (around(limits=dict(memory_bytes=10**9)), "memory of each subject in a process of its own", "of 1.0 GB"),
        (around(cpu="unknown"), "the environment recorded", "unknown: cpu"),
        (around(git=dict(commit="c", dirty=True)), "the environment recorded", "differs from its commit"),
        (around(git=dict(commit="unknown", dirty="unknown")), "the environment recorded", "git commit, git dirty"),
        (around(runtime={"division in a loop": "wrong: 1"}), "the environment recorded", "computes wrong values"),
        (
            META | dict(processes=[dict(settings={}), dict(settings={"XLA_FLAGS": "--a"})]),
            "the environment recorded",
            "processes differ",
        ),
        (around(watch=dict(others_cpu=0.3, steal=0.0)), "a machine that did nothing else", "others used 30 %"),
        (around(watch=dict(others_cpu=0.0, steal=0.2)), "a machine that did nothing else", "hypervisor took 20 %"),
        (around(watch=dict(others_cpu=0.0, steal=0.0, load_before=3.0)), "a machine that did nothing else", "load 3.0"),
        (around(watch=dict(others_cpu="unknown", steal=0.0)), "a machine that did nothing else", "does not say"),
    ],
)
def test_rules_about_the_machine_notice_their_own_breach(meta, rule, evidence):
    assert broken(good(), meta) == [rule]
    assert evidence in next(r["evidence"] for r in checklist.examine(good(), meta) if r["rule"] == rule)


def test_facts_that_are_missing_are_not_kept():
    """Each of those that are needed, one after the other."""
    for key in set(checklist.NEEDED) - {"settings"}:
        less = {name: value for name, value in META["environment"].items() if name != key}
        assert "the environment recorded" in broken(good(), META | dict(environment=less)), key
