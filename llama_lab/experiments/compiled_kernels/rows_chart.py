"""Chart of what a pass of several rows costs, over one row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_lab.bench.available import backend_of
from llama_lab.experiments.compiled_kernels import finding
from llama_lab.experiments.compiled_kernels.rows import BATCH, KINDS, SEQUENCE
from llama_lab.figures import labels, rows
from llama_lab.figures.labels import End
from llama_lab.figures.marks import look
from llama_lab.figures.style import LIMIT_COLOUR, headline, new, styled

TITLES = {SEQUENCE: "Tokens of one sequence", BATCH: "One token of each of several"}
DASHES = ("-", "--", ":", "-.")


@styled
def costs(entries: Sequence[dict]) -> Figure:
    """Time of a pass over that of one row, against rows; a panel a kind of rows, a line an engine and context.

    entries: `rows.table`.
    """
    figure, panels = new(11, 4.9, columns=2, sharey=True)
    contexts = sorted({e["context"] for e in entries})
    for axes, kind in zip(panels, KINDS, strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        mine = [e for e in entries if e["ratio"].n and (e["kind"] == kind or e["rows"] == 1)]
        ends = []
        for engine in dict.fromkeys(e["engine"] for e in mine):
            for context, dashes in zip(contexts, cycle(DASHES), strict=False):
                points = [e for e in mine if (e["engine"], e["context"]) == (engine, context)]
                if len(points) > 1:
                    ends.append(line(axes, sorted(points, key=lambda e: e["rows"]), dashes))
        counts = sorted({e["rows"] for e in mine}) or [1, 2]
        last = counts[-1]
        axes.plot(counts, counts, color=LIMIT_COLOUR, linewidth=1, linestyle=(0, (1, 2)))
        above = dict(textcoords="offset points", ha="right", va="bottom", fontsize=8.5, color=LIMIT_COLOUR)
        axes.annotate("each row as much as one", (last, last), (-4, 0), **above)
        labels.at_ends(axes, ends, 1.12, size=8.5, centred=True)
        axes.set_xticks(counts, counts)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(right=last**1.6)
        ticks = [2**i for i in range(6) if 2**i <= last]
        axes.set_yticks(ticks, ticks)
        axes.yaxis.set_minor_locator(NullLocator())
        n = min((e["ratio"].n for e in mine), default=0)
        axes.set_xlabel(f"rows in one pass (log scale;\nn ≥ {n} processes, bars: 95 % intervals)")
        axes.set_title(TITLES[kind], fontsize=12)
    panels[0].set_ylabel("time of a pass, over one row's (log scale)")
    said = finding.together(entries) or "what rows cost was not measured"
    headline(figure, said[0].upper() + said[1:])
    return figure


def line(axes, points: Sequence[dict], dashes: str) -> End:
    """One engine at one context."""
    engine, context = points[0]["engine"], points[0]["context"]
    (colour, marker), counts = look(engine, backend_of(engine)), [e["rows"] for e in points]
    low, values, high = zip(*(rows.ends(e["ratio"]) for e in points), strict=True)
    style = dict(linestyle=dashes, marker=marker, markersize=6, markeredgecolor="white", linewidth=1.8)
    axes.plot(counts, values, color=colour, **style)
    axes.vlines(counts, low, high, color=colour, linewidth=1.4)
    return End(f"{engine}, context {context}", counts[-1], values[-1], colour)
