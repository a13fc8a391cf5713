"""Charts of the time to first token: against prompt length, cold beside warm, and the two mixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from llama_jax.bench.record import Trial
from llama_jax.bench.statistics import Ratio
from llama_jax.experiments.time_to_first_token import table
from llama_jax.figures.marks import spread_labels
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, new, plain_ticks, rows, styled

BACKENDS = {  # the best subject of each is drawn in colour: shade, marker, line
    "jax": (PALETTE["blue"], "o", "-"),
    "torch": (PALETTE["vermilion"], "s", "--"),
    "llama.cpp": (PALETTE["green"], "^", "-."),
    "ollama": (PALETTE["purple"], "D", ":"),
    "flax": (PALETTE["orange"], "v", "--"),
}
CROWDED = 6  # more ticks than this stand aslant
OTHER, GREY = "#B0B0B0", "#555555"
PARTS = (
    ("usual_ms", "as a warm request", PALETTE["blue"], ""),
    ("compile_ms", "trace, lower, compile (as JAX reports them)", PALETTE["orange"], "//"),
    ("once_ms", "other first-time work (PyTorch's compiling included)", PALETTE["vermilion"], "xx"),
)


def look(trials: Sequence[Trial], subject: str) -> tuple[str, str, str]:
    """(colour, marker, line style) of a subject: those of its backend."""
    return BACKENDS.get(next((t.backend for t in trials if t.subject == subject), ""), (GREY, "o", "-"))


@styled
def ttft_by_length(
    trials: Sequence[Trial], limits: dict[int, float], reading: dict[str, float], seed: int = 0
) -> Figure:
    """TTFT against prompt length (left); each peer over the placement that is best at that length, with intervals
    (right).

    limits: length → ms, `table.limits`. reading: label → ms to read other weight formats once.
    """
    figure, (left, right) = new(13.5, 6.2, columns=2, gridspec_kw={"width_ratios": [1.25, 1]})
    shown = table.highlighted(trials)
    names = [name for name in table.placements(trials) + table.rivals(trials) if name not in shown] + shown
    looks = {name: look(trials, name) if name in shown else (OTHER, "", look(trials, name)[2]) for name in names}
    by_length(left, trials, looks, shown, limits, reading, seed)
    peers_over_best(right, trials, looks, shown, seed)
    return figure


def by_length(
    axes,
    trials: Sequence[Trial],
    looks: dict[str, tuple[str, str, str]],
    shown: Sequence[str],
    limits: dict[int, float],
    reading: dict[str, float],
    seed: int,
) -> None:
    """Medians and their intervals against prompt length, a line a subject with its name at the end; limits in red.

    looks: subject → (colour, marker, line style), in the order of drawing. shown: those that stand out.
    """
    asked, entries, ends, last = table.lengths(trials), table.table(trials, seed), {}, {}
    for name, (shade, marker, line) in looks.items():
        here = [e for e in entries if e["subject"] == name and e["n"]]
        if not here:
            continue
        x, middles = [e["tokens"] for e in here], [e["p50"] for e in here]
        axes.plot(
            x,
            middles,
            marker=marker,
            color=shade,
            linestyle=line,
            linewidth=2.2 if name in shown else 1.2,
            markersize=5,
        )
        axes.vlines(x, [e["low"] for e in here], [e["high"] for e in here], color=shade, linewidth=5, alpha=0.35)
        ends[name], last[name] = middles[-1], x[-1]
    lowest = min(
        (np.nanmin([e["low"], e["p50"]]) for e in entries if e["n"] and e["tokens"] == asked[0]), default=np.inf
    )
    limit_below(axes, asked, limits, reading, 0.95 * min(lowest, limits[asked[0]]))
    highest = max([e["high"] if np.isfinite(e["high"]) else e["p50"] for e in entries if e["n"]], default=1.0)
    least = min([*limits.values(), *reading.values(), lowest])
    axes.set_ylim(0.55 * least, 2.5 * highest)  # room for words below the limit and labels at the ends
    of_length(axes, asked, asked[-1] * (2.9 if len(asked) > 1 else 1.9))
    for name, at in spread_labels(ends, apart(axes), centred=True).items():
        axes.annotate(
            name,
            (last[name], ends[name]),
            (asked[-1] * 1.16, at),
            fontsize=9.5 if name in shown else 8.5,
            va="center",
            color=looks[name][0] if name in shown else GREY,
            fontweight="bold" if name in shown else "normal",
            arrowprops=dict(arrowstyle="-", color=OTHER, linewidth=0.7),
            annotation_clip=False,
        )
    few = min((e["n"] for e in entries if e["n"]), default=0)
    axes.set_ylabel("time to first token, ms (log scale)")
    axes.set_title(f"First token by prompt length (median, 95 % interval, n ≥ {few})", fontsize=11.5)


def limit_below(axes, asked: Sequence[int], limits: dict[int, float], reading: dict[str, float], top: float) -> None:
    """The limit of float32 first tokens, its words below `top`, and what reading other formats once takes at the
    least."""
    axes.plot(list(limits), list(limits.values()), color=LIMIT_COLOUR, linestyle=":", linewidth=1.8)
    label = "limit: weights read once,\nor the arithmetic (float32)"
    axes.text(asked[0], top, label, color=LIMIT_COLOUR, fontsize=8.5, va="top")
    for name, ms in reading.items():
        axes.plot([asked[0], asked[0] * 1.35], [ms] * 2, color=LIMIT_COLOUR, linewidth=1.2)
        axes.text(asked[0] * 1.38, ms, f"its weights read once: {name}", color=LIMIT_COLOUR, fontsize=8, va="center")


def times(ratio: float) -> str:
    """`0.8x`, `9.7x`, `1,670x`."""
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"


def of_length(axes, asked: Sequence[int], right: float) -> None:
    """Both axes logarithmic, a tick at each length."""
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt (log scale)", xlim=(asked[0] / 1.12, right))
    axes.minorticks_off()
    axes.set_xticks(asked, [str(n) for n in asked], fontsize=9, rotation=45 if len(asked) > CROWDED else 0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(LogLocator(subs=()))
    plain_ticks(axes.yaxis)


def of_time(axes) -> None:
    """A logarithmic time axis below, with as many ticks as can be read."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    axes.xaxis.set_minor_locator(LogLocator(subs=()))
    plain_ticks(axes.xaxis)


