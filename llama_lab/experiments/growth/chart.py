"""How a token's cost grows, one size at a time, beside what the machine allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from llama_lab.bench.wording import counted
from llama_lab.experiments.growth import table
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import label
from llama_lab.figures.style import LIMIT_COLOUR, OTHERS, footnote, headline, new, styled

ACROSS = 3  # panels in a line
AROUND = 0.45  # powers of ten beside a panel's points, both sides together
LABEL = 0.045  # of a panel's height: a line of words below it, for which its row is higher, so that panels are alike
MARGIN = 0.2  # powers of ten that the margin of a further panel takes
MEDIAN = "up to the limit by\nthe median probe"  # a band
APART = 0.13  # powers of ten between two sizes that are both written
Points = Sequence[dict]


@styled
def growth(axes_points: Mapping[str, Points]) -> Figure:
    """Milliseconds per step against each size, a panel each, beside what bandwidth and arithmetic allow. A power of ten
    is as wide in each panel; whole models stand at equal distances.

    axes_points: axis → `table.axis_of`.
    """
    found = {axis: points for axis, points in axes_points.items() if points}
    lines = [[*found][i : i + ACROSS] for i in range(0, len(found), ACROSS)] or [[]]
    widest = max(sum(room(found[axis]) for axis in line) for line in lines)
    figure, whole = new(11.5, 2.2 + 2.9 * len(lines))
    whole.remove() if found else whole.set_axis_off()
    grown, verdicts, panels = table.growths(found), table.verdicts(found), []
    below = {axis: (axis in grown) + max(w.count("\n") for w in ticks(points)[1]) for axis, points in found.items()}
    tall = [1 + LABEL * max((1 + below[axis] for axis in line), default=0) for line in lines]
    rows = figure.add_gridspec(len(lines), 1, height_ratios=tall)
    for row, line in zip(rows, lines, strict=True):
        rooms = [room(found[axis]) for axis in line]
        left = widest - sum(rooms) - MARGIN
        ratios = [*rooms, *[left] * (left > 0)]
        places = row.subgridspec(1, len(ratios) or 1, width_ratios=ratios or None)
        for axis, place in zip(line, places, strict=False):
            panels.append(figure.add_subplot(place, sharey=panels[0] if panels else None))
            panel(panels[-1], axis, found[axis])
            if axis in grown:
                words = "time grows {longer:.1f}x, limit {limit:.1f}x".format(**grown[axis])
                panels[-1].set_xlabel(words + f": {verdicts[axis]}" * (axis in verdicts), fontsize=9.5)
            if axis == line[0]:
                panels[-1].set(yscale="log", ylabel="ms a step (log scale)")
                readable(panels[-1].yaxis)
            else:
                panels[-1].tick_params(labelleft=False)
    number = Line2D([], [], linestyle="", label="2.0x: measured over limit")
    shown = [*(panels[0].get_legend_handles_labels()[0] if panels else ()), number]
    if len(lines) > 1 and left > 0.8:
        rest = figure.add_subplot(places[-1])
        rest.set_axis_off()
        title = "All sizes have one logarithmic\nscale, so an equal slope is equal\ngrowth (not for whole models)."
        look = dict(fontsize=9.5, title_fontsize=9.5, handlelength=1.5, borderpad=0, alignment="left")
        rest.legend(handles=shown, title=title, loc="center left", **look)
    else:
        (panels[0] if panels else whole).legend(handles=shown, loc="upper left", fontsize=9)
    every = [p for points in found.values() for p in points]
    processes = min((p["processes"] for p in every), default=0)
    words = f"median of {counted(p['n'] for p in every)} answers in {processes} process{'es' * (processes != 1)}"
    alone = " Square: under the placement that its label names." if any(" " in p["value"] for p in every) else ""
    said = f"Mark: {words}; line: all of them.{alone}"
    if "undecided" in verdicts.values():
        fold = table.spread(found)
        said += f" Undecided: less than {table.ABOUT * fold:.2f}-fold apart"
        said += f" ({table.ABOUT:g} times the {fold:.2f}-fold spread of one configuration between processes)."
    footnote(figure, said)
    headline(figure, table.gap(axes_points))
    return figure


def scaled(points: Points) -> bool:
    """Whether the sizes are numbers, and not models."""
    return points[0]["axis"] != "model"


def room(points: Points) -> float:
    """A panel's width in powers of ten."""
    if not scaled(points):
        return 0.5 * len(points)
    return math.log10(int(points[-1]["value"]) / int(points[0]["value"])) + AROUND


