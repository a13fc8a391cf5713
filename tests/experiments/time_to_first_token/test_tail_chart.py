"""Charts of warm first tokens beyond the median, drawn from made-up trials."""

import numpy as np
import pytest

from llama_lab.experiments.time_to_first_token import table, tail_chart
from tests.experiments.time_to_first_token.test_table import AT, everything
from tests.figures.drawn import assert_drawn, words


def distribution(trials):
    return tail_chart.ttft_distribution(trials, AT)


def tails(trials):
    return tail_chart.ttft_tails(table.tails(trials), trials)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [distribution, tails])
@pytest.mark.parametrize("blocks", [1, 6])
def test_each_chart_is_drawn_in_style(tmp_path, draw, blocks):
    trials = everything(blocks)
    assert_drawn(draw(trials), tmp_path)


def test_a_p99_is_drawn_only_where_there_is_one():
    few, many = words(distribution(everything())), words(distribution(everything(tail=1000)))
    assert "P99 " not in few.replace("no P99 below", "")
    assert "diamond" not in few
    assert "no P99 below n = 1,000" in few
    assert "n = 1006, P99" in many
    assert "diamond: P99" in many


def test_tails_are_drawn_of_those_who_have_them_and_say_how_many_requests_they_stand_on():
    assert "so there is no P95" in words(tails(everything()))
    figure = tails(everything(tail=1000))
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "torch"
    assert figure.get_supxlabel().endswith("requests there (n)\nno P95 below n = 200; no P99 below n = 1,000")
    assert [t.get_text() for t in axes.get_xticklabels()] == ["10  (n = 6)", "50  (n = 1,006)", "100  (n = 6)"]
    drawn = {line.get_label(): np.isfinite(line.get_ydata()).tolist() for line in axes.lines}
    assert drawn["P50"] == drawn["mean"] == [True, True, True]
    assert drawn["P95"] == drawn["P99"] == [False, True, False]
    many = [t for t in everything(tail=1000) if t.prompt_tokens == AT]
    assert tails(many).get_supxlabel().endswith("requests there (n)")


def test_a_tail_of_some_hundred_requests_has_a_p95_and_no_p99():
    figure = tails(everything(tail=300))
    drawn = {line.get_label() for line in figure.axes[0].lines}
    assert {"P50", "P95", "mean"} <= drawn
    assert "P99" not in drawn


def test_labels_that_would_touch_are_left_out():
    assert tail_chart.apart([10, 50, 100, 150, 200, 250, 300, 350, 400]) == [10, 50, 100, 150, 200, 300, 400]
    assert tail_chart.apart([]) == []
