"""Charts of compile costs: drawn in style, and they say what is in the rows, also where little is."""

import numpy as np
import pytest

from llama_lab.experiments.compile_time import chart, table
from tests.experiments.compile_time.test_measure import row, slots, sweep
from tests.experiments.compile_time.test_starts import trials
from tests.figures.drawn import assert_drawn
from tests.figures.drawn import words as drawn_words

WAYS = [("step", "cold"), ("step", "serialised"), ("eager", "cold"), ("layer", "cold")]
PAIRS = [
    (("step", "cold"), ("eager", "cold")),
    (("step+scan", "cold"), ("step", "cold")),
    (("layer", "cold"), ("eager", "cold")),
]
DRAW = {
    "stages": lambda r, t: chart.compile_stages(r),
    "sizes": lambda r, t: chart.compile_sizes(r),
    "starts": lambda r, t: chart.compile_starts(t),
    "break-even": lambda r, t: chart.paid_back(t, WAYS, PAIRS),
    "surprises": lambda r, t: chart.compile_surprises(r, t),
    "bfloat16": lambda r, t: chart.bfloat16(t),
}


def words(figure):
    labels = (label.get_text() for axes in figure.axes for label in (*axes.get_yticklabels(), axes.yaxis.label))
    return " ".join([drawn_words(figure), *(axes.get_title(loc="left") for axes in figure.axes), *labels])


@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("much", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_chart_is_drawn_of_nothing_of_one_row_and_of_all(tmp_path, name, much):
    if much:
        assert_drawn(DRAW[name]([*sweep(), *slots()], trials()), tmp_path)
    else:
        DRAW[name]([], [])
        DRAW[name]([row(temp_bytes=None)], trials(1)[:1])


def test_the_charts_say_what_the_rows_say():
    rows = [*sweep(), *slots()]
    for text in ("unrolled: 50 ms a layer", "scanned: 5 ms a layer", "compile: 40.0 ms a layer", "6 in all"):
        assert text in words(chart.compile_stages(rows))
    for text in ("cold (n = 3)", "3.10 s", "2.35 s", "2.20 s"):
        assert text in words(chart.compile_starts(trials()))
    for text in ("19 tokens [", "never", "n ≥ 3 starts each", "step, serialised"):
        assert text in words(chart.paid_back(trials(), WAYS, PAIRS))
    for text in ("no valid trial", "0.67x [", "of step", "n = 4"):
        assert text in words(chart.compile_surprises(rows, trials()))


def test_a_title_claims_no_break_even_that_the_starts_leave_open():
    step, scan, eager = ("step", "cold"), ("step+scan", "cold"), ("eager", "cold")
    open_ = table.BreakEven(0, 0, table.NEVER, 1.0, 0.1, 4, 8)
    late = table.BreakEven(19, 12, 40, 1.0, 0.1, 4, 8)
    assert chart.ahead({(step, eager): open_, (scan, eager): late}) == (
        "step+scan cold is ahead of eager after 19 tokens [12, 40]; "
        "4 starts do not decide when step cold is ahead of eager"
    )


def test_the_bars_of_a_start_end_where_its_first_token_is():
    axes = chart.compile_starts(trials()).axes[0]
    ends = {round(bar.get_y() + bar.get_height() / 2): bar.get_x() + bar.get_width() for bar in axes.patches}
    expected = [
        np.mean([s.to_first_ns / 1e9 for s in table.of_start(trials(), "step", way).values()])
        for way in ("serialised", "cached", "cold")
    ]
    assert [ends[i] for i in range(3)] == pytest.approx(expected)