def milli(value: float) -> str:
    """`9.53 ms`, `151 ms`, `1,170 ms`."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def apart(axes) -> float:
    """How far apart, as a factor, two labels of a logarithmic axis must be to be read: some 3.4 % of its height."""
    low, high = axes.get_ylim()
    return (high / low) ** 0.034


def peers_over_best(
    axes, trials: Sequence[Trial], looks: dict[str, tuple[str, str, str]], shown: Sequence[str], seed: int
) -> None:
    """Each peer's TTFT over that of the placement that is best at the length."""
    found = [(r["peer"], r["tokens"], r["ratio"]) for r in table.ratios(trials, seed)]
    ratios_by_length(axes, found, table.lengths(trials), looks, shown)
    axes.set_ylabel("peer's time over that of the placement best there\n(log scale; below 1 the peer is sooner)")
    axes.set_title(f"Peers over the best placement (n ≥ {pairs(found)} pairs)", fontsize=11.5)


def pairs(found: Sequence[tuple[str, int, Ratio]]) -> int:
    """The least number of pairs behind these ratios."""
    return min((ratio.n for _, _, ratio in found), default=0)


def ratios_by_length(
    axes,
    found: Sequence[tuple[str, int, Ratio]],
    asked: Sequence[int],
    looks: dict[str, tuple[str, str, str]],
    shown: Sequence[str],
) -> None:
    """Ratios (subject, length, ratio), a line a subject with its name at the end; points a little apart so that
    intervals are seen."""
    names, ends, last = list(dict.fromkeys(name for name, _, _ in found)), {}, {}
    for i, name in enumerate(names):
        here = {n: ratio for other, n, ratio in found if other == name}
        shade, marker, line = looks[name]
        x = [n * 1.02 ** (i - (len(names) - 1) / 2) for n in here]
        axes.plot(
            x,
            [ratio.value for ratio in here.values()],
            color=shade,
            marker=marker,
            linestyle=line,
            markersize=5,
            linewidth=2 if name in shown else 1.2,
        )
        axes.vlines(
            x,
            [ratio.low for ratio in here.values()],
            [ratio.high for ratio in here.values()],
            color=shade,
            linewidth=1.6,
        )
        last[name], ends[name] = max(here), here[max(here)].value
    of_length(axes, asked, asked[-1] * (2.9 if len(asked) > 1 else 1.9))
    for name, at in spread_labels(ends, apart(axes), centred=True).items():
        axes.annotate(
            name,
            (last[name], ends[name]),
            (asked[-1] * 1.16, at),
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            color=looks[name][0] if name in shown else GREY,
            arrowprops=dict(arrowstyle="-", color=OTHER, linewidth=0.7),
        )
    axes.axhline(1, color="black", linewidth=1)


