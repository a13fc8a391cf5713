"""Charts of single requests: percentiles of warm ones, and the first of a process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from operator import itemgetter

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from llama_lab.bench import statistics
from llama_lab.bench.wording import counted, named_well, span
from llama_lab.experiments.time_to_first_token.finding import with_kernels
from llama_lab.experiments.time_to_first_token.side_by_side import over_median, tail_interval
from llama_lab.figures import notes, rows
from llama_lab.figures.style import colour, footnote, headline, new, styled

ON_DISK = " (kernels on disk)"
DARKER = 0.55  # of a colour, where a second line has it


@styled
def ttft_tails(entries: Sequence[dict], first: str | None = None) -> Figure:
    """How many times the median the P95 is, against prompt length, where the sample can hold a P95; a line per
    subject. entries: `side_by_side.tails`. first: whose first token is soonest, which may have no tail."""
    held = [e for e in sorted(entries, key=itemgetter("tokens")) if e["p95"] is not None]
    if not held:
        return notes.nothing(f"No subject was asked {statistics.enough(95):,} times at any length, so there is no P95.")
    figure, axes = new(9, 4.4)
    names, taken = list(dict.fromkeys(e["subject"] for e in held)), set()
    looks = cycle(zip(("-", "--", ":"), ("o", "s", "D"), strict=True))
    for i, name in enumerate(names):
        here, apart = [e for e in held if e["subject"] == name], 1.03 ** (i - (len(names) - 1) / 2)
        x, y = [e["tokens"] * apart for e in here], [over_median(e) for e in here]
        shade = to_hex(DARKER * np.array(to_rgb(colour(name)))) if colour(name) in taken else colour(name)
        taken.add(shade)
        (dashes, marker), label = next(looks), named_well(name)
        axes.plot(x, y, dashes, marker=marker, color=shade, linewidth=2, markersize=6, label=label)
        axes.vlines(x, *zip(*map(tail_interval, here), strict=True), color=shade, linewidth=5, alpha=0.35)
    at = sorted({e["tokens"] for e in held})
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(at, [str(n) for n in at])
    axes.set_ylim(1, 1.05 * axes.get_ylim()[1])
    n = counted(e["n"] for e in held)
    axes.set_xlabel(f"tokens of the prompt (log scale; {n} requests each)")
    axes.set_ylabel("P95 over the median\n(1 in 20 requests takes longer)")
    axes.legend(loc="lower left", fontsize=9.5)
    band = "Band: 95% bootstrap interval of the requests; what differs between processes is not in it."
    footnote(figure, band + f" No tail of {first} was measured." * (first not in (None, *names)))
    headline(figure, slowest(held))
    return figure


def slowest(held: Sequence[dict]) -> str:
    """What the P95 of the first tokens is over their median, at the shortest prompt and at the longest. held: of
    `side_by_side.tails`, those with a P95."""
    shares = {n: span(over_median(e) for e in held if e["tokens"] == n) for n in sorted({e["tokens"] for e in held})}
    (first, least), *more = shares.items()
    words = f"The P95 of first tokens is {least} times their median at {first} prompt tokens"
    return words + "".join(f", {share} at {n}" for n, share in more[-1:])


@styled
def ttft_cold(entries: Sequence[dict]) -> Figure:
    """The first request of a fresh process beside a warm one. entries: `first_requests.cold`, one length."""
    if not entries:
        return notes.nothing("There is no valid cold start.")
    figure, axes = new(9, 0.4 * len(entries) + 1.9)
    ordered = sorted(entries, key=itemgetter("median"))
    heights = rows.heights(axes, [e["subject"] for e in ordered])
    for e in ordered:
        cold_row(axes, e, heights[e["subject"]])
    axes.plot([], [], "o", color="black", markerfacecolor="white", label="a warm request (median)")
    axes.plot([], [], "o", color="black", markersize=4, label="a first request of a process")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    axes.set_xscale("log")
    notes.one_two_five(axes.xaxis)
    n = counted(e["n"] for e in entries)
    prompt = f"a prompt of {entries[0]['tokens']} tokens"
    exact = "; exact: not padded" * any(e["subject"].endswith(" exact") for e in entries)
    words = f"seconds to the first token of {prompt}, weights loaded"
    axes.set_xlabel(f"{words}\n(log scale; first requests: {n} each{exact})")
    headline(figure, worst_start(entries))
    return figure


def cold_row(axes, e: dict, height: float) -> None:
    """One subject's first request of every process, and a warm one."""
    shade, warm = colour(e["subject"]), e["warm_ms"] / 1e3
    axes.plot([warm, e["median"] / 1e3], [height] * 2, color=shade, linewidth=3, alpha=0.6, solid_capstyle="butt")
    axes.plot(warm, height, "o", color="black", markerfacecolor="white", markersize=6, zorder=4)
    axes.plot(np.array(e["cold"]) / 1e3, [height] * e["n"], "o", color="black", markersize=4, zorder=5)
    of = f"{times(e['median'] / e['warm_ms'])} × warm" if np.isfinite(warm) else "never warm"
    of += ON_DISK * with_kernels(e["subject"])
    rows.beside(axes, height, f"{e['median'] / 1e3:.2f} s, {of}")


def worst_start(entries: Sequence[dict]) -> str:
    """How many times a warm request the first takes where it takes the most, and under each placement, whose kernels
    are compiled before; under the others the least and the most."""
    over = {e["subject"]: e["median"] / e["warm_ms"] for e in entries if np.isfinite(e["warm_ms"])}
    if not over:
        return "No subject has a cold and a warm request"
    ranked = sorted(over, key=over.get, reverse=True)
    ours = [name for name in ranked[1:] if name.startswith("step")]
    words = f"A first request takes {times(over[ranked[0]])} times as long as a warm one under {named_well(ranked[0])}"
    words += "".join(f", {times(over[name])} under {name}{ON_DISK * with_kernels(name)}" for name in ours)
    others = [times(over[name]) for name in reversed(ranked[1:]) if name not in ours]
    words += f", {' to '.join(dict.fromkeys((others[0], others[-1])))} under the others" if others else ""
    return f"{words} (n = {min(e['n'] for e in entries)})"


def times(ratio: float) -> str:
    """`0.8`, `9.7`, `1,670`."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"
