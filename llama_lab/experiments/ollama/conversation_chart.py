"""Charts of the peers: a conversation, and the memory that each needs for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import standings
from llama_lab.bench.statistics import UNDECIDED
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End
from llama_lab.figures.marks import HATCHES, interval_words, look
from llama_lab.figures.style import headline, new, styled


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
    turns(left, found, backends, history, reference)
    left.set_ylabel(f"seconds until {new_tokens} tokens are there (log scale)")
    left.set_title(heading, fontsize=10)
    whole(right, found, backends, reference)
    headline(figure, longest_beside(found, backends, len(history), reference))
    return figure


def turns(axes, found: dict[str, dict], backends: dict[str, str], history: Sequence[int], reference: str) -> None:
    """Seconds of each turn against the tokens before it: every turn a point, medians joined."""
    ends = []
    for name, f in found.items():
        tint, marker = look(name, backends[name])
        for k, seconds in enumerate(f["turns"]):
            style = dict(s=16, color=tint, marker=marker, alpha=0.45, linewidths=0)
            axes.scatter([history[k]] * len(seconds), seconds, **style)
        points = [(history[k], np.median(seconds)) for k, seconds in enumerate(f["turns"]) if seconds]
        dashed = name != reference and backends[name] == standings.JAX
        axes.plot(*zip(*points, strict=True), color=tint, linewidth=1.8, linestyle="--" if dashed else "-")
        ends.append(End(name, *points[-1], tint))
    labels.at_ends(axes, ends, 1.15)
    axes.set(xlim=(0, max(history) * 1.35))
    notes.log_scale(axes)
    axes.set_xlabel(f"tokens of history and question (turns 1 to {len(history)})")


def whole(axes, found: dict[str, dict], backends: dict[str, str], reference: str) -> None:
    """Seconds of the whole conversation, a bar a subject."""
    heights = rows.heights(axes, list(found))
    room = 1.9 * max((f["total"].median for f in found.values() if f["total"].n), default=1)
    for name, f in found.items():
        total, height = f["total"], heights[name]
        if not total.n:
            rows.beside(axes, height, "no conversation without a void turn", 8.5, x=0.02)
            continue
        bar = dict(height=0.55, alpha=0.75, hatch=HATCHES.get(backends[name], "--"), edgecolor="white")
        axes.barh(height, total.median, color=look(name, backends[name])[0], **bar)
        axes.plot([total.low, total.high], [height] * 2, color="black", linewidth=2)
        words = f"n = {total.n}" if name == reference else interval_words(f["ratio"])
        end = max(total.median, min(total.high, room) if np.isfinite(total.high) else 0)
        axes.text(end, height, f"  {total.median:.2f} s, {words}", va="center", fontsize=8.5)
    axes.set_xlim(right=room)
    meaning = f"(bar: median, line: 95 % interval;\nx: times as long as {reference})"
    axes.set_xlabel(f"seconds of the whole conversation {meaning}")
    axes.set_title("the whole conversation", fontsize=10)


def longest_beside(found: dict[str, dict], backends: dict[str, str], count: int, reference: str) -> str:
    """How long the conversation takes under the quickest other runtime, beside the reference."""
    mine = found.get(reference)
    whole_ones = {name: f for name, f in found.items() if name != reference and f["total"].n}
    others = {name: f for name, f in whole_ones.items() if backends[name] != standings.JAX}
    if mine is None or not mine["total"].n or not others:
        return f"{reference} or every other runtime lacks a whole conversation"
    next_best = min(others, key=lambda name: others[name]["total"].median)
    ratio = others[next_best]["ratio"]
    open_ = ratio.verdict in UNDECIDED
    said = "is not decided to take longer" if open_ else f"takes {ratio.value:.1f} times as long"
    than = "than" if open_ else "as"
    return f"A conversation of {count} turns {said} under {next_best} {than} under {reference}"
