"""How a token's cost grows, one size at a time, beside what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.experiments.growth import table
from llama_lab.figures.labels import labelled, readable
from llama_lab.figures.marks import label
from llama_lab.figures.style import LIMIT_COLOUR, OTHERS, footnote, headline, new, styled

LINES = {"layers": "o-", "width": "s-", "context": "^-", "model": "D:"}
NOUNS = {"layers": "layers", "width": "width", "context": "cache slots", "model": "whole models"}
UNITS = {"layers": "{} layers", "width": "width {}", "context": "{} slots"}
MEASURED = dict(zip((*LINES, "batch"), OTHERS, strict=False))  # a colour a size that was varied


@styled
def growth(axes_points: dict[str, Sequence[dict]]) -> Figure:
    """Milliseconds per step against the bytes that it reads, a line per size that was varied (left), and against the
    rows of a batch (right), beside what bandwidth and arithmetic allow.

    axes_points: axis → `table.axis_of`.
    """
    both = "batch" in axes_points
    figure, panels = new(10.5, 5.2, columns=1 + both, squeeze=False, gridspec_kw={"width_ratios": [1.5, 1][: 1 + both]})
    by_bytes(panels[0][0], {axis: points for axis, points in axes_points.items() if axis in LINES and points})
    if both:
        by_rows(panels[0][1], axes_points["batch"])
    every = [p for points in axes_points.values() for p in points]
    counts = sorted({p["n"] for p in every}) or [0]
    processes = min((p["processes"] for p in every), default=0)
    n = "-".join(str(n) for n in (counts[0], counts[-1])[: len(counts)])
    words = f"median of n = {n} answers in {processes} process{'es' * (processes != 1)}"
    footnote(figure, f"Mark: {words}; line: all of them.")
    headline(figure, table.claim(axes_points))
    return figure


def by_bytes(axes, found: dict[str, Sequence[dict]]) -> None:
    """Every size on one scale: what it reads and how long it takes."""
    marks, lines = [], []
    for axis, points in found.items():
        tint = MEASURED[axis]
        x = [p["bytes"] / 1e6 for p in points]
        alike = [p for p in points if " " not in p["value"]]  # a placement of its own lies on no line of others
        others = [p for p in points if p not in alike]
        for some, line, name in ((alike, LINES[axis], NOUNS[axis]), (others, LINES[axis][0], None)):
            at = [p["bytes"] / 1e6 for p in some]
            axes.plot(at, [p["median"] for p in some], line, color=tint, linewidth=1.6, label=name)
        axes.vlines(x, [min(p["ms"]) for p in points], [max(p["ms"]) for p in points], color=tint, alpha=0.5)
        shown = points if axis == "model" else (points[0], points[-1])
        for p in shown:  # of a whole model its name, and below it the placement that is its own
            model, _, placement = p["value"].partition(" ")
            words = label(model).replace("\n", "") + f"\n{placement}" * bool(placement)
            words = UNITS[axis].format(p["value"]) if axis in UNITS else words
            marks.append((words, p["bytes"] / 1e6, p["median"], tint))
        lines.append((x, [p["median"] for p in points]))
    points = [p for each in found.values() for p in each]
    if points:
        bandwidth = points[0]["bytes"] / points[0]["bytes_ms"]  # one of all points
        ends = np.array([min(p["bytes"] for p in points), max(p["bytes"] for p in points)])
        axes.plot(ends / 1e6, ends / bandwidth, color=LIMIT_COLOUR, linestyle="--", label="bytes / bandwidth")
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0.1, y=0.12)
    axes.set(xlabel="MB that a token reads (log scale)", ylabel="ms a token (log scale)")
    readable(axes.xaxis, axes.yaxis)
    axes.legend(fontsize=9, loc="upper left")
    labelled(axes, marks, lines)


def by_rows(axes, points: Sequence[dict]) -> None:
    """A step against the rows of its batch, with both limits."""
    x = [int(p["value"]) for p in points]
    axes.plot(x, [p["median"] for p in points], "o-", color=MEASURED["batch"], linewidth=1.6, label="measured")
    axes.vlines(x, [min(p["ms"]) for p in points], [max(p["ms"]) for p in points], color=MEASURED["batch"], alpha=0.5)
    limits = {"bytes / bandwidth": ("bytes_ms", "--"), "operations / arithmetic": ("flops_ms", ":")}
    for words, (key, line) in limits.items():
        if all(p[key] for p in points):
            axes.plot(x, [p[key] for p in points], line, color=LIMIT_COLOUR, label=words)
    axes.set(xscale="log", yscale="log", xlabel="rows of a batch (log scale)", ylabel="ms a step (log scale)")
    axes.set_xticks(x, [str(at) for at in x])
    axes.minorticks_off()
    readable(axes.yaxis)
    axes.legend(fontsize=9, loc="upper left")
