"""Charts of fewer bits say what the rows say, are drawn in style, and name what is missing."""

import pytest

from llama_lab import figures
from llama_lab.experiments.fewer_bits import chart
from tests.experiments.fewer_bits.race import MISSING, NAMES, entries_of, race
from tests.figures.drawn import META, assert_drawn, words

CHARTS = ("quality", "roofline")


def draw(name, made, missing=(), read=True, names=NAMES):
    entries = entries_of(made, names, read=read)
    if name == "quality":
        return chart.quality_and_speed(entries[256], "512 tokens of two texts", missing)
    return chart.roofline(entries, {n: dict(max=50.0 + (n > 256), median=33.0, min=30.0, n=6) for n in entries})


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(draw(name, race()), tmp_path)


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_draws_with_one_placement_that_nobody_read(tmp_path, name):
    drawn = draw(name, race(["loop"], blocks=1), MISSING, read=False, names=["loop"])
    assert figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()
    assert "nan" not in words(drawn)


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_draws_where_nothing_counts(tmp_path, name):
    made = [t.model_copy(update=dict(valid=False, reason="wrong: token 0 is 1")) for t in race(["loop"], blocks=1)]
    drawn = draw(name, made, MISSING, names=["loop"])
    assert figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()


def test_every_subject_is_labelled_with_its_quality_and_a_gap_with_its_remedy():
    figure = draw("quality", race(), MISSING)
    drawn = words(figure)
    for text in (
        "loop+fused: 4",
        " tok/s, KL 0.003, top-1 93.8%",
        "llamacpp+q4_0: 239",
        "KL 0.3",
        "loop: 60 tok/s, top-1 100.0%",
        "no llamacpp+q8_0: llama-cpp-python is not installed. Run `make peers`.",
        "n ≥ 8",
    ):
        assert text in drawn, text
    assert "512 tokens of two texts" in figure.axes[0].get_ylabel()
