"""Charts of honest measurement say what was published and what counts, and are drawn in style."""

import pytest

from llama_lab.experiments.honest_measurement import chart, measure, simulation
from tests.experiments.honest_measurement.test_measure import cache_claim, first_token_claim, order_claim
from tests.figures.drawn import assert_drawn, words

SIMULATED = [
    dict(scenario=s, protocol=p, runs=9, coverage=0.9, aa_false_positive_rate=0.1, power=0.5)
    for s in ("base", "one process", "10 blocks")
    for p in ("ours", "naive")
]
THRESHOLDS = dict(
    coverage=simulation.COVERAGE, aa_false_positive_rate=simulation.FALSE_POSITIVES, power=simulation.POWER
)
DRAW = {  # name → (how it is drawn, what it says)
    "speed_ups": (
        lambda: chart.speed_ups(measure.speed_ups(cache_claim()), 60.0),
        (
            "published 16.32x (document)",
            "here 30.00x",
            "never published",
            "the ratio that counts",
            "memory-bandwidth limit 60",
        ),
    ),
    "first_tokens": (
        lambda: chart.first_tokens(measure.first_tokens(first_token_claim()), 50.0),
        (
            "76.04",
            "59.25",
            "mean 260 ms, 2.5 times the P99 below",
            "no p99: p99 needs 1,000 values, there are 100",
            "arithmetic limit 50 ms",
        ),
    ),
    "two_ways": (
        lambda: chart.two_ways(measure.two_ways(order_claim()), 10, "A 1, B 2"),
        ("1 of 1 rounds called different (x)", "0 of 1 rounds called different (x)"),
    ),
    "validation": (lambda: chart.validation(SIMULATED, THRESHOLDS), ("at least 93%", "at most 6%")),
}


def test_naive_timing_is_drawn_once_where_its_results_are_the_same():
    figure = chart.validation(SIMULATED, THRESHOLDS)
    marks = [line for line in figure.axes[1].lines if len(line.get_xdata())]
    naive, ours = ([line for line in marks if line.get_marker() == form] for form in "Xo")
    assert (len(naive), len(ours)) == (1, 2)
    rows = figure.axes[0]
    names = {at: label.get_text() for at, label in zip(rows.get_yticks(), rows.get_yticklabels(), strict=True)}
    assert names[round(float(naive[0].get_ydata()[0]))] == chart.ALONE
    assert any("always in one process" in text.get_text() for text in figure.legends[0].get_texts())


@pytest.mark.parametrize("name", DRAW)
def test_each_chart_says_what_was_published_and_what_counts(tmp_path, name):
    figure, said = DRAW[name]
    figure = figure()
    assert [text for text in said if text not in words(figure)] == []
    assert "<svg" in assert_drawn(figure, tmp_path)
