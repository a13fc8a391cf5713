"""Each rule is broken once, and only that rule says so."""

import numpy as np
import pytest

from llama_lab.experiments.honest_measurement import checklist
from tests.bench.test_record import trial

NAMES = ("step", "step (again)", "loop")


def good():
    noise = np.random.default_rng(0).normal(0, 0.3, (6, 3))
    return [
        trial(n, b, (10, 20, 40 + noise[b, i]), live_buffers_before=9, live_buffers_after=9)
        for b in range(6)
        for i, n in enumerate(NAMES)
    ]


def broken(trials):
    return [r["rule"] for r in checklist.examine(trials) if not r["kept"]]


def change(where, **update):
    return [t.model_copy(update=update) if where(t) else t for t in good()]


def test_a_good_run_keeps_every_rule():
    assert broken(good()) == []
    assert [r["rule"] for r in checklist.examine(good())] == list(checklist.RULES)


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
        (change(lambda t: (t.subject, t.block) == ("loop", 0), reason="wrong: token 0 is 1"), "the same tokens"),
        ([t for t in good() if (t.subject, t.block) != ("loop", 5)], "interleaved"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule_notices_its_own_breach(trials, rule):
    assert broken(trials) == [rule]


def test_what_was_not_checked_is_not_kept():
    once = [t.model_copy(update=dict(process=t.block)) for t in good()]
    found = next(r for r in checklist.examine(once) if r["rule"] == "loaded once")
    assert (found["kept"], found["evidence"]) == (False, "not checked: no process has two trials of a subject")


def test_a_control_that_differs_is_noticed():
    slower = change(lambda t: t.subject == "step (again)", token_times_ns=[10**7, 2 * 10**7, 6 * 10**7])
    assert broken(slower) == ["an A/A control that finds no difference"]
    assert broken([t for t in good() if t.subject != "step (again)"]) == ["an A/A control that finds no difference"]


def test_cold_starts_are_not_timed_trials():
    assert broken([*good(), trial("loop", phase="cold", lowered=3, compiled=3)]) == []
