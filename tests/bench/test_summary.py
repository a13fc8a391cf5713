"""The tally of rows, and the frame that shows it, on made-up trials whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from llama_lab.bench import AGAIN, frames, statistics, summary
from llama_lab.bench.statistics import Ratio, Verdict
from tests.bench.test_record import trial

GAPS = {"step": 20, "loop": 10, "step" + AGAIN: 20}  # milliseconds a token
ONE_WRONG = dict(valid=False, reason="wrong: token 0 is 1")


def race(blocks=8, processes=2, prompts=(4, 9), **changes):
    """Every subject at every prompt length; longer prompts make slower tokens, and so do later blocks."""
    return [
        trial(name, b, [50 + gap * (1 + n / 100 + b / 1000) * i for i in range(3)], process=b % processes)
        .model_copy(update=dict(prompt_tokens=n) | changes)
        for n in prompts
        for b in range(blocks)
        for name, gap in GAPS.items()
    ]  # fmt: skip


def by_name(frame):
    return {tuple(line[key] for key in ("tokens", "subject")): line for line in frame.to_dict("records")}


BY = dict(tokens="prompt_tokens", subject="subject")


def test_one_line_a_group_in_the_order_of_their_coming():
    rows = race()
    frame = summary.tally(rows, BY, dict(rate="tg", first=lambda t: 1e3 * t.ttft), quantiles=(50, 99))
    assert list(by_name(frame)) == [(n, name) for n in (4, 9) for name in GAPS]
    line = by_name(frame)[9, "loop"]
    mine = [t for t in rows if (t.subject, t.prompt_tokens) == ("loop", 9)]
    assert line["points"] == dict(rate=[t.tg for t in mine], first=[50.0] * 8)
    assert line["rate"] == statistics.summarise([t.tg for t in mine], clusters=[t.process for t in mine])
    assert (line["n"], line["void"], line["wrong"], line["rows"], line["first"].n) == (8, 0, False, mine, 8)
    assert (line["p50"], line["p99"]) == (np.median([t.tg for t in mine]), None)
    alone = summary.tally(rows, ("subject",), ("tg",), clusters=None).to_dict("records")[0]
    assert alone["tg"] == statistics.summarise([t.tg for t in rows if t.subject == "step"])


def test_void_rows_are_counted_and_give_reasons_but_no_values():
    rows = [t.model_copy(update=ONE_WRONG) if (t.subject, t.block) == ("loop", 2) else t for t in race()]
    line = by_name(summary.tally(rows, BY, ["tg"]))[4, "loop"]
    assert (line["n"], line["void"], line["tg"].n) == (7, 1, 7)
    assert (line["wrong"], line["reasons"]) == (True, ["wrong: token 0 is 1"])
    void = summary.tally([t.model_copy(update=ONE_WRONG) for t in rows], BY, ["tg"])
    assert {e["first"].reason for e in void.to_dict("records")} == {"wrong: token 0 is 1"}
    assert void["tg"].map(lambda rate: rate.n).sum() == 0


def test_wanted_groups_are_there_without_a_row_and_others_are_not():
    frame = summary.tally(race(), BY, ["tg"], order=[(9, "loop"), (5, "loop")])
    assert list(by_name(frame)) == [(9, "loop"), (5, "loop")]
    empty = by_name(frame)[5, "loop"]
    assert (empty["n"], empty["first"], empty["tg"].n, empty["reasons"]) == (0, None, 0, [])
    assert summary.tally([], BY, ["tg"]).empty


def test_a_ratio_is_paired_within_its_own_group_and_judged_against_the_control_there():
    rows = race()
    found = by_name(summary.tally(rows, BY, ["tg"], against="step"))
    for n in (4, 9):
        here = [t for t in rows if t.prompt_tokens == n]
        assert found[n, "loop"]["ratio"] == summary.paired_ratio(here, "loop", "step")
        assert found[n, "loop"]["ratio"].value == pytest.approx(2)
        assert found[n, "loop"]["ratio"].n == 8
        assert found[n, "step" + AGAIN]["ratio"] == summary.control(here)


def test_pairs_may_stand_at_other_places_and_be_of_other_values():
    rows = race(prompts=(4,))
    of_first = summary.paired_ratio(rows, "loop", "step", value=lambda t: 1 / t.ttft)
    assert of_first.value == pytest.approx(1)
    apart = summary.paired_ratio(rows, "loop", "step", place=lambda t: (t.process, t.block, t.subject.split()[0]))
    assert apart.n == 0


def test_a_ratio_of_times_is_faster_below_one():
    ratio = Ratio(0.5, 0.4, 0.6, 8)
    assert (ratio.verdict, statistics.of_times(ratio).verdict) == (Verdict.SLOWER, Verdict.FASTER)
    assert statistics.of_times(replace(ratio, value=1, low=0.99, high=1.01)).verdict == Verdict.EQUAL
    assert statistics.with_floor(statistics.of_times(ratio), Ratio(1, 0.9, 1.1, 8)).times
    assert f"{ratio.verdict}" == "slower"  # as tables, JSON and sentences have it


def test_the_table_pairs_by_block_and_leaves_void_blocks_out():
    trials = [trial("step", b, (10, 20, 30 + b)) for b in range(6)] + [
        trial("fast", b, (10, 15, 20 + b / 2), valid=b != 2) for b in range(6)
    ]
    rows = {r["name"]: r for r in summary.table(trials, "step")}
    assert rows["fast"]["ratio_to_baseline"]["n"] == 5
    assert rows["fast"]["ratio_to_baseline"]["value"] == pytest.approx(2.0)
    assert rows["fast"]["ratio_to_baseline"]["verdict"] == "faster"
    assert (rows["fast"]["valid_trials"], rows["fast"]["voided_trials"]) == (5, 1)
    assert rows["step"]["ratio_to_baseline"]["verdict"] == "baseline"


def line(name, rate, seconds):
    return {"name": name, "tokens_per_second": {"median": rate}, "compile": {"n": 1, "seconds": seconds}, "ttft_ms": 1}


@pytest.mark.parametrize(
    ("fast", "slow", "tokens"),
    [
        ((100, 3.0), (50, 1.0), 201.0),
        ((100, 1.0), (50, 3.0), 0.0),
        ((50, 3.0), (100, 1.0), None),
        ((50, 1.0), (100, 3.0), None),
    ],
)
def test_break_even(fast, slow, tokens):
    found = summary.break_even(line("a", *fast), line("b", *slow))
    assert found == (pytest.approx(tokens) if tokens is not None else None)


COLUMNS = frames.Columns(
    {
        "subject": "name",
        "tok/s": "rate.median",
        "MB": frames.scaled("bytes", 1e6),
        "P99": frames.percentile(99, "p99"),
        "compiled": "compile.n",
    },
    index="subject",
    digits={"tok/s": 1},
)


def test_a_frame_shows_what_its_columns_say():
    rate = statistics.Summary(3, 12.345, 1, 11, 13)
    entries = [
        dict(name="a", rate=rate, bytes=2_500_000, p99=None, compile=None),
        dict(name="b", rate=rate, bytes=None, p99=7.25, compile=dict(n=2)),
    ]
    frame = frames.show(entries, COLUMNS)
    assert list(frame.index) == ["a", "b"]
    assert list(frame.columns) == ["tok/s", "MB", "P99", "compiled"]
    assert frame.loc["a", "tok/s"] == 12.3
    assert frame.loc["a", "MB"] == 2.5
    assert list(frame["P99"]) == ["needs n ≥ 1,000", "7.2"]
    assert np.isnan(frame.loc["a", "compiled"])
    assert frames.show([], COLUMNS).empty
    with pytest.raises(KeyError, match="name"):
        frames.show([{}], COLUMNS)
