"""The primitives draw the numbers that they are given, and say where there are none."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pytest

from llama_lab.bench.statistics import Ratio, Summary
from llama_lab.figures import bars, labels, notes, rows
from llama_lab.figures.bars import Part
from llama_lab.figures.labels import End


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_the_first_row_is_on_top(axes):
    assert rows.heights(axes, ["a", "b", "c"]) == {"a": 2, "b": 1, "c": 0}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize("even", [False, True])
def test_every_value_is_a_point_within_its_row(axes, even):
    values = [3.0, 1.0, 2.0]
    rows.points(axes, values, 1, "red", spread=0.2, even=even)
    x, y = np.asarray(axes.collections[0].get_offsets()).T
    assert list(x) == values
    assert abs(y - 1).max() <= 0.2


@pytest.mark.parametrize(
    "summary",
    [
        Summary(n=3, median=2.0, iqr=0.1, low=1.0, high=4.0),
        Ratio(2.0, 1.0, 4.0, 3),
        dict(median=2.0, low=1.0, high=4.0),
        dict(value=2.0, low=1.0, high=4.0),
        (1.0, 2.0, 4.0),
    ],
    ids=["summary", "ratio", "entry", "entry of a ratio", "numbers"],
)
def test_an_interval_reaches_from_end_to_end_with_its_middle_marked(axes, summary):
    rows.interval(axes, summary, 1)
    rows.interval(axes, (np.nan, 3.0, np.nan), 0)  # without an interval the middle alone is drawn
    assert [list(line.get_xdata()) for line in axes.lines] == [[1.0, 4.0], [2.0], [3.0]]


def test_parts_of_a_bar_add_up(axes):
    assert bars.stack(axes, 0, [(1.0, Part("red")), (2.5, Part("blue", "//"))]) == 3.5
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0.0, 1.0), (1.0, 2.5)]


@pytest.mark.parametrize("options", [{}, dict(x=3.0), dict(x=3.0, lead=2.5), dict(centred=True)])
def test_labels_at_the_ends_of_lines_do_not_overlap(axes, options):
    axes.set(xlim=(0, 2), ylim=(0.1, 100), yscale="log")
    ends = [End(f"line {i}", 2.0, 10 + i / 100, "red") for i in range(6)]
    labels.at_ends(axes, ends, 1.3, **options)
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 6
    assert all(below.y1 <= above.y0 for below, above in pairwise(boxes))


def test_a_limit_stands_where_it_is_and_an_empty_panel_says_why(axes):
    notes.bandwidth_limit(axes, 40.0)
    assert list(axes.lines[0].get_xdata()) == [40.0, 40.0]
    assert axes.texts[0].get_text() == "memory-bandwidth limit 40 "
    figure = notes.nothing("no valid start")
    assert figure.axes[0].texts[0].get_text() == "no valid start"
    plt.close(figure)
