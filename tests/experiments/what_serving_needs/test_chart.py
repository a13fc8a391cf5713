"""Charts of servers under load say what the rows say, and are drawn in style."""

import pytest

from llama_lab.experiments.what_serving_needs import chart, table
from tests.experiments.what_serving_needs.made import META as ABOUT
from tests.experiments.what_serving_needs.made import NOTES, campaign, request, voided
from tests.figures.drawn import assert_drawn, assert_in_style, words

DRAWN = {
    "load": lambda e: chart.under_load(table.rising(e, ABOUT), ABOUT["missing"]),
    "shapes": lambda e: chart.shapes(table.by_shapes(e, ABOUT)),
}


LITTLE = {
    "nothing": [],
    "one request": [request()],
    "refused": [request(pieces=0)],
    "void": voided([request()]),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("rows", LITTLE.values(), ids=LITTLE)
def test_each_chart_draws_where_there_is_little(name, rows):
    assert_in_style(DRAWN[name](table.loads(rows)))


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(DRAWN[name](table.loads(campaign(), NOTES)), tmp_path)


def test_what_is_refused_void_or_missing_is_labelled():
    rows = [*campaign(), *voided([request("ollama", order=i) for i in (12, 13)])]
    figure = DRAWN["load"](table.loads(rows, NOTES))
    for text in ("2 of 12 refused", "2 of 14 failed:", "n = 10 to 12"):
        assert text in words(figure)
    assert "stopped" not in words(figure)  # it was asked the highest rate
    slower = [row for row in rows if row.server != "step+donate" or row.rate == 1] + [request(pieces=0, order=99)]
    assert "1 of 13 refused; stopped" in words(DRAWN["load"](table.loads(slower, NOTES)))
    assert "did not run: llama.cpp's server" in words(figure)
    ends = [text.get_text() for text in figure.axes[1].texts]
    assert ends == ["1 s step+donate", "0.056 s step+fused", "0.039 s Ollama"]  # at the last rate, in s
