"""Horizontal rows: a name at the left, every value as a point, the median and its 95% interval, words at the right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench.wording import named_well
from llama_lab.figures.style import LIMIT_COLOUR, colour


def heights(axes, names: Sequence[str]) -> dict[str, int]:
    """One row per name, first on top, runtimes written as their makers do; returns each name's height."""
    placed = {name: len(names) - 1 - i for i, name in enumerate(names)}
    axes.set_yticks(list(placed.values()), list(map(named_well, placed)))
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="y", visible=False)
    return placed


def points(axes, values: Sequence[float], height: float, color: str, seed=0, spread=0.22, even=False, **style) -> None:
    """Every value as a point, spread upwards and downwards so that none hides another: at random from the seed (or
    generator), or evenly in the order of the values. style: of `axes.scatter`."""
    count = len(values)
    offsets = (
        np.linspace(-spread, spread, count) if even else np.random.default_rng(seed).uniform(-spread, spread, count)
    )
    look = dict(s=12, alpha=0.45, linewidths=0, zorder=2) | style
    axes.scatter(values, height + offsets, color=color, **look)


def ends(summary) -> tuple[float, float, float]:
    """(low, middle, high) of a Summary, a Ratio, an entry with such keys, or three numbers."""
    if isinstance(summary, tuple):
        return summary
    fields = summary if isinstance(summary, dict) else vars(summary)
    return fields["low"], fields["median"] if "median" in fields else fields["value"], fields["high"]


def interval(axes, summary, height: float, color="black", mark=18.0, edge=2.2, zorder=(3, 4), **band) -> None:
    """An interval as a band in a colour and its middle as an upright black mark, over the row's points.

    summary: as of `ends`; without finite ends only the mark is drawn. mark: its size in points; edge: its width.
    zorder: of the band and of the mark. band: of `axes.plot`.
    """
    low, middle, high = ends(summary)
    if np.isfinite(low):
        look = dict(linewidth=5, alpha=0.35, solid_capstyle="butt") | band
        axes.plot([low, high], [height] * 2, color=color, zorder=zorder[0], **look)
    median(axes, middle, height, mark, edge, zorder[1])


def median(axes, value: float, height: float, mark=18.0, edge=2.0, zorder=2) -> None:
    """An upright black mark in a row."""
    axes.plot(value, height, "|", color="black", markersize=mark, markeredgewidth=edge, zorder=zorder)


def tick(axes, limit: float, height: float) -> None:
    """A row's own limit."""
    axes.plot([limit] * 2, [height - 0.3, height + 0.3], color=LIMIT_COLOUR, linewidth=2, linestyle=(0, (2, 1)))


def beside(axes, height: float, words: str, size=9.0, x=1.01, **style) -> None:
    """Words at a row's height; x: where they begin, as a share of the axes' width. style: of `axes.text`."""
    axes.text(x, height, words, va="center", fontsize=size, transform=axes.get_yaxis_transform(), **style)


def subject(axes, name: str, values: Sequence[float], summary, height: float, words: str, seed=0, mark=18.0) -> None:
    """A subject's row in its colour: every value, the median with its interval, and words at the right."""
    points(axes, values, height, colour(name), seed)
    interval(axes, summary, height, mark=mark)
    beside(axes, height, words)