def panel(axes, axis: str, points: Points) -> None:
    """One size."""
    x, words = ticks(points)
    beside_limit(axes, x, points)
    if scaled(points):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        beside = 10 ** (AROUND / 2)
        axes.set_xlim(x[0] / beside, x[-1] * beside)
    else:
        axes.set_xlim(-0.6, len(points) - 0.6)
    axes.set_xticks(x, words, fontsize=9.5)
    axes.set_title(table.NOUNS[axis] + " (at equal distances)" * (not scaled(points)), fontsize=11)
    axes.margins(y=0.15)  # a number stands to the left of its mark, where no line rises to the next


def ticks(points: Points) -> tuple[list[int], list[str]]:
    """Where points stand on their axis, and the words below them."""
    if scaled(points):
        x = [int(p["value"]) for p in points]
        return x, staggered(x, [p["value"] for p in points])
    names = [(model, placement) for model, _, placement in (p["value"].partition(" ") for p in points)]
    return [*range(len(points))], ["\n".join([label(model), *own(placement)]) for model, placement in names]


def staggered(x: Sequence[float], words: Sequence[str]) -> list[str]:
    """The words of ticks on a log axis, those too near to the next one a line lower, or left out where that is taken as
    well."""
    placed, ends = [], [math.inf, math.inf]
    for at, word in zip(x[::-1], words[::-1], strict=True):
        level = next((i for i, end in enumerate(ends) if math.log10(end / at) >= APART), None)
        placed.append("" if level is None else "\n" * level + word)
        if level is not None:
            ends[level] = at
    return placed[::-1]


def own(placement: str) -> list[str]:
    """The lines of a placement's name below a model's: `loop+q4_1`, `+fused`; none for none."""
    first, plus, last = placement.rpartition("+")
    return [part for part in (first, plus + last) if part]


def beside_limit(axes, x: Sequence[float], points: Points) -> None:
    """What each point took, and its limit. A point under a placement of its own is joined with no other: it would be a
    step of two things at once."""
    alike = [i for i, p in enumerate(points) if " " not in p["value"]]
    for joined in (alike, *([i] for i in range(len(points)) if i not in alike)):
        at = [x[i] for i in joined]
        took, limits = [points[i]["median"] for i in joined], [table.limit(points[i]) for i in joined]
        mark = "o-" if joined is alike else "s"
        axes.plot(at, took, mark, color=OTHERS[0], linewidth=1.8, label="measured")
        axes.plot(
            at,
            limits,
            "--" if joined is alike else "_",
            color=LIMIT_COLOUR,
            markersize=14,
            label="memory or arithmetic limit",
        )
        usual = [table.limit(points[i], table.PROBES[1]) for i in joined]
        axes.fill_between(at, limits, usual, color=LIMIT_COLOUR, alpha=0.15, linewidth=0, label=MEDIAN)
    axes.vlines(x, [min(p["ms"]) for p in points], [max(p["ms"]) for p in points], color=OTHERS[0], alpha=0.5)
    most = max(range(len(points)), key=lambda i: table.over(points[i]))
    for i in {0, *alike[-1:], len(points) - 1, most}:
        words, spot = f"{table.over(points[i]):.1f}x", (x[i], points[i]["median"])
        axes.annotate(words, spot, (-3, 6), textcoords="offset points", ha="right", fontsize=9.5)
