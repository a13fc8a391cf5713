"""Labels beside points and at the ends of lines, and ticks that can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib.ticker import LogLocator

from llama_lab.bench.wording import named_well
from llama_lab.figures.notes import plain

SIZE, ATTEMPTS = 8.5, 6  # the labels' font size in points; attempts to arrange them
CROWDED = 200  # from the least to the most of a horizontal axis, as a factor: then only powers of ten are written
Spot = tuple[float, float]  # x and y, or width and height, in points
Box = tuple[float, float, float, float]  # left, bottom, right, top
# a label's places beside its mark, in points
CHOICES = [(side, up) for up in sorted(range(-140, 141, 7), key=abs) for side in (9, -9)]


def labelled(
    axes, points: Sequence[tuple[str, float, float, str]], lines: Sequence[tuple[Sequence[float], Sequence[float]]] = ()
) -> None:
    """Labels (text, x, y, colour) beside their points on axes with fixed limits: each as near as possible without
    covering another label, a mark, the path from another label to its mark, or one of the `lines` (xs, ys; straight on
    the page). If that is impossible, a label may cover a line. The figure is laid out first, so that positions and
    sizes are final."""
    axes.figure.draw_without_rendering()
    page = axes.get_window_extent()
    points_a_pixel = 72 / axes.figure.dpi

    def place(x: float, y: float) -> Spot:
        return tuple((axes.transData.transform((x, y)) - page.min) * points_a_pixel)

    def size(text: str) -> Spot:
        drawn = axes.text(0.5, 0.5, text, fontsize=SIZE, transform=axes.transAxes)
        box = drawn.get_window_extent(axes.figure.canvas.get_renderer())
        drawn.remove()
        return box.width * 72 / axes.figure.dpi, box.height * 72 / axes.figure.dpi

    points = [(named_well(text), *rest) for text, *rest in points]
    ways = [way for xs, ys in lines for way in pairwise(place(x, y) for x, y in zip(xs, ys, strict=True))]
    drawn = [box for way in ways for box in along(*way)]
    frame = (page.width * points_a_pixel, page.height * points_a_pixel)
    at = [place(x, y) for _, x, y, _ in points]
    sizes = [size(text) for text, *_ in points]
    for (text, *xy, colour), (side, up) in zip(points, arranged(at, sizes, drawn, frame), strict=True):
        line = dict(arrowstyle="-", color=colour, linewidth=0.5, relpos=(float(side < 0), 0.5)) if up else None
        look = dict(fontsize=SIZE, va="center", ha="left" if side > 0 else "right", color=colour)
        how = dict(textcoords="offset points", annotation_clip=False, arrowprops=line)
        axes.annotate(text, xy, (side, up), **look, **how)


def arranged(at: Sequence[Spot], sizes: Sequence[Spot], drawn: Sequence[Box], frame: Spot) -> list[tuple[int, int]]:
    """One of CHOICES per label. Labels without a clear place choose first in the next attempt, at most ATTEMPTS
    times."""
    order, best, fewest = list(range(len(at))), [], len(at) + 1
    for _ in range(ATTEMPTS):
        chosen, pressed = attempt(order, at, sizes, drawn, frame)
        if len(pressed) < fewest:
            best, fewest = [chosen[i] for i in range(len(at))], len(pressed)
        if not pressed:
            break
        order = [*pressed, *(i for i in order if i not in pressed)]
    return best


def attempt(
    order: Sequence[int], at: Sequence[Spot], sizes: Sequence[Spot], drawn: Sequence[Box], frame: Spot
) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """(choices, labels without a clear place) when labels choose one after the other."""
    marks = [(x - 5, y - 5, x + 5, y + 5) for x, y in at]
    chosen, pressed, written, ways = {}, [], [], []
    for i in order:
        spot, size = at[i], sizes[i]
        apart = [b for b in [*marks, *drawn] if math.dist(spot, ((b[0] + b[2]) / 2, (b[1] + b[3]) / 2)) > 7]
        free = [c for c in CHOICES if fits(beside(spot, c, size), [*marks, *written], frame)]
        clear = (
            c
            for c in free
            if fits(beside(spot, c, size), [*drawn, *ways], frame) and not overlap(way(spot, c), [*written, *apart])
        )
        choice = next(clear, None)
        pressed += [] if choice else [i]
        chosen[i] = choice or (free or CHOICES)[0]
        written.append(beside(spot, chosen[i], size))
        ways += way(spot, chosen[i])
    return chosen, pressed


def beside(spot: Spot, choice: tuple[int, int], size: Spot) -> Box:
    """The box of a label of a size, `side` to the right of a spot (to the left where negative) and `up` above it."""
    (x, y), (side, up), (width, height) = spot, choice, size
    start = x + side if side > 0 else x + side - width
    return start, y + up - height / 2, start + width, y + up + height / 2


def way(spot: Spot, choice: tuple[int, int]) -> list[Box]:
    """Small boxes on the path from a mark to its label; none if the label is at the mark's height."""
    return along(spot, (spot[0] + choice[0], spot[1] + choice[1])) if choice[1] else []


