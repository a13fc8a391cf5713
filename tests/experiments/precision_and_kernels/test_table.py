"""What the rows of a contest say: lines of the table, goals, the sentence."""

import numpy as np
import pytest

from llama_jax.bench.statistics import Ratio
from llama_jax.experiments.precision_and_kernels import finding, goals, table
from llama_jax.experiments.precision_and_kernels.goals import ABSENT, MISSED, REACHED, UNDECIDED, Goal
from llama_jax.experiments.precision_and_kernels.reading import ALL, PROSE
from llama_jax.experiments.time_to_first_token import same_file
from tests.experiments.precision_and_kernels.race import MISSING, NAMES, NOTES, entries_of, firsts, race
from tests.experiments.precision_and_kernels.test_reading import readings


def judged(made, names=NAMES, rows=None, notes=NOTES, contexts=(256, 1024)):
    rows = readings() if rows is None else rows
    return {g.about: g for g in goals.judge(made, entries_of(made, names, contexts), rows, notes)}


def only(found, *words):
    (goal,) = [g for about, g in found.items() if all(word in about for word in words)]
    return goal


def test_an_entry_joins_rate_bandwidth_memory_and_quality():
    at = {e["name"]: e for e in entries_of(race())[256]}
    fused = at["loop+fused"]
    assert fused["decode"].median == pytest.approx(450, rel=0.02)
    assert fused["mbu"].median == pytest.approx(0.9, rel=0.02)  # 450 tokens/s of 100 MB at 50 GB/s
    assert fused["peak"] == [380e6, 381e6, 382e6]
    assert fused["distance"][ALL]["kl"] == pytest.approx(0.003, rel=0.1)
    assert fused["distance"][PROSE]["text"] == PROSE
    assert at["loop"]["distance"][ALL]["kl"] == 0
    assert at["llamacpp+q4_0"]["distance"][ALL]["kl"] == pytest.approx(0.3, rel=0.1)  # its own, not that of the file
    assert {e["decode"].n for e in at.values()} == {8}  # of one context
    assert entries_of(race())[1024][0]["decode"].median == pytest.approx(50, rel=0.02)


def test_who_is_compared_with_whom():
    found = entries_of(race())[256]
    assert table.rival(found, same_file=True)["name"] == "llamacpp"
    assert table.rival(found, same_file=False)["name"] == "llamacpp+q4_0"
    assert table.fastest(found)["name"] == "loop+fused"
    assert table.read_as("llamacpp+generate") == "llamacpp"


def test_the_tables_hold_every_subject():
    made = race()
    frame = table.as_frame(entries_of(made)[256], made, 256)
    assert list(frame.index) == NAMES
    assert frame.loc["loop+fused", "over llama.cpp"] == pytest.approx(3.0, rel=0.02)
    assert frame.loc["loop", "KL"] == 0
    assert len(table.distance_frame(readings())) == 7 * 3
    without = table.as_frame(entries_of(made, read=False)[256], made, 256)
    assert without["KL"].isna().all()


def test_goals_that_are_reached():
    found = judged(race())
    assert {g.verdict for g in found.values()} == {REACHED}, {g.about: (g.verdict, g.measured) for g in found.values()}
    assert only(found, "loop+gemv over", "context 256").value == pytest.approx(1.4, rel=0.02)
    assert only(found, "loop+gemv over", "context 1024").value == pytest.approx(150 / 130, rel=0.02)
    assert only(found, "loop+fused over", "quantisation", "llamacpp+q4_0").value == pytest.approx(450 / 240, rel=0.02)
    assert only(found, "peak resident").value == pytest.approx(382 / 250)  # the worst pair
    assert only(found, "first use").value == pytest.approx(8.2)
    assert len(found) == 15
    assert list(goals.as_frame(list(found.values())).columns) == ["aim", "measured", "n", "verdict"]


@pytest.mark.parametrize(
    ("slower", "words"),
    [
        ({"loop+gemv": 1.2}, ("loop+gemv over", "256")),
        ({"loop+gemv": 1.2}, ("loop+gemv over", "1024")),
        ({"loop+fused": 1.3}, ("loop+fused over", "mode of this file")),
        ({"step+fused": 1.2}, ("step+fused over",)),
        ({"llamacpp+q4_0": 0.8}, ("quantisation of this model",)),
        ({"loop+fused": 1.3}, ("bytes read",)),
    ],
)
def test_goals_that_are_missed(slower, words):
    goal = only(judged(race(slower=slower)), *words)
    assert goal.verdict == MISSED, goal.measured


