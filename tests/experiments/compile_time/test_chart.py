"""Charts of compile costs: drawn in style, and they say what is in the rows, also where little is."""

import numpy as np
import pytest

from llama_lab.experiments.compile_time import chart, table
from tests.experiments.compile_time.test_measure import row, slots, sweep
from tests.experiments.compile_time.test_starts import trials
from tests.figures.drawn import assert_drawn
from tests.figures.drawn import words as drawn_words

DRAW = {
    "stages": lambda r, t: chart.compile_stages(r),
    "sizes": lambda r, t: chart.compile_sizes(r),
    "starts": lambda r, t: chart.compile_starts(t),
    "surprises": lambda r, t: chart.compile_surprises(r),
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
    for text in ("unrolled: 50 ms per layer", "scanned: 5 ms per layer", "compile: 40.0 ms", "6 in all"):
        assert text in words(chart.compile_stages(rows))
    for text in (
        "cold (n = 3)",
        "3.10 s",
        "2.35 s",
        "2.20 s",
        "2.35 s",
        "76% [",
        "measured: 1.00 s cold, ",
        "Cached and serialised starts take 76% and 71% of a cold start's time to first token, loading of weights set",
    ):
        assert text in words(chart.compile_starts(trials()))
    narrow = dict(placement="step+bf16", subject="step+bf16")
    halved = chart.bfloat16([*trials(), *(t.model_copy(update=narrow) for t in trials() if t.subject == "step")])
    for text in ("no valid pairs", "n = 4\n10 → 10 tok/s"):
        assert text in words(halved)
    for text in ("At 1,024 slots", "step+scan: 1.02 MB", "weights of one layer: 10 MB"):
        assert text in words(chart.compile_surprises(rows))


def test_the_title_of_sizes_says_what_scanning_does_to_size_and_rate():
    def said(few, step_ms, depth=16):
        times = dict(token_times_ns=[step_ms * 10**6 * (i + 1) for i in range(4)])
        return chart.what_scanning_does([row(depth=depth), row("step+scan", depth, instructions=few, **times)], depth)

    assert said(20, 20) == (
        "At 16 layers scanning cuts the program from 160 to 20 instructions, but it decodes 50 tokens/s instead of 100"
    )
    assert said(20, 5).endswith(", and it decodes 200 tokens/s instead of 100")
    assert said(30, 10, 2) == (
        "At 2 layers scanning takes the program from 20 to 30 instructions, and it decodes 100 tokens/s either way"
    )
    assert chart.what_scanning_does([row()], 2) == "The decode program was not compiled both ways"


def test_the_bars_of_a_start_end_where_its_first_token_is():
    axes = chart.compile_starts(trials()).axes[0]
    ends = {round(bar.get_y() + bar.get_height() / 2): bar.get_x() + bar.get_width() for bar in axes.patches}
    expected = [
        np.mean([s.to_first_ns / 1e9 for s in table.of_start(trials(), "step", way).values()])
        for way in ("serialised", "cached", "cold")
    ]
    assert [ends[i] for i in range(3)] == pytest.approx(expected)
