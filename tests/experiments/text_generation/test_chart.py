"""The chart of arriving tokens is the same bytes twice."""

from llama_jax.experiments.text_generation import chart
from tests.figures.drawn import assert_same_twice, trials


def test_arrivals_are_drawn_the_same_twice(tmp_path):
    data = trials()
    assert "<svg" in assert_same_twice(lambda: chart.arrivals(data, {"step": "one", "loop": "two"}), tmp_path)
