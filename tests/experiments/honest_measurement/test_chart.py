"""Charts of honest measurement say what was published and what counts, and are drawn in style."""

import pytest

from llama_lab.experiments.honest_measurement import chart, measure, simulation
from tests.experiments.honest_measurement.test_measure import cache_claim, first_token_claim, order_claim
from tests.figures.drawn import assert_drawn, words

SIMULATED = [
    dict(scenario=s, protocol=p, runs=9, coverage=0.9, aa_false_positive_rate=0.1, power=0.5)
    for s in ("base", "other")
    for p in ("ours", "naive")
]
THRESHOLDS = dict(
    coverage=simulation.COVERAGE, aa_false_positive_rate=simulation.FALSE_POSITIVES, power=simulation.POWER
)
DRAW = {
    "speed_ups": lambda: chart.speed_ups(measure.speed_ups(cache_claim()), 60.0),
    "first_tokens": lambda: chart.first_tokens(measure.first_tokens(first_token_claim()), 50.0),
    "two_ways": lambda: chart.two_ways(measure.two_ways(order_claim()), 10, "A 1, B 2"),
    "validation": lambda: chart.validation(SIMULATED, THRESHOLDS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAW)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert "<svg" in assert_drawn(DRAW[name](), tmp_path)


def test_the_claims_say_what_was_published_and_what_counts():
    drawn = words(DRAW["speed_ups"]())
    for text in ("published 16.32x", "here 30.00x", "never published", "this protocol", "memory-bandwidth limit 60"):
        assert text in drawn
    drawn = words(DRAW["first_tokens"]())
    for text in (
        "76.04",
        "59.25",
        "mean 260 ms",
        "no p99: p99 needs 1,000 values, there are 100",
        "arithmetic limit 50 ms",
    ):
        assert text in drawn
    drawn = words(DRAW["two_ways"]())
    assert "1 of 1 rounds (x) call one program two" in drawn
    assert "0 of 1 rounds (x) call one program two" in drawn
