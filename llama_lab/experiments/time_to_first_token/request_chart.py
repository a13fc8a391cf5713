"""Charts of single requests: percentiles of warm ones, and the first of a process."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import statistics, summary
from llama_lab.experiments.time_to_first_token.chart import thinned
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.style import STAGES, colour, headline, new, styled

TICKS_APART = 1.3  # as a factor, on a log axis of lengths


@styled
def ttft_tails(entries: Sequence[dict]) -> Figure:
    """Mean, P50 and, where the sample can hold them, P95 and P99 against prompt length, one panel per subject; below
    each length stands how many requests there were. entries: `table.tails`."""
    by_subject = summary.grouped(sorted(entries, key=itemgetter("tokens")), itemgetter("subject"))
    names = list(dict.fromkeys(e["subject"] for e in entries))
    if not names:
        return notes.nothing(f"No subject was asked {statistics.enough(95):,} times at any length, so there is no P95.")
    figure, panels = new(max(7.0, 3.5 * len(names) + 0.4), 5.4, columns=len(names), sharey=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        here, shade = by_subject[name], colour(name)
        x = [e["tokens"] for e in here]
        p50, p95, p99 = ([np.nan if e[key] is None else e[key] for e in here] for key in ("p50", "p95", "p99"))
        axes.fill_between(x, p50, p95, color=shade, alpha=0.15, linewidth=0)
        for label, values, line in (("P50", p50, "-"), ("P95", p95, "--_"), ("P99", p99, ":D")):
            if not np.isnan(values).all():
                axes.plot(x, values, line, color=shade, linewidth=2, markersize=6, label=label)
        axes.plot(x, [e["mean"] for e in here], "x", color="black", markersize=6, label="mean")
        for e in (e for e in here if e["p95"] is not None):
            side, by = ("left", 4) if e is here[0] else ("right", -2)  # within the axes
            place = dict(textcoords="offset points", ha=side, fontsize=8, color=shade)
            axes.annotate(f"{e['p95'] / e['p50']:.2f}x", (e["tokens"], e["p99"] or e["p95"]), (by, 4), **place)
        axes.set_title(name, fontsize=10.5)
        axes.set(xscale="log", yscale="log")
        axes.minorticks_off()
        written = thinned(x, TICKS_APART)
        counts = [f"{e['tokens']}  (n = {e['n']:,})" if e["tokens"] in written else "" for e in here]
        axes.set_xticks(x, counts, rotation=90, fontsize=8.5)
        notes.one_two_five(axes.yaxis, minor=False)
    few = min(e["n"] for e in entries)
    short = "; ".join(
        ["x: P95 over P50"]
        + [f"no P{p} below n = {least:,}" for p in (95, 99) if few < (least := statistics.enough(p))]
    )
    figure.supxlabel(f"tokens of the prompt (log scale), and requests there (n)\n{short}".strip(), fontsize=9.5)
    panels[0][0].set_ylabel("time to first token, ms (log scale)")
    panels[0][0].legend(loc="upper left", fontsize=9.5)
    over = [e["p95"] / e["p50"] for e in entries if e["p95"] is not None]
    ends = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(over), max(over))))
    headline(figure, f"One first token in twenty takes {ends} times the median or longer")
    return figure


@styled
def ttft_cold(entries: Sequence[dict]) -> Figure:
    """The first request of a fresh process beside a warm one, by parts (left), and the process's peak memory (right).

    entries: `first_requests.cold`, one length.
    """
    if not entries:
        return notes.nothing("There is no valid cold start.")
    figure, (axes, memory) = new(10.5, 0.4 * len(entries) + 2.2, columns=2, sharey=True, width_ratios=(3.4, 1))
    ordered = sorted(entries, key=itemgetter("median"))
    heights = rows.heights(axes, [e["subject"] for e in ordered])
    memory.grid(axis="y", visible=False)
    for e in ordered:
        cold_row(axes, e, heights[e["subject"]])
        if e["peak_rss_bytes"]:
            gigabytes = e["peak_rss_bytes"] / 1e9
            memory.barh(heights[e["subject"]], gigabytes, color=colour(e["subject"]), alpha=0.6, height=0.5)
            memory.text(gigabytes, heights[e["subject"]], f" {gigabytes:.2f}", va="center", fontsize=9)
    axes.plot([], [], "o", color="black", markerfacecolor="white", label="a warm request (median)")
    apart = all(e["apart"] for e in entries)
    reported = "compiling, as JAX and PyTorch report it" if apart else "trace, lower, compile (as JAX reports them)"
    other = "other first-time work" + ("" if apart else " (PyTorch's compiling too)")
    axes.plot([], [], color=STAGES["compile"], linewidth=6, label=reported)
    axes.plot([], [], color=STAGES["run"], linewidth=6, label=other)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(right=30 * axes.get_xlim()[1])
    labels.readable(axes.xaxis)
    memory.margins(x=0.35)
    n = min(e["n"] for e in entries)
    axes.set_xlabel(f"seconds to the first token, weights loaded\n(log scale; point: one process, n = {n} each)")
    memory.set_xlabel("peak resident\nmemory, GB")
    headline(figure, worst_start(entries))
    return figure


def cold_row(axes, e: dict, height: float) -> None:
    """One subject's first request, from a warm one over compiling to the whole, and every process."""
    warm = e["warm_ms"] if np.isfinite(e["warm_ms"]) else e["usual_ms"]
    at = max(1e-3, min(warm, e["median"]) / 1e3)
    made = e["compile_ms"] + e["script_ms"] + e["freeze_ms"]
    for ms, part in ((made, "compile"), (e["profiled_ms"] + e["once_ms"], "run")):
        end = min(at + ms / 1e3, e["median"] / 1e3)
        axes.plot([at, end], [height] * 2, color=STAGES[part], linewidth=6, alpha=0.8, solid_capstyle="butt")
        at = end
    axes.plot(max(1e-3, warm / 1e3), height, "o", color="black", markerfacecolor="white", markersize=6, zorder=4)
    axes.plot(np.array(e["cold"]) / 1e3, [height] * e["n"], "o", color="black", markersize=4, zorder=5)
    of = f"{times(e['median'] / e['warm_ms'])} of warm" if np.isfinite(e["warm_ms"]) else "never warm"
    last = max(*e["cold"], warm) / 1e3
    axes.text(last * 1.25, height, f"{e['median'] / 1e3:.2f} s, {of}", va="center", fontsize=9)


def worst_start(entries: Sequence[dict]) -> str:
    """Whose first request takes the most of a warm one, and what it takes the quickest placement."""
    over = {e["subject"]: e["median"] / e["warm_ms"] for e in entries if np.isfinite(e["warm_ms"])}
    if not over:
        return "No subject has a cold and a warm request"
    worst = max(over, key=over.get)
    mine = next((name for name in over if name.startswith("step") and name != worst), None)
    words = f"A first request takes {times(over[worst])[:-1]} times a warm one under {worst}"
    return words + (f", {times(over[mine])[:-1]} times under {mine}" if mine else "")


def times(ratio: float) -> str:
    """`0.8x`, `9.7x`, `1,670x`."""
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.1f}x"
