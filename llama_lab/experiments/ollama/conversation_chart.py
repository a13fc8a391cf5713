"""Charts of the peers: a conversation, and the memory that each needs for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from llama_lab.bench import standings
from llama_lab.bench.statistics import UNDECIDED
from llama_lab.figures.labels import spread_labels
from llama_lab.figures.marks import HATCHES, interval_words, look
from llama_lab.figures.style import headline, new, plain_ticks, rows, styled


@styled
def conversation(
    found: dict[str, dict],
    backends: dict[str, str],
    history: Sequence[int],
    new_tokens: int,
    reference: str,
    heading: str = "Each turn reads all that was said before",
) -> Figure:
    """Seconds of each turn of a conversation (left), and of the whole (right), times as long as the reference's in
    words.

    found: `table.talks`. history: prompt tokens of each turn. heading: of the left part.
    """
    figure, (left, right) = new(10.5, 4.6, columns=2, gridspec_kw={"width_ratios": [1.1, 1]})
    if not found:
        headline(figure, "Nobody was asked to hold this conversation")
        return figure
    ends: dict[str, tuple[float, float]] = {}
    for name, f in found.items():
        colour, marker = look(name, backends[name])
        for k, seconds in enumerate(f["turns"]):
            left.scatter(
                [history[k]] * len(seconds), seconds, s=16, color=colour, marker=marker, alpha=0.45, linewidths=0
            )
        points = [(history[k], np.median(seconds)) for k, seconds in enumerate(f["turns"]) if seconds]
        left.plot(
            *zip(*points, strict=True),
            color=colour,
            linewidth=1.8,
            linestyle="--" if name != reference and backends[name] == standings.JAX else "-",
        )
        ends[name] = points[-1]
    for name, height in spread_labels({name: y for name, (_, y) in ends.items()}, 1.15).items():
        left.annotate(
            name,
            (ends[name][0], height),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=look(name, backends[name])[0],
        )
    left.set(xlim=(0, max(history) * 1.35), yscale="log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain_ticks(left.yaxis)
    left.yaxis.set_minor_formatter("")
    left.set_xlabel(f"tokens of history and question (turns 1 to {len(history)})")
    left.set_ylabel(f"seconds until {new_tokens} tokens are there (log scale)")
    left.set_title(heading, fontsize=10)
    heights = rows(right, list(found))
    room = 1.9 * max((f["total"].median for f in found.values() if f["total"].n), default=1)
    for name, f in found.items():
        total, colour = f["total"], look(name, backends[name])[0]
        if not total.n:
            right.text(
                0.02,
                heights[name],
                "no conversation without a void turn",
                va="center",
                fontsize=8.5,
                transform=right.get_yaxis_transform(),
            )
            continue
        right.barh(
            heights[name],
            total.median,
            height=0.55,
            color=colour,
            alpha=0.75,
            hatch=HATCHES.get(backends[name], "--"),
            edgecolor="white",
        )
        right.plot([total.low, total.high], [heights[name]] * 2, color="black", linewidth=2)
        words = f"n = {total.n}" if name == reference else interval_words(f["ratio"])
        end = max(total.median, min(total.high, room) if np.isfinite(total.high) else 0)
        right.text(end, heights[name], f"  {total.median:.2f} s, {words}", va="center", fontsize=8.5)
    right.set_xlim(right=room)
    right.set_xlabel(
        f"seconds of the whole conversation (bar: median, line: 95 % interval;\nx: times as long as {reference})"
    )
    right.set_title("the whole conversation", fontsize=10)
    mine = found.get(reference)
    others = {
        name: f for name, f in found.items() if name != reference and f["total"].n and backends[name] != standings.JAX
    }
    if mine is None or not mine["total"].n or not others:
        headline(figure, f"{reference} or every other runtime lacks a whole conversation")
        return figure
    next_best = min(others, key=lambda name: others[name]["total"].median)
    ratio = others[next_best]["ratio"]
    open_ = ratio.verdict in UNDECIDED
    said = "is not decided to take longer" if open_ else f"takes {ratio.value:.1f} times as long"
    than = "than" if open_ else "as"
    headline(figure, f"A conversation of {len(history)} turns {said} under {next_best} {than} under {reference}")
    return figure
