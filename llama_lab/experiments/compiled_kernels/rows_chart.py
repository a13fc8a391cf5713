"""Chart of what a pass of several rows costs, over one row."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_lab.bench.available import backend_of
from llama_lab.experiments.compiled_kernels import finding
from llama_lab.experiments.compiled_kernels.rows import BATCH, KINDS, SEQUENCE
from llama_lab.figures.labels import spread_labels
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
        ends = {}
        for engine in dict.fromkeys(e["engine"] for e in mine):
            for context in contexts:
                points = sorted(
                    (e for e in mine if (e["engine"], e["context"]) == (engine, context)), key=lambda e: e["rows"]
                )
                if len(points) > 1:
                    ends[f"{engine}, context {context}"] = line(
                        axes, points, DASHES[contexts.index(context) % len(DASHES)]
                    )
        rows = sorted({e["rows"] for e in mine}) or [1, 2]
        axes.plot(rows, rows, color=LIMIT_COLOUR, linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate("each row as much as one", (rows[-1], rows[-1]), (-4, 0), textcoords="offset points",
                      ha="right", va="bottom", fontsize=8.5, color=LIMIT_COLOUR)  # fmt: skip
        for name, height in spread_labels({name: y for name, (_, y, _) in ends.items()}, 1.12, centred=True).items():
            x, _, colour = ends[name]
            axes.annotate(name, (x, height), (8, 0), textcoords="offset points", va="center", fontsize=8.5,
                          color=colour, annotation_clip=False)  # fmt: skip
        axes.set_xticks(rows, rows)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(right=rows[-1] ** 1.6)
        ticks = [2**i for i in range(6) if 2**i <= rows[-1]]
        axes.set_yticks(ticks, ticks)
        axes.yaxis.set_minor_locator(NullLocator())
        n = min((e["ratio"].n for e in mine), default=0)
        axes.set_xlabel(f"rows in one pass (log scale;\nn ≥ {n} processes, bars: 95 % intervals)")
        axes.set_title(TITLES[kind], fontsize=12)
    panels[0].set_ylabel("time of a pass, over one row's (log scale)")
    said = finding.together(entries) or "what rows cost was not measured"
    headline(figure, said[0].upper() + said[1:])
    return figure


def line(axes, points: Sequence[dict], dashes: str) -> tuple[float, float, str]:
    """One engine at one context; its last point and its colour."""
    (colour, marker), ratios = look(points[0]["engine"], backend_of(points[0]["engine"])), [e["ratio"] for e in points]
    rows = [e["rows"] for e in points]
    axes.plot(rows, [r.value for r in ratios], color=colour, linestyle=dashes, marker=marker, markersize=6,
              markeredgecolor="white", linewidth=1.8)  # fmt: skip
    axes.vlines(rows, [r.low for r in ratios], [r.high for r in ratios], color=colour, linewidth=1.4)
    return rows[-1], ratios[-1].value, colour
