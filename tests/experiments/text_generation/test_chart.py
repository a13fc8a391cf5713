"""The chart of arriving tokens is drawn in style."""

from llama_lab.experiments.text_generation import chart
from tests.figures.drawn import assert_drawn, trials


def test_arrivals_are_drawn_in_style(tmp_path):
    assert "<svg" in assert_drawn(chart.arrivals(trials()), tmp_path)