def along(a: Spot, b: Spot, apart: float = 3.0) -> list[Box]:
    """Small boxes on the path from a to b."""
    steps = max(1, math.ceil(math.dist(a, b) / apart))
    middles = [(a[0] + (b[0] - a[0]) * i / steps, a[1] + (b[1] - a[1]) * i / steps) for i in range(steps + 1)]
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in middles]


def fits(box: Box, taken: Sequence[Box], frame: Spot) -> bool:
    """Whether a box lies within the axes and covers no other."""
    inside = box[0] >= 0 and box[2] <= frame[0] and box[1] >= 0 and box[3] <= frame[1]
    return inside and not overlap([box], taken)


def overlap(boxes: Sequence[Box], others: Sequence[Box]) -> bool:
    """Whether any of some boxes covers a part of any of the others."""
    a, b = np.reshape(boxes, (-1, 1, 4)), np.reshape(others, (1, -1, 4))
    return bool(((a[..., :2] < b[..., 2:]) & (b[..., :2] < a[..., 2:])).all(-1).any())


class End(NamedTuple):
    """The end of a line: its label, its last point, its colour."""

    words: str
    x: float
    y: float
    color: str


def at_ends(
    axes, ends: Sequence[End], apart: float, x: float | None = None, lead: float | None = None, offset=8, **style
) -> None:
    """Labels at the right ends of lines on a log axis, each at least a factor `apart` above the one below.

    x: where all labels begin; None for `offset` points beside each end. lead: where thin lines from the ends to the
    labels stop, if any. style: of `spread_labels` (centred, top) and of the text (size).
    """
    size, heights = style.pop("size", 9), spread_labels({i: end.y for i, end in enumerate(ends)}, apart, **style)
    for i, height in heights.items():
        end = ends[i]
        look = dict(va="center", fontsize=size, color=ends[i].color)
        if x is None:
            how = dict(textcoords="offset points", annotation_clip=False)
            axes.annotate(named_well(end.words), (end.x, height), (offset, 0), **how, **look)
            continue
        if lead is not None:
            axes.plot([end.x, lead], [end.y, height], color=end.color, linewidth=0.8, clip_on=False)
        axes.text(x, height, named_well(end.words), **look)


def spread_labels(at: dict, apart: float = 1.16, centred: bool = False, top: float = np.inf) -> dict:
    """Heights for labels on a log axis, each at least a factor `apart` above the one below. centred: no higher than
    lower on the whole, and none above `top`."""
    placed, floor = {}, 0.0
    for name, height in sorted(at.items(), key=lambda item: item[1]):
        floor = max(height, floor * apart)
        placed[name] = floor
    if not centred or not at:
        return placed
    shift = np.exp(np.mean([np.log(placed[name] / at[name]) for name in at]))
    shift = max(shift, max(placed.values()) / top)
    return {name: height / shift for name, height in placed.items()}


def readable(*axes_of_numbers) -> None:
    """Ticks of log axes as plain numbers at 1, 2 and 5: only at 1 if there are many decades, at more for less than one
    decade, where a ratio of some tenths must be readable."""
    for axis in axes_of_numbers:
        low, high = sorted(axis.get_view_interval())
        range_ = high / low if low > 0 else 10
        crowded = axis.axis_name == "x" and range_ > CROWDED
        axis.set_major_locator(LogLocator(subs=(1,) if crowded else (1, 1.5, 2, 3, 5, 7) if range_ < 10 else (1, 2, 5)))
        axis.set_minor_formatter("")
    plain(*axes_of_numbers)
