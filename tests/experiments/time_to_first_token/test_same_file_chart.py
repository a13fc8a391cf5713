"""The chart of first tokens on one file."""

import pytest

from llama_jax import config
from llama_lab.experiments.time_to_first_token import same_file, same_file_chart, table
from tests.experiments.fewer_bits.race import LENGTHS, firsts
from tests.figures.drawn import assert_drawn, words


def draw_first(trials):
    about = table.floor(config.tiny(), LENGTHS)
    return same_file_chart.first_tokens(trials, same_file.limits(trials, about, 1e-3), same_file.reading(trials, about))


@pytest.mark.slow
@pytest.mark.parametrize("names", [(), ("step",)])
def test_they_are_drawn_in_style(tmp_path, names):
    trials = firsts(names, 1) if names else firsts()
    assert_drawn(draw_first(trials), tmp_path)


def test_it_draws_where_nothing_counts():
    void = [t.model_copy(update=dict(valid=False)) for t in firsts(("step",), 1)]
    assert "nan" not in words(draw_first(void))


def test_first_tokens_are_labelled_beside_the_limit_and_raced():
    figure = draw_first(firsts())
    left, right = figure.axes
    assert {"step", "step+fused", "llamacpp", "llamacpp+generate"} < {text.get_text() for text in left.texts}
    assert {text.get_text() for text in right.texts} == {"step", "step+fused"}
    assert "n ≥ 8" in left.get_title("left")
    assert "n ≥ 8 pairs" in right.get_title("left")
    assert "over that of llamacpp\n" in right.get_ylabel()
    assert "before llamacpp and llamacpp+generate at 2 of 2 prompt lengths" in words(figure).replace("\n", " ")
    for text in ("limit: weights read once", "its weights read once: step+fused"):
        assert text in words(figure), text
    assert "llama.cpp was not measured here" in words(draw_first(firsts(("step", "step+fused"))))
