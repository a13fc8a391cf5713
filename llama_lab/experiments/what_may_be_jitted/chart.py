"""One token as a trace shows it: a figure, and what it says in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench.claim import Claim
from llama_lab.bench.wording import listed
from llama_lab.experiments.what_may_be_jitted.measure import DEVICE, HOST, Traced
from llama_lab.figures.style import OTHERS, footnote, headline, new, styled

LANES = {HOST: OTHERS[1], DEVICE: OTHERS[3]}
WIDE = 0.05  # of a token's time: a pause or an operation that is explained


@styled
def token(rows: Sequence[Traced]) -> Figure:
    """Spans of one token, one panel per placement, in the same ms: above what Python called, below what was
    computed."""
    figure, panels = new(9.5, 1.3 + 1.5 * len(rows), lines=len(rows), sharex=True, squeeze=False)
    longest = max(row.total_ns for row in rows) / 1e6
    for axes, row in zip(panels[:, 0], rows, strict=True):
        for height, (lane, colour) in zip((1, 0), LANES.items(), strict=True):
            spans = [(start, length) for _, start, length in row.spans(lane)]
            look = dict(facecolors=colour, edgecolors=colour, linewidths=0.4)
            axes.broken_barh(spans, (height - 0.36, 0.72), **look)
        end = row.total_ns / 1e6
        axes.axvline(end, color="black", linewidth=1)
        side = "right" if end > longest / 2 else "left"
        axes.text(end, 0.5, f" token after {end:.1f} ms ", va="center", ha=side, fontsize=10, color="black")
        (name, start, length), *others = sorted(row.spans(DEVICE), key=lambda span: -span[2]) or [("", 0.0, 0.0)]
        if name.startswith("dot") and all(length > 2 * other for _, _, other in others):  # by far the largest product
            axes.text(start + length / 2, 0, "logits", va="center", ha="center", fontsize=10, color="white")
        axes.set_yticks([1, 0], list(LANES))
        axes.set_ylim(-0.5, 1.5)
        axes.grid(axis="y", visible=False)
        counted = f"{calls(row)} from Python, {len(row.spans(DEVICE))} operations computed"
        axes.set_title(f"{row.subject}: {counted}", fontsize=11)
    panels[-1, 0].set(xlim=(0, longest * 1.02), xlabel="ms since the token began (one trace each, under the profiler)")
    said = ", ".join(f"{calls(row)} from Python under {row.subject}" for row in rows)
    headline(figure, f"One token through {rows[0].layers} layers takes {said}" if rows else "No token was traced")
    footnote(figure, " ".join(filter(None, map(pause, rows))))
    return figure


def pause(row: Traced) -> str:
    """The widest time between a token's spans in which neither lane has any; "" if it is short beside the token."""
    end, widest = None, (0.0, 0.0, 0.0)
    for _, start, length in sorted(row.spans(HOST) + row.spans(DEVICE), key=lambda span: span[1]):
        if end is not None:
            widest = max(widest, (start - end, end, start))
        end = max(end or 0.0, start + length)
    wide, begun, over = widest
    if wide < WIDE * row.total_ns / 1e6:
        return ""
    empty = f"Under {row.subject} neither lane has anything from {begun:.1f} to {over:.1f} ms"
    return f"{empty}; the trace does not show why."


def calls(row: Traced) -> str:
    count = len(row.spans(HOST))
    return f"{count:,} call{'s' * (count != 1)}"


def finding(rows: Sequence[Traced]) -> str:
    """The rule, the calls and operations of each placement, and how much of its time the device computed, to a
    tenth, as one trace is no more exact."""
    if not rows:
        return "No token was traced."
    first, *others = ((calls(row), f"{len(row.spans(DEVICE)):,}", row.subject) for row in rows)
    said = "a token through {} layers takes {} from Python and {} operations under {}".format(rows[0].layers, *first)
    said += "".join(f", {called.split()[0]} and {computed} under {name}" for called, computed, name in others)
    busy = [f"{round(row.busy_ms * 1e6 / row.total_ns, 1):.0%} ({row.subject})" for row in rows]
    return Claim("Jit sees shapes, not values: what depends on values must be computed by JAX.").text(
        said,
        f"in one trace each, the device is busy about {listed(busy)} of the time",
        *(f"{row.subject} compiled while it was traced" for row in rows if not row.valid),
    )