def test_goals_of_memory_compiling_and_quality_can_be_missed():
    made = race()
    heavy = [t.model_copy(update=dict(peak_rss_bytes=600 * 10**6)) if t.run == "memory loop+fused" else t for t in made]
    assert only(judged(heavy), "peak resident").verdict == MISSED
    slow = [
        {**n, "kernels": {**n["kernels"], "seconds": 20 * n["kernels"]["seconds"]}} if "kernels" in n else n
        for n in NOTES
    ]
    found = judged(made, notes=slow)
    assert (only(found, "first use").verdict, only(found, "later starts").verdict) == (MISSED, MISSED)
    worse = dict(kl_pnat=lambda kl: 2 * kl, nll_pnat=lambda nll: nll + 10**10, agree=lambda same: 0)
    far = [
        r.model_copy(update={what: [change(v) for v in getattr(r, what)] for what, change in worse.items()})
        if r.subject == "loop+fused"
        else r
        for r in readings()
    ]
    found = judged(made, rows=far)
    assert {only(found, what, "loop+fused over").verdict for what in ("KL", "top-1", "perplexity")} == {MISSED}
    assert only(found, "KL", "loop+gemv").verdict == REACHED


def test_what_was_not_measured_is_said_to_be_so():
    names = ["loop", "llamacpp"]
    found = judged(race(names), names, rows=readings(names), notes=[])
    assert {g.verdict for g in found.values()} == {ABSENT}
    assert {g.measured for g in found.values()} == {""}
    one = judged(race(blocks=1))
    assert only(one, "step+fused over").verdict == UNDECIDED  # a single pair has no interval
    assert not [about for about in judged(race(contexts=(256,)), contexts=(256,)) if "1024" in about]


@pytest.mark.parametrize(
    ("least", "low", "high", "noise", "verdict"),
    [
        (True, 1.1, 1.2, False, REACHED),
        (True, 0.9, 1.1, False, UNDECIDED),
        (True, 0.8, 0.9, False, MISSED),
        (False, 0.8, 0.9, False, REACHED),
        (False, 0.9, 1.1, False, UNDECIDED),
        (False, 1.1, 1.2, False, MISSED),
        (True, 0.9, 1.1, True, REACHED),
        (True, 0.8, 0.9, True, MISSED),
        (False, 0.9, 1.1, True, REACHED),
        (False, 1.1, 1.2, True, MISSED),
        (True, 1.0, 1.0, False, REACHED),
        (True, np.nan, np.nan, False, UNDECIDED),
    ],
)
def test_verdicts(least, low, high, noise, verdict):
    assert Goal("x", 1.0, least, 1.0, low, high, 5, noise=noise).verdict == verdict


def test_the_sentence():
    made = race()
    entries = entries_of(made)
    found = list(judged(made).values())
    said = finding.precision(made, entries, found, MISSING)
    assert said.startswith("At context 256 the fastest placement, loop+fused on q4_1 weights, decodes 4")
    assert "90% of what the bandwidth allows: 2.9" in said or "90% of what the bandwidth allows: 3.0" in said
    assert "of its fastest quantisation (llamacpp+q4_0 on q4_0 weights)" in said
    assert "of 15 goals set beforehand 15 are reached" in said
    assert said.endswith("llamacpp+q8_0 was not measured here.")
    slow = race(slower={"loop+fused": 1.3})
    said = finding.precision(slow, entries_of(slow), list(judged(slow).values()), [])
    assert (
        "missed: loop+fused over llama.cpp's fastest mode of this file (llamacpp) at context 256 (≥ 2.5x: 2.3" in said
    )


@pytest.mark.parametrize(
    ("slower", "words"),
    [
        (
            {},
            "; step+gemv's first token comes before llama.cpp's at 10 and 100 prompt tokens; of 17 goals set"
            " beforehand 17 are reached",
        ),
        (
            {("step+gemv", 100): 1.6},
            "; step+gemv's first token comes before llama.cpp's at 10, comes after llama.cpp's at 100 prompt"
            " tokens; of 17 goals set",
        ),
        ({("step+gemv", 10): 20 / 18}, "comes before llama.cpp's at 100, is undecided at 10 prompt tokens;"),
    ],
)
def test_the_sentence_says_whose_first_token_is_sooner(slower, words):
    made, rows, races = race(), readings(), same_file.races(firsts(slower=slower))
    entries = entries_of(made)
    found = goals.judge(made, entries, rows, NOTES, races=races)
    assert words in finding.precision(made, entries, found, MISSING, races=races)


def test_the_sentence_where_there_is_little():
    made = race(["loop"], blocks=1)
    entries = entries_of(made, ["loop"], read=False)
    said = finding.precision(made, entries, list(judged(made, ["loop"], rows=[], notes=[]).values()), [])
    assert said.endswith("; no goal was measured.")
    assert "nan" not in said
    races = same_file.races(firsts(("step",)))
    found = goals.judge(made, entries, [], [], races=races)
    assert "first token" not in finding.precision(made, entries, found, [], races=races)
    void = [t.model_copy(update=dict(valid=False, reason="wrong: token 1")) for t in made]
    assert "nothing to compare" in finding.precision(void, entries_of(void, ["loop"], read=False), [], [])


def test_an_unsteady_run_decides_nothing():
    """Pairs that spread more than the effect: the interval alone would say that the goal is reached."""
    rough = Ratio(value=1.4, low=1.35, high=1.45, n=20, spread=2.0)
    calm = Ratio(value=1.4, low=1.35, high=1.45, n=20, spread=0.02)
    assert [goals.of_interval("a rate", 1.3, True, found).verdict for found in (rough, calm)] == [UNDECIDED, REACHED]
