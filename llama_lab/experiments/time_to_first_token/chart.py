"""Charts of the time to first token: against prompt length, cold beside warm, and the two mixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.time_to_first_token import finding, table
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.marks import MARKERS
from llama_lab.figures.style import LIMIT_COLOUR, STAGES, colour, headline, new, styled

LINES = {"jax": "-", "torch": "--", "llama.cpp": "-.", "ollama": ":", "flax": "--"}
TICKS_APART = 1.4  # as a factor, on a log axis of lengths
OTHER = "#B0B0B0"


def look(trials: Sequence[Trial], subject: str) -> tuple[str, str, str]:
    """(colour, marker, line style) of a subject, the latter two its backend's."""
    backend = next((t.backend for t in trials if t.subject == subject), "")
    return colour(subject), MARKERS.get(backend, "v"), LINES.get(backend, "-")


@styled
def ttft_by_length(
    trials: Sequence[Trial], limits: dict[int, float], reading: dict[str, float], seed: int = 0
) -> Figure:
    """TTFT against prompt length (left); each peer over the placement that is best at that length, with intervals
    (right).

    limits: length → ms, `table.limits`. reading: label → ms to read other weight formats once.
    """
    figure, (left, right) = new(11, 5.8, columns=2, gridspec_kw={"width_ratios": [1.2, 1]})
    shown = table.highlighted(trials)
    names = [name for name in table.placements(trials) + table.rivals(trials) if name not in shown] + shown
    looks = {name: look(trials, name) if name in shown else (OTHER, "", look(trials, name)[2]) for name in names}
    by_length(left, trials, looks, shown, limits, reading, seed)
    peers_over_best(right, trials, looks, shown, seed)
    at = table.everybodys(trials)
    ratios = [r for r in table.ratios(trials, seed) if r["tokens"] in at]
    empty = "No placement and no peer have first tokens at one length"
    headline(figure, finding.claim(trials, ratios) if ratios else empty)
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
        width = 2.2 if name in shown else 1.2
        axes.plot(x, middles, marker=marker, color=shade, linestyle=line, linewidth=width, markersize=5)
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
    named_ends(axes, {name: y for name, y in ends.items() if name in shown}, last, looks, asked)
    few, others = min((e["n"] for e in entries if e["n"]), default=0), len(ends) - len([n for n in ends if n in shown])
    grey = f"; grey: {others} others, in the table" if others else ""
    axes.set_ylabel("time to first token, ms (log scale)")
    axes.set_title(f"median, 95 % interval, n ≥ {few}{grey}", fontsize=10)


def named_ends(axes, ends: dict, last: dict, looks: dict, asked: Sequence[int]) -> None:
    """Subjects' names at the ends of their lines, in their colours, none over another."""
    for name, at in labels.spread_labels(ends, apart(axes), centred=True, top=axes.get_ylim()[1] / apart(axes)).items():
        shade = looks[name][0]
        style = dict(fontsize=9, va="center", color=shade, annotation_clip=False)
        line = dict(arrowstyle="-", color=shade, linewidth=0.6)
        axes.annotate(name, (last[name], ends[name]), (asked[-1] * 1.16, at), arrowprops=line, **style)


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
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt (log scale)", xlim=(asked[0] / 1.25, right))
    axes.minorticks_off()
    axes.set_xticks(asked, [str(n) if n in thinned(asked) else "" for n in asked], fontsize=9)
    notes.one_two_five(axes.yaxis, minor=False)


def thinned(asked: Sequence[int]) -> list[int]:
    """Those lengths whose ticks are written: none closer to the one after it than can be read."""
    kept = []
    for n in sorted(asked, reverse=True):
        kept += [n] if not kept or kept[-1] >= TICKS_APART * n else []
    return kept