@styled
def ttft_cold(found: Sequence[dict]) -> Figure:
    """The first request of a fresh process beside a warm one, by parts (left), and the process's peak memory (right).

    found: `first_requests.cold`, one length.
    """
    if not found:
        return nothing("There is no valid cold start.")
    figure, (axes, memory) = new(
        13, 0.52 * len(found) + 2.0, columns=2, sharey=True, gridspec_kw={"width_ratios": [2.6, 1]}
    )
    ordered = sorted(found, key=lambda e: e["median"])
    heights = rows(axes, [e["subject"] for e in ordered])
    memory.grid(axis="y", visible=False)
    for e in ordered:
        height, at = heights[e["subject"]], 0.0
        for key, _, shade, hatch in PARTS:
            length = e[key] / 1e3
            axes.barh(height, length, left=at, color=shade, hatch=hatch, edgecolor="white", height=0.55)
            at += length
        axes.plot(np.array(e["cold"]) / 1e3, [height] * e["n"], "o", color="black", markersize=4, zorder=4)
        warm = (
            f"{times(e['median'] / e['warm_ms'])} of a warm one ({milli(e['warm_ms'])})"
            if np.isfinite(e["warm_ms"])
            else "never warm"
        )
        axes.text(
            max(at, max(e["cold"]) / 1e3), height, f"  {e['median'] / 1e3:.2f} s, {warm}", va="center", fontsize=9
        )
        if e["peak_rss_bytes"]:
            memory.barh(height, e["peak_rss_bytes"] / 1e9, color=PALETTE["sky"], edgecolor="white", height=0.55)
            memory.text(
                e["peak_rss_bytes"] / 1e9, height, f"  {e['peak_rss_bytes'] / 1e9:.2f}", va="center", fontsize=9
            )
    for _, label, shade, hatch in PARTS:
        axes.barh(0, 0, color=shade, hatch=hatch, edgecolor="white", label=label)
    figure.legend(loc="outside upper center", ncols=3, fontsize=9)
    axes.margins(x=0.5)
    memory.margins(x=0.25)
    n = min(e["n"] for e in found)
    axes.set_xlabel(f"seconds to the first token, weights loaded (point: one process, n = {n} each; bar: median)")
    memory.set_xlabel("peak RSS of that process, GB")
    axes.set_title(f"First request of a fresh process, {found[0]['tokens']} tokens")
    memory.set_title("Memory")
    return figure


def nothing(words: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure, axes = new(9, 1.5)
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
    return figure


@styled
def ttft_mixed(found: Sequence[dict], published: dict[str, tuple[float, float]], loop: int) -> Figure:
    """What one cold request in a loop of `loop` does to a mean: published means and P99 (left), the same made from our
    trials (right).

    found: `first_requests.mixing`. published: case → (mean, P99), ms.
    """
    figure, (left, right) = new(13, 0.45 * len(found) + 2.3, columns=2, gridspec_kw={"width_ratios": [1, 1.9]})
    heights = rows(left, list(published))
    for case, (mean, p99) in published.items():
        pair(left, heights[case], p99, mean, f"mean {mean / p99:.2f}x of P99")
    left.set_xlim(0, 1.5 * max(mean for mean, _ in published.values()))
    left.set_xlabel("time to first token, ms")
    left.set_title("As published: mean above its own P99", fontsize=11.5)
    heights = rows(right, [e["subject"] for e in found])
    for e in found:
        pair(
            right,
            heights[e["subject"]],
            e["largest"],
            e["mixed"],
            f"mean {times(e['mixed'] / e['largest'])} of the largest",
            marker="|",
        )
        right.plot(e["warm"], heights[e["subject"]], "o", color=PALETTE["blue"], markersize=7, zorder=4)
    if not found:
        right.text(
            0.5, 0.5, f"no subject has a cold and {loop - 1} warm requests", ha="center", transform=right.transAxes
        )
    right.margins(x=0.3)
    of_time(right)
    right.set_xlabel("time to first token, ms (log scale)")
    right.set_title(f"Here: mean of 1 cold and {loop - 1} warm requests", fontsize=11.5)
    left.plot(
        [], [], "X", color=PALETTE["vermilion"], markersize=9, linestyle="", label="mean of a loop with a cold request"
    )
    left.plot([], [], "D", color="black", markerfacecolor="none", linestyle="", label="P99 of the warm loop")
    right.plot([], [], "o", color=PALETTE["blue"], linestyle="", label="mean of the warm requests")
    right.plot(
        [],
        [],
        "|",
        color="black",
        markersize=12,
        markeredgewidth=2,
        linestyle="",
        label="largest of them: no percentile is above it",
    )
    figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    return figure


def pair(axes, height: float, below: float, mean: float, words: str, marker: str = "D") -> None:
    """A warm loop's upper end and a mixed loop's mean, joined, with what one is of the other."""
    axes.plot([below, mean], [height] * 2, color="#999999", linewidth=1.3, zorder=1)
    axes.plot(
        below,
        height,
        marker,
        color="black",
        markerfacecolor="none",
        markersize=7 if marker == "D" else 16,
        markeredgewidth=1.8,
    )
    axes.plot(mean, height, "X", color=PALETTE["vermilion"], markersize=9)
    axes.annotate(words, (max(mean, below), height), (9, 0), textcoords="offset points", va="center", fontsize=9)
