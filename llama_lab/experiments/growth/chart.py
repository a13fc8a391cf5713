"""How a token's cost grows, one size at a time, beside what the machine allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from llama_lab.experiments.growth import table
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import label
from llama_lab.figures.style import LIMIT_COLOUR, OTHERS, footnote, headline, new, styled

ACROSS = 3  # panels in a line


@styled
def growth(axes_points: Mapping[str, Sequence[dict]]) -> Figure:
    """Milliseconds per step against each size, a panel each, beside what bandwidth and arithmetic allow.

    axes_points: axis → `table.axis_of`.
    """
    found = {axis: points for axis, points in axes_points.items() if points}
    lines = 1 + (len(found) > ACROSS)
    size = dict(columns=min(len(found), ACROSS) or 1, lines=lines)
    figure, panels = new(11.5, 2.2 + 2.9 * lines, **size, sharey=True, squeeze=False)
    for axes, (axis, points) in zip(panels.flat, found.items(), strict=False):
        beside_limit(axes, points)
        axes.set_title(table.NOUNS[axis], fontsize=11)
    for axes in panels[:, 0]:
        axes.set(yscale="log", ylabel="ms a step (log scale)")
        readable(axes.yaxis)
    for axes in panels.flat[max(1, len(found)) :]:
        axes.set_axis_off()
    empty, number = panels.size > len(found) > 0, Line2D([], [], linestyle="", label="2.0x: measured over limit")
    shown = [*panels.flat[0].get_legend_handles_labels()[0], number]
    where = dict(loc="center", fontsize=11) if empty else dict(loc="upper left", fontsize=9)
    panels.flat[-1 if empty else 0].legend(handles=shown, **where)
    every = [p for points in found.values() for p in points]
    counts = sorted({p["n"] for p in every}) or [0]
    processes = min((p["processes"] for p in every), default=0)
    n = "-".join(str(n) for n in (counts[0], counts[-1])[: len(counts)])
    words = f"median of n = {n} answers in {processes} process{'es' * (processes != 1)}"
    own = " Square: under the placement that its label names." if any(" " in p["value"] for p in every) else ""
    said = f"Mark: {words}; line: all of them; number: how many times the limit.{own} Red band: up to the limit by the"
    footnote(figure, f"{said} median probe. Sizes are not to scale.")
    headline(figure, table.claim(axes_points))
    return figure


def beside_limit(axes, points: Sequence[dict]) -> None:
    """One size: its points at equal distances, what each took, and the limit of each. A point under a placement of its
    own is joined with no other: it would be a step of two things at once."""
    x, alike = range(len(points)), [i for i, p in enumerate(points) if " " not in p["value"]]
    for joined in (alike, *([i] for i in x if i not in alike)):
        took, limits = [points[i]["median"] for i in joined], [table.limit(points[i]) for i in joined]
        mark = "o-" if joined is alike else "s"
        axes.plot(joined, took, mark, color=OTHERS[0], linewidth=1.8, label="measured")
        axes.plot(joined, limits, "--" if joined is alike else "_", color=LIMIT_COLOUR, markersize=14, label="limit")
        usual = [table.limit(points[i], table.PROBES[1]) for i in joined]
        axes.fill_between(joined, limits, usual, color=LIMIT_COLOUR, alpha=0.15, linewidth=0)
    axes.vlines(x, [min(p["ms"]) for p in points], [max(p["ms"]) for p in points], color=OTHERS[0], alpha=0.5)
    for at in {0, *alike[-1:], len(points) - 1, max(x, key=lambda i: table.over(points[i]))}:
        words = f"{table.over(points[at]):.1f}x"
        axes.annotate(words, (at, points[at]["median"]), (-3, 6), textcoords="offset points", ha="right", fontsize=9.5)
    names = [(model, placement) for model, _, placement in (p["value"].partition(" ") for p in points)]
    words = ["\n".join([label(model), *placement.replace("+", " +").split()]) for model, placement in names]
    axes.set_xticks(x, words, fontsize=9.5)
    axes.set_xlim(-0.6, len(points) - 0.6)
    axes.margins(y=0.15)  # a number stands to the left of its mark, where no line rises to the next
