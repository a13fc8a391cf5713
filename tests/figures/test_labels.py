"""Labels find room: none covers another or a mark, whatever the points; where there is no room each is still
written."""

import itertools
import math

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text

from llama_lab.figures.labels import along, arranged, beside, fits, labelled, overlap, readable, spread_labels, way


def chart(points):
    figure, axes = plt.subplots(figsize=(12, 6))
    axes.set(xscale="log", yscale="log", xlim=(1, 1000), ylim=(1e-6, 10))
    readable(axes.xaxis)
    labelled(axes, points)
    figure.canvas.draw()
    return figure, axes


def boxes(figure, axes):
    # without the lines to the points
    return [Text.get_window_extent(text, figure.canvas.get_renderer()) for text in axes.texts]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.floats(5, 300), st.floats(1e-5, 1)), min_size=1, max_size=8))
def test_labels_cover_neither_each_other_nor_leave_the_chart(places):
    figure, axes = chart([(f"subject {i}: 123, KL 0.0030", x, y, "black") for i, (x, y) in enumerate(places)])
    drawn = boxes(figure, axes)
    assert len(drawn) == len(places)
    assert not [1 for a, b in itertools.combinations(drawn, 2) if a.shrunk(0.9, 0.9).overlaps(b.shrunk(0.9, 0.9))]
    plt.close(figure)


def test_a_label_alone_stands_beside_its_point_and_a_moved_one_has_a_line():
    for count in (1, 3):
        figure, axes = chart([(f"subject {i}", 10 + i / 10, 0.1, "black") for i in range(count)])
        last = axes.texts[-1]
        assert (last.xyann == (9, 0)) == (last.arrow_patch is None) == (count == 1)
        plt.close(figure)


def across(lines):
    """How many labels lie on the line from the chart's left upper to its right lower corner, where they know of
    `lines`."""
    figure, axes = chart([])
    labelled(axes, [("a subject: 123", 28.0, 2e-3, "black"), ("another: 45", 100.0, 1.5e-4, "black")], lines)
    figure.canvas.draw()
    corners = [axes.transData.inverted().transform(box.corners()) for box in boxes(figure, axes)]
    plt.close(figure)
    return sum(len({y > 10 ** (1 - 7 / 3 * math.log10(x)) for x, y in found}) == 2 for found in corners)


def test_no_label_lies_on_a_line():
    assert across([]) == 2
    assert across([((1, 1000), (10, 1e-6))]) == 0


def test_labels_that_found_no_place_choose_first():
    """The second has room to the right only, where the first would write."""
    at, sizes, frame = [(100.0, 50.0), (110.0, 61.0)], [(100.0, 10.0), (100.0, 10.0)], (260.0, 100.0)
    wall = along((150.0, 70.0), (150.0, 100.0))
    for order in ([0, 1], [1, 0]):
        chosen = arranged([at[i] for i in order], [sizes[i] for i in order], wall, frame)
        first, second = (beside(at[i], c, sizes[i]) for i, c in zip(order, chosen, strict=True))
        assert not overlap([first], [second])
        assert fits(first, wall, frame)
        assert fits(second, wall, frame)


def test_a_way_to_a_mark_goes_over_nothing():
    assert overlap(way((0, 0), (9, 42)), [(0, 18, 20, 22)])
    assert not overlap(way((0, 0), (9, 42)), [(12, 18, 20, 22)])
    assert not way((0, 0), (9, 0))  # a label at its mark's height has no way to it


def test_where_there_is_no_room_every_label_is_written():
    figure, axes = chart([("x" * 200, 10, 0.1, "black")] * 30)
    assert len(axes.texts) == 30
    plt.close(figure)


@pytest.mark.parametrize(
    ("box", "free"),
    [((0, 0, 4, 4), True), ((0, 0, 6, 6), False), ((-1, 0, 3, 3), False), ((8, 8, 11, 9), False), ((0, 0, 5, 5), True)],
)
def test_a_box_fits_where_nothing_is(box, free):
    assert fits(box, [(5, 5, 7, 7)], (10, 10)) is free


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [((0.95, 4.2), [1, 1.5, 2, 3]), ((20, 700), [20, 50, 100, 200, 500]), ((1, 3000), [1, 10, 100, 1000])],
)
def test_a_log_axis_has_ticks_to_read_ratios_by(limits, ticks):
    figure, axes = plt.subplots()
    axes.set(xscale="log", xlim=limits)
    readable(axes.xaxis)
    figure.canvas.draw()
    shown = [t for t in axes.get_xticks() if limits[0] <= t <= limits[1]]
    assert shown == pytest.approx(ticks)
    plt.close(figure)


def test_heights_of_labels_are_spread():
    placed = spread_labels({"a": 10.0, "b": 10.1, "c": 10.2, "d": 50.0})
    heights = sorted(placed.values())
    assert all(b / a >= 1.15 for a, b in itertools.pairwise(heights))
    assert placed["d"] == 50.0
    above = {str(i): 10.0 + i / 100 for i in range(8)}
    assert max(spread_labels(above, 1.2).values()) > 30
    lowered = sorted(spread_labels(above, 1.2, centred=True, top=12.0).values())
    assert lowered[-1] <= 12.0 + 1e-9
    assert all(b / a >= 1.2 - 1e-9 for a, b in itertools.pairwise(lowered))
