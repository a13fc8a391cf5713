"""Charts of compiled kernels say what the rows say, and are drawn in style."""

import pytest
from matplotlib.text import Text

from llama_lab import figures
from llama_lab.experiments.compiled_kernels import chart, scaling, size_chart, size_table, where
from tests.experiments.compiled_kernels.test_scaling import points
from tests.experiments.compiled_kernels.test_sizes import rows as rows_of_sizes
from tests.experiments.compiled_kernels.test_where import FAR, MODEL, SHORT, answers
from tests.figures.drawn import META, assert_drawn, words

BACKENDS = {"loop": "jax", "loop+fused": "jax", "llamacpp": "llama.cpp"}
ANSWERS = answers(noise=0.01) + answers("loop+gemv", layer=0.03, noise=0.01)


def rows_of_scaling():
    return (
        points() + points("loop+fused", {"256": 450, "1024": 350}) + points("llamacpp", {"1": 80, "2": 150}, "threads")
    )


def scaled(rows):
    return chart.scaling({axis: scaling.axis_of(rows, axis) for axis in scaling.AXES}, BACKENDS)


SIZES = rows_of_sizes(dict(loop=300, llamacpp=100, openvino=150), prompts=dict(loop=900, llamacpp=1000, openvino=500))
DRAWN = {
    "decode": lambda rows=SIZES: size_chart.over_best(size_table.table(rows), "decode"),
    "prefill": lambda rows=SIZES: size_chart.over_best(size_table.table(rows), "prefill"),
    "parts": lambda rows=ANSWERS: chart.token_parts(where.table(rows, MODEL, SHORT, FAR), FAR),
    "scaling": lambda rows=None: scaled(rows_of_scaling() if rows is None else rows),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_each_chart_is_drawn_in_style(tmp_path, name):
    assert_drawn(DRAWN[name](), tmp_path)


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("count", [0, 1])
def test_each_chart_draws_where_there_is_little(tmp_path, name, count):
    drawn = DRAWN[name]({"parts": ANSWERS, "scaling": rows_of_scaling()}.get(name, SIZES)[:count])
    assert figures.save(drawn, "x", "nb", META, {}, "alt", tmp_path)["png"].is_file()
    assert "nan" not in words(drawn)


def test_where_says_each_parts_milliseconds():
    figure = chart.token_parts(where.table(ANSWERS, MODEL, SHORT, FAR), FAR)
    for axes, e in zip(figure.axes, where.table(ANSWERS, MODEL, SHORT, FAR), strict=True):
        drawn = [text.get_text().strip() for text in axes.texts]
        assert f"{e['total']:.1f} ms" in drawn
        assert f"{e['layers']:.1f} ms" in drawn
        assert axes.get_title("left") == e["name"]
        assert "at context 1024" in axes.get_xlabel()


def test_a_part_that_noise_made_negative_is_said_to_be_hidden():
    (entry,) = where.table(answers(noise=0.01), MODEL, SHORT, FAR)
    entry |= dict(rest=-0.2, rest_low=-0.4, rest_high=0.1)
    axes = chart.token_parts([entry], FAR).axes[0]
    assert [text.get_text().strip() for text in axes.texts].count("hidden by noise") == 1
    spans = [list(line.get_xdata()) for line in axes.lines]
    for part in where.PARTS:
        assert [entry[f"{part}_low"], entry[f"{part}_high"]] in spans


def test_an_endless_interval_leaves_a_parts_words_within_its_panel():
    (entry,) = where.table(answers(noise=0.01), MODEL, SHORT, FAR)
    axes = chart.token_parts([entry | dict(rest_high=1e7)], FAR).axes[0]
    assert max(text.get_position()[0] for text in axes.texts) <= axes.get_xlim()[1]


def test_every_file_has_its_tick():
    made = SIZES + [row for i, mb in enumerate((828, 1030)) for row in
                    rows_of_sizes(dict(loop=30, llamacpp=20, openvino=10), f"large{i}/q4_0", megabytes=mb)]  # fmt: skip
    (axes,) = size_chart.over_best(size_table.table(made), "decode").axes
    written = [label.get_text() for label in axes.get_xticklabels()]
    assert written == ["small\nq4_0\n100 MB", "large0\nq4_0\n828 MB", "large1\nq4_0\n1,030 MB"]


def test_scaling_names_each_line_with_what_is_left_of_its_rate():
    figure = scaled(rows_of_scaling())
    drawn = words(figure)
    assert "loop  0.67x" in drawn
    assert "llamacpp  1.88x" in drawn
    assert "cores" in figure.axes[1].get_xlabel()
    figure.draw_without_rendering()
    for axes in figure.axes:  # no name reaches into the next panel
        assert all(Text.get_window_extent(text).x1 <= axes.get_window_extent().x1 for text in axes.texts)
