"""Charts of drafts say what the rows say, and are drawn in style."""

import pytest

from llama_lab import figures
from llama_lab.experiments.past_one_token_a_pass import chart, table
from tests.experiments.past_one_token_a_pass.race import META as ABOUT
from tests.experiments.past_one_token_a_pass.race import race
from tests.figures.drawn import META, assert_drawn, words

GAP = dict(name="llamacpp+lookup", reason="It is not built.", remedy="Run `make peers`.")
DRAWN = {
    "rates": lambda trials: chart.rates(table.table(trials, ABOUT), [GAP]),
    "passes": lambda trials: chart.tokens_a_pass(table.table(trials, ABOUT), "loop+fused+lookup4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(DRAWN[name](race()), tmp_path)


@pytest.mark.parametrize("name", DRAWN)
def test_each_chart_draws_where_there_is_little(tmp_path, name):
    for trials in ([], race(1, ["loop"])):
        assert figures.save(DRAWN[name](trials), "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()


def test_gaps_and_ratios_are_labelled():
    figure = DRAWN["rates"](race())
    drawn = words(figure)
    assert drawn.count("did not run") == 3
    assert GAP["name"] in [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert "3.0" in drawn
    told = [text.get_text() for text in DRAWN["passes"](race()).axes[0].get_legend().get_texts()]
    assert told[1].endswith("4.75 a pass, 94% accepted")
