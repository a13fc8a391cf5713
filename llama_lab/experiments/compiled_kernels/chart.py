"""Charts of compiled kernels: where a token's time goes, and how rates go with context and threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_lab.experiments.compiled_kernels import finding, where
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End, readable
from llama_lab.figures.marks import look
from llama_lab.figures.style import LIMIT_COLOUR, colour, headline, new, styled

LINES = ("-", "--", ":", "-.")


@styled
def token_parts(entries: Sequence[dict], context: int) -> Figure:
    """Milliseconds of a token at a context and of its parts, each by what its absence saves, with 95 % intervals; a
    panel a placement.

    entries: `where.table`.
    """
    shown = max(1, len(entries))  # an empty panel says that there is nothing
    columns = min(3, shown)
    lines = math.ceil(shown / columns)
    figure, panels = new(max(7.0, 4.9 * columns), 3.6 * lines, columns, lines, squeeze=False)
    for axes in panels.flat[shown:]:
        axes.set_axis_off()
    for axes, e in zip(panels.flat, entries, strict=False):
        heights, tint = rows.heights(axes, ["a token", *(where.WORDS[part] for part in where.PARTS)]), colour(e["name"])
        room = 1.45 * e["total"]
        for i, part in enumerate(where.PARTS):
            height = len(where.PARTS) - 1 - i
            axes.barh(height, e[part], height=0.5, color=tint, alpha=0.35)
            axes.plot([e[f"{part}_low"], e[f"{part}_high"]], [height] * 2, color="black", linewidth=1.8)
            end = np.nanmax([e[part], e[f"{part}_high"], 0])
            axes.text(min(end, room), height, f" {part_words(e, part)}", va="center", fontsize=9)
        top = heights["a token"]
        axes.barh(top, e["total"], height=0.5, color=tint)
        axes.text(e["total"], top, f" {e['total']:.1f} ms", va="center", fontsize=9, fontweight="bold")
        axes.plot([e["limit"]] * 2, [top - 0.35, top + 0.35], color=LIMIT_COLOUR, linewidth=2, linestyle=(0, (2, 1)))
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlim(right=room)
        axes.set_title(e["name"], color=tint)
        axes.set_xlabel(
            f"ms at context {context} (mean,\nn = {e['n']} blocks; line: 95 %;\nred: the bandwidth's limit)"
        )
    for axes in panels[:, 1:].flat:
        axes.set_yticklabels([])
    if not entries:
        notes.empty(panels[0][0], "no placement has all of its differences", color=LIMIT_COLOUR)
    headline(figure, most_of_a_token(entries))
    return figure


def part_words(entry: dict, part: str) -> str:
    """`6.1 ms`, or that noise hides it."""
    return "hidden by noise" if finding.hidden(entry, part) else f"{entry[part]:.1f} ms"


def most_of_a_token(entries: Sequence[dict]) -> str:
    """The largest part of a token under the first placement, and what it takes under that and the last."""
    if not entries:
        return "Where a token's time goes was not measured"
    most = max(where.PARTS, key=lambda part: entries[0][part])
    said = (f"{e[most]:.1f} of {e['total']:.1f} ms under {e['name']}" for e in (entries[0], *entries[1:][-1:]))
    return f"Of a token the {most} take most: {', '.join(said)}"


TITLES = {"context": "Tokens in the cache", "threads": "Threads"}
NOUNS = {"context": "tokens of prompt and answer", "threads": "cores the process may use"}


@styled
def scaling(axes_points: dict[str, dict[str, list[dict]]], backends: dict[str, str]) -> Figure:
    """Tokens/s against context and threads, a line a subject; every answer a point.

    axes_points: axis → `precision.scaling.axis_of`. backends: of each subject.
    """
    figure, panels = new(5.2 * len(axes_points), 4.9, columns=len(axes_points), squeeze=False, sharey=True)
    names = dict.fromkeys(name for found in axes_points.values() for name in found)
    forms = dict(zip(names, cycle(LINES), strict=False))
    for axes, (axis, found) in zip(panels[0], axes_points.items(), strict=True):
        places = {v: int(v) for v in sorted({p["value"] for points in found.values() for p in points}, key=int)}
        axes.set_yscale("log")
        if axis == "context" and found and max(places.values()) > 8 * min(places.values()):
            axes.set_xscale("log")
        lines(axes, found, places, backends, forms)
        axes.set_xticks(list(places.values()), list(places), fontsize=9)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.08)
        room_at_right(axes, 0.025 * max((len(text.get_text()) for text in axes.texts), default=0))
        readable(axes.yaxis)
        n = min((p["rate"].n for points in found.values() for p in points), default=0)
        axes.set_xlabel(f"{NOUNS[axis]}\n(dot: an answer, n ≥ {n} each; line: medians; x: last over first)", fontsize=9)
        axes.set_title(TITLES[axis], fontsize=12)
        if not found:
            notes.empty(axes, "nothing measured", color=LIMIT_COLOUR)
    panels[0][0].set_ylabel("decode rate, tokens/s (log scale)")
    said = finding.kept(axes_points.get("context", {})) or "how rates go with the context was not measured"
    headline(figure, said[0].upper() + said[1:])
    return figure


def room_at_right(axes, share: float) -> None:
    """Lengthen the axis to the right by a share of what is drawn on it, for labels at the ends of lines."""
    (low, high), scale = axes.get_xlim(), axes.xaxis.get_transform()
    low, high = scale.transform([low, high])
    axes.set_xlim(right=scale.inverted().transform(high + share * (high - low)))


def lines(
    axes, found: dict[str, list[dict]], places: dict[str, float], backends: dict[str, str], forms: dict[str, str]
) -> None:
    """Each subject's answers and medians, its name at the end of its line."""
    ends = []
    for name, points in found.items():
        (tint, marker), xs = look(name, backends[name]), [places[p["value"]] for p in points]
        each = [(x, v) for x, p in zip(xs, points, strict=True) for v in p["points"]]
        axes.scatter(*zip(*each, strict=True), s=12, color=tint, alpha=0.4, linewidths=0)
        medians = [p["rate"].median for p in points]
        line = dict(linewidth=1.8, linestyle=forms[name], marker=marker, markersize=6, markeredgecolor="white")
        axes.plot(xs, medians, color=tint, **line)
        ends.append(End(f"{name}  {medians[-1] / medians[0]:.2f}x", xs[-1], medians[-1], tint))
    labels.at_ends(axes, ends, 1.13, offset=9, size=8.5, centred=True)
