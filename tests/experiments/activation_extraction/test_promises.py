"""What the plan promised beside made-up rows: its six changes and no other, each over the rung before it, and its
budget."""

import pytest

from llama_lab.bench.frames import show
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.activation_extraction import promises, rungs
from llama_lab.experiments.activation_extraction.passes import STAGES
from tests.experiments.activation_extraction.test_table import SECONDS, made, measured

SIX = {  # in the order of the plan: promised, and what the made-up rows give
    "jit of the extraction": ("5x to 10x", 24 / 8),
    "asynchronous copies": ("2x to 3x", 1),
    "fixed batches": ("2x", 1.5 / 2),
    "pipelining": ("1.5x to 2x", 1 / 0.9),
    "vmap": ("1.5x", 1),
    "scan over batches": ("1.3x", 2 / 2.2),
}


def test_the_six_changes_are_those_of_the_plan_each_beside_what_it_gained():
    frame = show(promises.changes(measured()), promises.COLUMNS)
    assert list(frame.index[:6]) == list(SIX)
    assert rungs.PINNED not in frame["rung"].tolist()
    for change, (promised, factor) in SIX.items():
        row = frame.loc[change]
        assert (row["promised"], row["standing"]) == (promised, "document")
        assert float(row["measured"].split("x")[0]) == pytest.approx(factor, rel=0.02)
        assert "[" in row["measured"]
        assert SECONDS[row["over"]] / SECONDS[row["rung"]] == factor
    assert frame.loc["fixed batches", "programs"] == "10 → 1"  # what the promise is about
    together = frame.loc["`extract` over the plan's start"]
    assert together["promised"] == "4x to 7x; 10x to 20x"
    assert float(together["measured"].split("x")[0]) == pytest.approx(24 / 0.9, rel=0.02)


def test_a_change_without_rows_is_said_to_be_unmeasured_and_nothing_stands_in_for_it():
    rows = [row for row in measured(2) if row.subject not in (rungs.UNJITTED, rungs.VMAPPED)]
    frame = show(promises.changes(rows), promises.COLUMNS)
    absent = frame[frame["measured"] == promises.NOT_MEASURED]
    assert list(absent.index) == ["jit of the extraction", "vmap", "`extract` over the plan's start"]
    assert absent[["programs", "pairs"]].to_numpy().tolist() == [["", 0]] * 3


def test_the_plans_budget_stands_beside_ours_stage_by_stage():
    spent = [dict(zip(STAGES, (30.0, 10.0, 5.0, 5.0, 50.0), strict=True))] * 3
    frame = show(promises.budget(dict(processes=[dict(budget=spent)])), promises.BUDGET)
    assert list(frame.index) == [*STAGES, "all"]
    assert frame["published s"].dropna().tolist() == [0.3, 1.5, 0.5, 0.5, 2.8]
    assert frame["promised s"].dropna().tolist() == [0.3, 0.1, 0.05, 0.05, 0.5]
    assert frame["share of it"].dropna().sum() == pytest.approx(2, abs=0.01)
    assert frame["here ms"].tolist() == [30, 10, 5, 5, 50, 100]
    assert frame["share here"].tolist() == [0.3, 0.1, 0.05, 0.05, 0.5, 1]
    assert promises.budget({}) == []


PLANNED = dict(zip(promises.CHANGES, (5, 2, 2, 1.5, 1.5, 1.3), strict=True))  # the least that is promised
OPEN, LOST = Ratio(1.04, 0.9, 1.2, 3), Ratio(0.7, 0.6, 0.8, 3)


def planned(**ratios):
    """Entries of the six changes; all measured but jit, none near its promise, unless a ratio is given."""
    known = dict.fromkeys(promises.CHANGES, OPEN) | {"jit of the extraction": None, "fixed batches": LOST} | ratios
    return [dict(change=change, least=PLANNED[change], ratio=ratio) for change, ratio in known.items()]


def test_promises_that_no_interval_reaches_are_said_not_to_be_kept():
    assert promises.kept(planned()) == (
        "On warm passes here none of the 5 measured changes keeps its promise; each interval ends below it. Against"
        " the rung that it is added to, 1 is slower and 4 are undecided. Not measured: jit of the extraction."
    )
    said = promises.kept([dict(change="vmap", least=1.5, ratio=None)])
    assert said == "None of the 6 changes was measured."


def test_a_promise_is_kept_where_the_whole_interval_is_and_undecided_where_it_holds_the_least():
    said = promises.kept(planned(vmap=Ratio(1.7, 1.55, 1.9, 3), pipelining=Ratio(1.4, 1.2, 1.6, 3)))
    assert said.startswith(
        "Of the 5 changes measured here on warm passes, vmap keeps the promise; pipelining is undecided; asynchronous"
        " copies, fixed batches and scan over batches do not, as the interval ends below it. Against the rung that it"
        " is added to, 2 are faster, 1 is slower and 2 are undecided."
    )
    alone = promises.kept([dict(change="vmap", least=1.5, ratio=Ratio(1.6, float("nan"), float("nan"), 1))])
    assert alone.startswith("Of the 1 change measured here on warm passes, vmap is undecided.")


def test_first_passes_say_whether_fixed_batches_keep_their_promise_where_compilation_counts():
    before, after = (made(name, phase="cold") for name in (rungs.FIRST, rungs.FIXED))  # 1.5 s and 2 s
    slow = before.model_copy(update=dict(wall_ns=5 * 10**9))
    said = "first passes under fixed batches were 2.5x as fast (5.0 → 2.0 s, n = 1), as promised (2x)."
    assert promises.first_passes([slow, after]) == f"With compilation, {said}"
    assert promises.first_passes([before, after]).endswith(", less than promised (2x).")
    assert promises.first_passes([before]) == ""
