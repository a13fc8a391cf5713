"""The chart of findings about XLA:CPU: the same bytes for the same rows, and it says what is in them."""

from llama_lab.experiments.xla_cpu import chart, measure
from tests.experiments.xla_cpu.test_measure import blocks, made
from tests.figures.drawn import assert_drawn


def words(figure):
    axes = figure.axes[0]
    return " ".join([*(t.get_text() for t in axes.texts), *(label.get_text() for label in axes.get_yticklabels())])


def rows():
    several = [
        *blocks(shown=(113_442_816, 0), faults=3 * 27_697),
        *blocks(finding="cache of one row", shown=(4, 0), slow=4.0),
    ]
    return [*several, *blocks(finding="shared vector", shown=(40_000, 40_000))]


def test_the_chart_is_drawn_in_style(tmp_path):
    assert_drawn(chart.xla_findings(measure.told(rows())), tmp_path)


def test_it_can_be_drawn_from_nothing_from_one_block_and_from_void_ones():
    chart.xla_findings([])
    assert "5.00x, n = 1" in words(chart.xla_findings(measure.told(made())))
    drawn = words(
        chart.xla_findings(measure.told(made(valid=False, reason="wrong: the two programs compute different numbers")))
    )
    assert "void: other numbers" in drawn
