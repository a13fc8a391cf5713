"""Charts of servers under load say what the rows say, and are drawn in style."""

import pytest

from llama_lab import figures
from llama_lab.experiments.what_serving_needs import chart, table
from tests.experiments.what_serving_needs.made import META as ABOUT
from tests.experiments.what_serving_needs.made import NOTES, campaign, request, voided
from tests.figures.drawn import META, assert_drawn, words

DRAWN = {
    "load": lambda e: chart.under_load(table.rising(e, ABOUT), ABOUT["missing"]),
    "shapes": lambda e: chart.shapes(table.by_shapes(e, ABOUT)),
    "slots": lambda e: chart.slots(table.by_slots(e, ABOUT)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(DRAWN[name](table.loads(campaign(), NOTES)), tmp_path)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("rows", [[], [request()], [request(pieces=0)], voided([request()])], ids=range(4))
def test_each_chart_draws_where_there_is_little(tmp_path, name, rows):
    figure = DRAWN[name](table.loads(rows))
    assert figures.save(figure, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()


def test_refusals_sample_sizes_and_gaps_are_labelled():
    figure = DRAWN["load"](table.loads(campaign(), NOTES))
    assert "2 of 12 refused" in words(figure)
    first, gap, _ = figure.axes
    assert "n ≥ 10;" in first.get_xlabel()
    assert "no n holds a higher percentile; no P99 below n = 1,000" in first.get_xlabel()
    assert "n ≥ 40 gaps" in gap.get_xlabel()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["step+donate", "step+fused", "ollama", "did not run: llama.cpp's server"]


def test_requests_that_are_void_are_counted_in_the_chart():
    rows = [request(order=0), *voided([request(order=i) for i in (1, 2)])]
    assert "2 of 3 void" in words(DRAWN["load"](table.loads(rows)))


def test_a_percentile_is_drawn_only_where_the_sample_holds_it():
    rows = [request(rate=rate, order=i, first_ms=100 + i) for rate, n in ((1.0, 20), (4.0, 100)) for i in range(n)]
    first = DRAWN["load"](table.loads(rows)).axes[0]
    assert "dashed: P90 where n ≥ 100" in first.get_xlabel()
    assert [list(line.get_xdata()) for line in first.lines if line.get_linestyle() == "--"] == [[4.0]]
