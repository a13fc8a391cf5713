"""Charts of precision and kernels say what the rows say, are the same bytes twice, and name what is missing."""

import pytest
from matplotlib.text import Text

from llama_jax import config, figures
from llama_jax.experiments.precision_and_kernels import chart, scaling, where
from llama_jax.experiments.time_to_first_token import same_file, same_file_chart, table
from tests.experiments.precision_and_kernels.race import LENGTHS, MISSING, NAMES, entries_of, firsts, race
from tests.experiments.precision_and_kernels.test_scaling import points
from tests.experiments.precision_and_kernels.test_where import FAR, MODEL, SHORT, answers
from tests.figures.drawn import META, assert_same_twice, words

CHARTS = ("quality", "roofline", "where", "scaling", "first")
BACKENDS = {"loop": "jax", "loop+fused": "jax", "llamacpp": "llama.cpp"}


def rows_of_scaling():
    made = (
        points() + points("loop+fused", {"256": 450, "1024": 350}) + points("llamacpp", {"1": 80, "2": 150}, "threads")
    )
    return made + points("loop+fused", {"random:smollm2-135m": 450, "random:smollm2-360m": 170}, "model")


def draw(name, made, missing=(), read=True, names=NAMES):
    entries = entries_of(made, names, read=read)
    if name == "quality":
        return chart.precision_quality(entries[256], "512 tokens of two texts", missing)
    if name == "roofline":
        return chart.precision_roofline(entries, 50.0)
    if name == "where":
        split = answers(noise=0.01) + answers("loop+gemv", layer=0.03, noise=0.01)
        return chart.precision_where(where.table(split if len(made) > 50 else split[:1], MODEL, SHORT, FAR), FAR)
    if name == "first":
        return draw_first(
            firsts()
            if len(made) > 50
            else [t.model_copy(update=dict(valid=made[0].valid)) for t in firsts(("step",), 1)]
        )
    found = rows_of_scaling() if len(made) > 50 else []
    return chart.precision_scaling({axis: scaling.axis_of(found, axis) for axis in scaling.AXES}, BACKENDS)


def draw_first(trials):
    about = table.floor(config.tiny(), LENGTHS)
    return same_file_chart.precision_first(
        trials, same_file.limits(trials, about, 1e-3), same_file.reading(trials, about)
    )


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_draws_the_same_bytes_twice(tmp_path, name):
    assert_same_twice(lambda: draw(name, race()), tmp_path)


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_draws_with_one_placement_that_nobody_read(tmp_path, name):
    drawn = draw(name, race(["loop"], blocks=1), MISSING, read=False, names=["loop"])
    assert figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()
    assert "nan" not in words(drawn)


@pytest.mark.parametrize("name", CHARTS)
def test_each_chart_draws_where_nothing_counts(tmp_path, name):
    made = [t.model_copy(update=dict(valid=False, reason="wrong: token 0 is 1")) for t in race(["loop"], blocks=1)]
    assert figures.save(draw(name, made, MISSING, names=["loop"]), "x", "nb", META, {}, "alt", tmp_path)[
        "png"
    ].is_file()


def test_every_subject_is_labelled_with_its_quality_and_a_gap_with_its_remedy():
    figure = draw("quality", race(), MISSING)
    drawn = words(figure)
    for text in (
        "loop+fused (q4_1): 4",
        " tok/s, KL 0.003, top-1 93.8%",
        "llamacpp+q4_0 (q4_0): 239",
        "KL 0.3",
        "loop (float32): 60 tok/s, top-1 100.0%",
        "no llamacpp+q8_0: llama-cpp-python is not installed. Run `make peers`.",
        "n ≥ 8",
    ):
        assert text in drawn, text
    assert "512 tokens of two texts" in figure.axes[0].get_ylabel()


def test_the_roofline_has_shares_intensity_and_the_probe():
    figure = draw("roofline", race())
    drawn = words(figure)
    for text in ("the limit: 50 GB/s, as probed", "loop+fused: 4", "90%"):
        assert text in drawn, text
    assert "tokens/s" in figure.axes[0].get_ylabel()
    assert [axes.get_title("left") for axes in figure.axes] == [
        f"Context {c}, 0.5 to 3.0 operations a byte" for c in (256, 1024)
    ]


def test_where_says_each_parts_milliseconds():
    figure = draw("where", race())
    drawn = words(figure)
    (same_file, second) = where.table(
        answers(noise=0.01) + answers("loop+gemv", layer=0.03, noise=0.01), MODEL, SHORT, FAR
    )
    assert f"{same_file['total']:.2f} ms: layers {same_file['layers']:.2f}" in drawn
    assert f"{second['total']:.2f} ms: layers {second['layers']:.2f}" in drawn
    assert "at context 1024" in drawn


def test_each_parts_interval_lies_where_the_part_ends_and_none_hides_another():
    (entry,) = where.table(answers(noise=0.01), MODEL, SHORT, FAR)
    entry |= dict(rest=-0.2, rest_low=-0.4, rest_high=0.1)
    axes = chart.precision_where([entry], FAR).axes[0]
    drawn = [line for line in axes.lines if line.get_ydata()[0] == line.get_ydata()[1]]
    assert len({line.get_ydata()[0] for line in drawn}) == len(drawn) == len(where.PARTS)
    left = 0.0
    for part, line in zip(where.PARTS, drawn, strict=True):
        assert list(line.get_xdata()) == pytest.approx([left + entry[f"{part}_low"], left + entry[f"{part}_high"]])
        left += max(entry[part], 0.0)
    # the token itself is shorter than the bar here
    assert entry["total"] in [line.get_xdata()[0] for line in axes.lines]


def test_first_tokens_are_labelled_beside_the_limit_and_raced():
    figure = draw_first(firsts())
    left, right = figure.axes
    assert {"step", "step+gemv", "llamacpp", "llamacpp+generate"} < {text.get_text() for text in left.texts}
    assert {text.get_text() for text in right.texts} == {"step", "step+gemv"}
    assert "n ≥ 8" in left.get_title("left")
    assert "n ≥ 8 pairs" in right.get_title("left")
    assert "over that of llamacpp\n" in right.get_ylabel()
    for text in ("limit: weights read once", "its weights read once: step+gemv"):
        assert text in words(figure), text
    assert "llama.cpp was not measured here" in words(draw_first(firsts(("step", "step+gemv"))))


def test_scaling_names_each_line_with_what_is_left_of_its_rate():
    figure = draw("scaling", race())
    drawn = words(figure)
    assert "loop  0.67x" in drawn
    assert "llamacpp  1.88x" in drawn
    assert figure.axes[2].get_title("left") == "Models, random weights"
    assert "cores" in figure.axes[1].get_xlabel()
    figure.draw_without_rendering()
    for axes in figure.axes:  # no name reaches into the next panel
        assert all(Text.get_window_extent(text).x1 <= axes.get_window_extent().x1 for text in axes.texts)