def of_time(axes) -> None:
    """A logarithmic time axis below, with as many ticks as can be read."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    notes.one_two_five(axes.xaxis, minor=False, subs=(1, 2, 5) if high / low < 300 else (1,))


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
    axes.set_title(f"peers over the best placement, n ≥ {pairs(found)} pairs", fontsize=10)


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
        low, values, high = zip(*map(rows.ends, here.values()), strict=True)
        width = 2 if name in shown else 1.2
        axes.plot(x, values, color=shade, marker=marker, linestyle=line, markersize=5, linewidth=width)
        axes.vlines(x, low, high, color=shade, linewidth=1.6)
        last[name], ends[name] = max(here), here[max(here)].value
    of_length(axes, asked, asked[-1] * (2.9 if len(asked) > 1 else 1.9))
    named_ends(axes, {name: y for name, y in ends.items() if name in shown}, last, looks, asked)
    axes.axhline(1, color="black", linewidth=1)


@styled
def ttft_cold(found: Sequence[dict]) -> Figure:
    """The first request of a fresh process beside a warm one, by parts (left), and the process's peak memory (right).

    found: `first_requests.cold`, one length.
    """
    if not found:
        return notes.nothing("There is no valid cold start.")
    figure, (axes, memory) = new(10.5, 0.4 * len(found) + 2.2, columns=2, sharey=True, width_ratios=(3.4, 1))
    ordered = sorted(found, key=lambda e: e["median"])
    heights = rows.heights(axes, [e["subject"] for e in ordered])
    memory.grid(axis="y", visible=False)
    for e in ordered:
        cold_row(axes, e, heights[e["subject"]])
        if e["peak_rss_bytes"]:
            gigabytes = e["peak_rss_bytes"] / 1e9
            memory.barh(heights[e["subject"]], gigabytes, color=colour(e["subject"]), alpha=0.6, height=0.5)
            memory.text(gigabytes, heights[e["subject"]], f" {gigabytes:.2f}", va="center", fontsize=9)
    axes.plot([], [], "o", color="black", markerfacecolor="white", label="a warm request (median)")
    axes.plot([], [], color=STAGES["compile"], linewidth=6, label="trace, lower, compile (as JAX reports them)")
    axes.plot([], [], color=STAGES["run"], linewidth=6, label="other first-time work (PyTorch's compiling too)")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(right=30 * axes.get_xlim()[1])
    labels.readable(axes.xaxis)
    memory.margins(x=0.35)
    n = min(e["n"] for e in found)
    axes.set_xlabel(f"seconds to the first token, weights loaded\n(log scale; point: one process, n = {n} each)")
    memory.set_xlabel("peak resident\nmemory, GB")
    headline(figure, worst_start(found))
    return figure


def cold_row(axes, e: dict, height: float) -> None:
    """One subject's first request, from a warm one over compiling to the whole, and every process."""
    warm = e["warm_ms"] if np.isfinite(e["warm_ms"]) else e["usual_ms"]
    at = max(1e-3, min(warm, e["median"]) / 1e3)
    for key, part in (("compile_ms", "compile"), ("once_ms", "run")):
        end = min(at + e[key] / 1e3, e["median"] / 1e3)
        axes.plot([at, end], [height] * 2, color=STAGES[part], linewidth=6, alpha=0.8, solid_capstyle="butt")
        at = end
    axes.plot(max(1e-3, warm / 1e3), height, "o", color="black", markerfacecolor="white", markersize=6, zorder=4)
    axes.plot(np.array(e["cold"]) / 1e3, [height] * e["n"], "o", color="black", markersize=4, zorder=5)
    of = f"{times(e['median'] / e['warm_ms'])} of warm" if np.isfinite(e["warm_ms"]) else "never warm"
    last = max(*e["cold"], warm) / 1e3
    axes.text(last * 1.25, height, f"{e['median'] / 1e3:.2f} s, {of}", va="center", fontsize=9)


def worst_start(found: Sequence[dict]) -> str:
    """Whose first request takes the most of a warm one, and what it takes the quickest placement."""
    over = {e["subject"]: e["median"] / e["warm_ms"] for e in found if np.isfinite(e["warm_ms"])}
    if not over:
        return "No subject has a cold and a warm request"
    worst = max(over, key=over.get)
    mine = next((name for name in over if name.startswith("step") and name != worst), None)
    said = f"A first request takes {times(over[worst])[:-1]} times a warm one under {worst}"
    return said + (f", {times(over[mine])[:-1]} times under {mine}" if mine else "")


@styled
def ttft_mixed(found: Sequence[dict], published: dict[str, tuple[float, float]], loop: int) -> Figure:
    """What one cold request in a loop of `loop` does to a mean: published means and P99 (above), the same made from our
    trials (below).

    found: `first_requests.mixing`. published: case → (mean, P99), ms.
    """
    ordered = sorted(found, key=lambda e: e["mixed"] / e["largest"], reverse=True)
    names = [*(f"published: {case}" for case in published), *(e["subject"] for e in ordered)]
    figure, axes = new(10, 0.38 * len(names) + 2.2)
    heights = rows.heights(axes, names)
    for case, (mean, p99) in published.items():
        pair(axes, heights[f"published: {case}"], p99, mean, f"mean {mean / p99:.2f}x of P99")
    for e in ordered:
        words = f"mean {times(e['mixed'] / e['largest'])} of the largest"
        pair(axes, heights[e["subject"]], e["largest"], e["mixed"], words, marker="|")
        axes.plot(e["warm"], heights[e["subject"]], "o", color=colour(e["subject"]), markersize=7, zorder=4)
    if not found:
        words = f"no subject has a cold and {loop - 1} warm requests"
        notes.empty(axes, words, 0.3)
    axes.axhline(len(ordered) - 0.5, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(right=8 * axes.get_xlim()[1])
    of_time(axes)
    axes.set_xlabel(f"time to first token, ms (log scale; here {loop} requests, the first of them cold)")
    key = dict(linestyle="", color="black")
    axes.plot([], [], "X", **key, markersize=9, label="mean of a loop with a cold request")
    axes.plot([], [], "D", **key, markerfacecolor="none", label="P99 of the published warm loop")
    axes.plot([], [], "o", **key, label="mean of the warm requests")
    axes.plot([], [], "|", **key, markersize=12, markeredgewidth=2, label="largest of them: no percentile is above it")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    above = sum(e["mixed"] > e["largest"] for e in found)
    words = f"One cold request in {loop} lifts the mean above every warm one for {above} of {len(found)} subjects"
    headline(figure, words)
    return figure


def pair(axes, height: float, below: float, mean: float, words: str, marker: str = "D") -> None:
    """A warm loop's upper end and a mixed loop's mean, joined, with what one is of the other."""
    axes.plot([below, mean], [height] * 2, color="#999999", linewidth=1.3, zorder=1)
    hollow = dict(color="black", markerfacecolor="none", markeredgewidth=1.8)
    axes.plot(below, height, marker, markersize=7 if marker == "D" else 16, **hollow)
    axes.plot(mean, height, "X", color="black", markersize=8)
    axes.annotate(words, (max(mean, below), height), (9, 0), textcoords="offset points", va="center", fontsize=9)
