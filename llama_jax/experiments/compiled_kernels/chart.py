"""Charts of compiled kernels: where a token's time goes, and how rates go with context and threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_jax.experiments.compiled_kernels import where
from llama_jax.figures.labels import readable
from llama_jax.figures.marks import look, spread_labels
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, new, rows, styled

PART_STYLES = {
    "layers": (PALETTE["blue"], ""),
    "attention": (PALETTE["orange"], "//"),
    "head": (PALETTE["green"], ".."),
    "rest": ("#BBBBBB", "xx"),
}
LINES = ("-", "--", ":", "-.")


@styled
def token_parts(entries: Sequence[dict], context: int) -> Figure:
    """Milliseconds of a token at a context, split into layers, attention, head and the rest, a bar a placement; below
    each part its
    95 % interval.

    entries: `precision.where.table`.
    """
    figure, axes = new(11.5, 0.8 * max(len(entries), 1) + 2.2)
    heights = rows(axes, [e["name"] for e in entries])
    for e in entries:
        bar(axes, e, heights[e["name"]], e is entries[0])
    axes.set_xlim(0, 1.75 * max((sum(max(e[part], 0.0) for part in where.PARTS) for e in entries), default=1.0))
    n = min((e["n"] for e in entries), default=0)
    axes.set_xlabel(
        f"ms a token at context {context} (mean of n ≥ {n} blocks; lines below: 95 % intervals of where the"
        " parts end;\n"
        "black: a whole token, shorter than the bar where noise made a part negative; red: bandwidth's limit)"
    )
    if entries:
        figure.legend(loc="outside upper center", ncols=len(where.PARTS), fontsize=9)
    else:
        axes.text(
            0.5,
            0.5,
            "no placement has all of its differences",
            transform=axes.transAxes,
            ha="center",
            color=LIMIT_COLOUR,
        )
    axes.set_title("Where a token's time goes, by differences", fontsize=12)
    return figure


def bar(axes, entry: dict, height: float, named: bool) -> None:
    """One placement's parts side by side; named: in the legend. A part that noise made negative has no width, but its
    number."""
    left = 0.0
    for i, part in enumerate(where.PARTS):
        (colour, hatch), width = PART_STYLES[part], max(entry[part], 0.0)
        axes.barh(
            height,
            width,
            left=left,
            height=0.5,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            label=where.WORDS[part] if named else None,
        )
        if np.isfinite(entry[f"{part}_low"]):
            ends = [max(0.0, left + entry[f"{part}_{end}"]) for end in ("low", "high")]
            axes.plot(ends, [height - 0.3 - 0.055 * i] * 2, color=colour, linewidth=2.2, solid_capstyle="butt")
        left += width
    split = ", ".join(f"{part} {entry[part]:.2f}" for part in where.PARTS)
    axes.plot([entry["total"]] * 2, [height - 0.25, height + 0.32], color="black", linewidth=1.5)
    axes.plot(
        [entry["limit"]] * 2, [height - 0.25, height + 0.3], color=LIMIT_COLOUR, linewidth=2, linestyle=(0, (2, 1))
    )
    axes.text(max(left, entry["total"]), height, f"  {entry['total']:.2f} ms: {split}", va="center", fontsize=8.5)


TITLES = {"context": "Tokens in the cache", "threads": "Threads"}
NOUNS = {"context": "tokens of prompt and answer", "threads": "cores the process may use"}


@styled
def scaling(axes_points: dict[str, dict[str, list[dict]]], backends: dict[str, str]) -> Figure:
    """Tokens/s against context and threads, a line a subject; every answer a point.

    axes_points: axis → `precision.scaling.axis_of`. backends: of each subject.
    """
    figure, panels = new(5.2 * len(axes_points), 4.9, columns=len(axes_points), squeeze=False, sharey=True)
    for axes, (axis, found) in zip(panels[0], axes_points.items(), strict=True):
        places = {v: int(v) for v in sorted({p["value"] for points in found.values() for p in points}, key=int)}
        axes.set_yscale("log")
        if axis == "context" and found and max(places.values()) > 8 * min(places.values()):
            axes.set_xscale("log")
        lines(axes, found, places, backends)
        axes.set_xticks(list(places.values()), list(places), fontsize=9)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.08)
        room_at_right(axes, 0.025 * max((len(text.get_text()) for text in axes.texts), default=0))
        readable(axes.yaxis)
        n = min((p["rate"].n for points in found.values() for p in points), default=0)
        axes.set_xlabel(f"{NOUNS[axis]}\n(dot: an answer, n ≥ {n} each; line: medians; x: last over first)", fontsize=9)
        axes.set_title(TITLES[axis], fontsize=12)
        if not found:
            axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=LIMIT_COLOUR)
    panels[0][0].set_ylabel("decode rate, tokens/s (log scale)")
    return figure


def room_at_right(axes, share: float) -> None:
    """Lengthen the axis to the right by a share of what is drawn on it, for labels at the ends of lines."""
    (low, high), scale = axes.get_xlim(), axes.xaxis.get_transform()
    low, high = scale.transform([low, high])
    axes.set_xlim(right=scale.inverted().transform(high + share * (high - low)))


def lines(axes, found: dict[str, list[dict]], places: dict[str, float], backends: dict[str, str]) -> None:
    """Each subject's answers and medians, its name at the end of its line."""
    ends = {}
    for i, (name, points) in enumerate(found.items()):
        (colour, marker), xs = look(name, backends[name]), [places[p["value"]] for p in points]
        each = [(x, v) for x, p in zip(xs, points, strict=True) for v in p["points"]]
        axes.scatter(*zip(*each, strict=True), s=12, color=colour, alpha=0.4, linewidths=0)
        axes.plot(
            xs,
            [p["rate"].median for p in points],
            color=colour,
            linewidth=1.8,
            linestyle=LINES[i % len(LINES)],
            marker=marker,
            markersize=6,
            markeredgecolor="white",
        )
        first, last = points[0]["rate"].median, points[-1]["rate"].median
        ends[name] = (xs[-1], last, colour, f"{name}  {last / first:.2f}x")
    for name, height in spread_labels({name: y for name, (_, y, _, _) in ends.items()}, 1.13, centred=True).items():
        x, _, colour, words = ends[name]
        axes.annotate(
            words,
            (x, height),
            (9, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=colour,
            annotation_clip=False,
        )
