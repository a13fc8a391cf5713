"""Charts of servers under load: against the rate, and by the shapes of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_lab.bench.wording import counted, named_well
from llama_lab.experiments.what_serving_needs import finding
from llama_lab.figures import rows
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import WIDE, look
from llama_lab.figures.style import LIMIT_COLOUR, footnote, headline, new, styled

SPAN = (10, 90)  # percentiles of the first tokens of a load between which its bar lies


@styled
def under_load(rising: dict[str, list[dict]], missing: Sequence[dict] = ()) -> Figure:
    """Tokens a second and the first token against the offered rate, a line per server.

    rising: `table.rising`. missing: servers that did not run, each named.
    """
    figure, panels = new(11, 5, columns=2)
    tokens, first = panels
    every = [e for entries in rising.values() for e in entries]
    most = max((e["arrived"] for e in every), default=0)
    for i, (name, entries) in enumerate(rising.items()):
        (shade, marker), apart = look(name, entries[0]["backend"]), 1.035 ** (i - (len(rising) - 1) / 2)
        x, known = [e["arrived"] * apart for e in entries], [e for e in entries if e["points"]]
        style = dict(color=shade, marker=marker, markersize=6, linewidth=2)
        for e in known:
            span = np.percentile(e["points"], SPAN) / 1e3
            first.vlines(e["arrived"] * apart, *span, color=shade, linewidth=5, alpha=0.3)
        for at, e in zip(x, entries, strict=True):
            tokens.annotate("\n".join(lost(e, most)), (at, e["tokens_s"]), (5, -6), va="top",
                            ha="right" if e["arrived"] == most else "left",
                            textcoords="offset points", fontsize=8.5, color=shade)  # fmt: skip
        first.plot(x, [e["first"].median / 1e3 for e in entries], **style)
        tokens.plot(x, [e["tokens_s"] for e in entries], **style)
        end = entries[-1]
        at_end(tokens, x[-1], end["tokens_s"], f"{end['tokens_s']:.0f} {named_well(name)}", shade)
        if end["points"]:
            seconds = end["first"].median / 1e3
            words = f"{seconds:.2g} s {named_well(name)}"
            at_end(first, x[-1], seconds, words, shade, before=end["arrived"] < most)
    offered = sorted({(e["arrived"], e["offered"]) for e in every})
    asked = dict(color=LIMIT_COLOUR, linestyle=":", linewidth=5, alpha=0.5, zorder=1)
    tokens.plot(*zip(*offered, strict=True) if offered else ([], []), **asked)
    for axes in panels:
        logarithmic(axes, sorted({e["arrived"] for e in every}))
    if missing:
        footnote(figure, f"did not run: {', '.join(gap['name'] for gap in missing)}")
    n = counted(e["first"].n for e in every)
    noted(tokens, "Tokens a second", "tokens/s (log scale)", "dotted: as many as were asked for")
    noted(
        first,
        "First token, from when the request was due",
        "s (log scale)",
        f"line: P50; bar: from P{SPAN[0]} to P{SPAN[1]} of {n} requests",
    )
    headline(figure, finding.claim(rising, lower=False))
    return figure


def at_end(axes, x: float, y: float, words: str, shade: str, before: bool = False) -> None:
    """Words beside a line's last mark: at its right, or at its left, above the line, where other lines go on."""
    place = dict(xytext=(-9, 7), ha="right") if before else dict(xytext=(8, 0), ha="left", va="center")
    axes.annotate(words, (x, y), textcoords="offset points", fontsize=9, color=shade, annotation_clip=False, **place)


def lost(e: dict, most: float) -> list[str]:
    """How many requests of a load have no time, and why. most: the most that any server was asked."""
    words = [f"{e['refused']} of {e['n']} refused" + "; stopped" * (e["arrived"] < most)] * bool(e["refused"])
    if e["void"]:
        words += [f"{e['void']} of {e['n']} failed:", *dict.fromkeys(r.partition(":")[0][:WIDE] for r in e["reasons"])]
    return words


def noted(axes, title: str, unit: str, note: str) -> None:
    """Title, axes' labels, and below them what the marks mean."""
    axes.set_title(title, fontsize=11.5)
    axes.set_ylabel(unit, fontsize=9.5)
    axes.set_xlabel(f"requests due a second (log scale)\n{note}", fontsize=9.5)


def logarithmic(axes, at: Sequence[float]) -> None:
    """Both axes logarithmic, with ticks at these places of the first; an axis on which nothing lies stays as it is."""
    if any(value > 0 for line in axes.lines for value in line.get_ydata()):
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(low / 1.5, high * 1.5)  # so that two ticks lie within a narrow range
        readable(axes.yaxis)
    if at:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(at, [f"{value:.2g}" for value in at])
        axes.set_xlim(min(at) / 1.3, max(at) * 1.3)  # names stand beyond the right end


@styled
def shapes(entries: Sequence[dict]) -> Figure:
    """The first token under each of the shapes of prompts, and how many programs were compiled in service. entries:
    `table.by_shapes`."""
    figure, axes = new(9.5, 0.5 * max(len(entries), 1) + 1.9)
    names = [f"{e['server']}, {finding.NAMES[e['shapes']]}" for e in entries]
    heights = rows.heights(axes, names)
    for name, e in zip(names, entries, strict=True):
        height, (shade, marker) = heights[name], look(e["server"], e["backend"])
        seconds = [ms / 1e3 for ms in e["points"]]
        rows.points(axes, seconds, height, shade, spread=0.2, s=16, marker=marker, zorder=1)
        if e["first"].n:
            rows.median(axes, e["first"].median / 1e3, height, 20, 2.2)
            words = f"{in_seconds(e)}, {e['compiled'] or 0} programs compiled"
        else:
            words = f"no valid answer: {'; '.join(e['reasons'])[:60]}"
        rows.beside(axes, height, words, color=LIMIT_COLOUR if e["compiled"] else "black")
    if any(e["first"].n for e in entries):
        axes.set_xscale("log")
        readable(axes.xaxis)
    n = counted(e["first"].n for e in entries)
    axes.set_xlabel(f"first token, s from when it was due (log scale; point: a request, {n}; bar: median)")
    axes.set_title(f"Programs compiled in service, first token{rate_of(entries)}", fontsize=11.5)
    headline(figure, what_shapes_cost(entries))
    return figure


def rate_of(entries: Sequence[dict]) -> str:
    return f" at {entries[0]['arrived']:.2g} requests/s" if entries else ""


def in_seconds(e: dict) -> str:
    """`0.32 s`: the median first token of a load."""
    return f"{e['first'].median / 1e3:.2g} s"


def what_shapes_cost(entries: Sequence[dict]) -> str:
    """What compiling the exact lengths in service makes of the first server's median first token."""
    mine = {e["shapes"]: e for e in entries if e["first"].n and e["server"] == entries[0]["server"]}
    if not {"exact", "buckets"} <= mine.keys():
        return "Not all shapes have valid answers"
    words = "Exact lengths, compiled in service, raise the median first token from"
    took = f"{in_seconds(mine['buckets'])} (buckets) to {in_seconds(mine['exact'])}"
    return f"{words} {took} under {entries[0]['server']}"
