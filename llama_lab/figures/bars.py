"""Horizontal bars of parts that add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Part(NamedTuple):
    """How a part of a bar is drawn: its colour, its hatch, and its label in the legend."""

    color: str
    hatch: str = ""
    label: str | None = None


def stack(axes, height: float, lengths: Iterable[tuple[float, Part]], size=0.55) -> float:
    """A bar of parts one after the other; returns where it ends. size: the bar's own height."""
    end = 0.0
    for length, part in lengths:
        axes.barh(height, length, left=end, edgecolor="white", height=size, **part._asdict())
        end += length
    return end


def legend(axes, parts: Mapping[str, Part]) -> None:
    """An empty bar a part, for the legend."""
    for label, part in parts.items():
        axes.barh(0, 0, edgecolor="white", color=part.color, hatch=part.hatch, label=label)
