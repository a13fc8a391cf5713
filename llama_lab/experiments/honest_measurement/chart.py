"""Charts of measuring itself: published claims timed again, and the statistics against a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.published import standing
from llama_lab.bench.wording import interval
from llama_lab.experiments.honest_measurement import finding
from llama_lab.experiments.honest_measurement.simulation import BASE
from llama_lab.figures import notes, rows
from llama_lab.figures.marks import interval_words
from llama_lab.figures.style import OTHERS, colour, footnote, headline, new, styled

WITH, WITHOUT, BAD = colour("step"), OTHERS[1], OTHERS[5]
DRAWN = ("base", "5 processes", "2 processes", "one process", "no drift", "noise 10 %")  # of the simulated scenarios


@styled
def speed_ups(entries: Sequence[dict], limit: float) -> Figure:
    """Tokens/s of whole answers with and without a cache under three ways of warming up; published and measured ratios
    beside.

    entries: of `measure.speed_ups`. limit: tokens/s that the memory bandwidth allows.
    """
    figure, axes = new(10, 3.8)
    heights = rows.heights(axes, [e["label"] for e in entries])
    where = standing("kv-cache", "speed-up, short warm-up", "speed-up, long warm-up")
    for e in entries:
        height = heights[e["label"]]
        for name, shade, marker, up in (("uncached", WITHOUT, "s", -0.12), ("cached", WITH, "o", 0.12)):
            rows.points(axes, e[name], height + up, shade, spread=0, s=34, marker=marker, alpha=0.7, zorder=3)
        middles = [np.median(e["uncached"]), np.median(e["cached"])]
        axes.plot(middles, [height] * 2, color="#999999", linewidth=1.2, zorder=1)
        known = f"published {e['published']:.2f}x ({where})\n" if e["published"] else "never published\n"
        words = known + "here " + interval_words(e["ratio"])
        words += "\nthe ratio that counts" if e["guard"] else "\nas published: compilations inside"
        rows.beside(axes, height, words, 9.5, x=1.02, color="black" if e["guard"] else BAD)
    notes.bandwidth_limit(axes, limit)
    axes.set_xscale("log")
    axes.set_xlim(right=1.15 * max(limit, *(rate for e in entries for rate in e["cached"])))
    notes.plain(axes.xaxis)
    axes.set_xlabel("tokens/s over a whole answer of 15 tokens, log scale (point: one answer)")
    axes.scatter([], [], color=WITH, marker="o", label="cache: a growing KV cache, jitted")
    axes.scatter([], [], color=WITHOUT, marker="s", label="baseline: no cache, jitted")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    headline(figure, finding.claim(entries))
    return figure


@styled
def first_tokens(first: dict, limit_ms: float) -> Figure:
    """Times to first token of a cold loop and a warm one, with the mean of the one and the median of the other.

    first: of `measure.first_tokens`. limit_ms: what the machine's arithmetic allows for this prompt.
    """
    cold, warm, middle = first["cold"], first["warm"], first["warm_median"]
    figure, right = new(9.5, 4.0)
    top, bottom = rows.heights(right, [f"{len(cold)}, the first cold", f"{len(warm)} warm requests"]).values()
    spread = np.random.default_rng(0)
    for times, shade, height in ((cold, BAD, top), (warm, WITH, bottom)):
        rows.points(right, times, height, shade, spread, 0.2, s=18, alpha=0.5, zorder=1)
    mean, times = first["cold_mean"], f"{first['cold_mean'] / first['naive_p99']:.1f} times"
    right.plot([mean] * 2, [top - 0.3, top + 0.3], color=BAD, linewidth=2.2)
    words = f"mean {milliseconds(mean)}, {times} the P99 below"
    right.text(mean, top + 0.33, words, color=BAD, fontsize=9, ha="center", va="bottom")
    right.plot([first["naive_p99"]] * 2, [bottom - 0.3, bottom + 0.3], ":", color="black", linewidth=1.6)
    right.plot([middle.median] * 2, [bottom - 0.3, bottom + 0.3], color="black", linewidth=2.2)
    p99 = f"P99 {milliseconds(first['p99'])}" if first["p99"] else f"no p99: {first['note']}"
    words = f"median {middle.median:.0f} {interval(middle, '.0f')} ms, n = {middle.n}\n{p99} (dotted)"
    right.text(middle.median, bottom - 0.34, words, fontsize=9, ha="left", va="top")
    right.set_ylim(bottom=bottom - 0.85)
    notes.limit(right, limit_ms, f" arithmetic limit {limit_ms:.0f} ms", "left")
    right.set_xscale("log")
    notes.plain(right.xaxis)
    right.xaxis.set_minor_formatter("")
    right.set_xlim(min(limit_ms, *warm) / 1.4, max(*cold, *warm) * 1.4)
    right.set_xlabel("time to first token, ms, log scale (point: one request)")
    headline(figure, f"The mean of {len(cold)} requests, the first of them cold, is {times} the P99 of warm ones")
    where = standing("ttft", "mean, JIT-only", "P99, JIT-only")
    pair = f"a mean of {first['published_mean']:.2f} ms beside a P99 of {first['published_p99']:.2f} ms"
    footnote(figure, f"Published ({where}): {pair}, of 5 requests with a cold one and of 100 warm ones.")
    return figure


def milliseconds(ms: float) -> str:
    """`273 ms`, `69.3 ms`: to three digits, so that the quotient of two has its first two digits."""
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


@styled
def two_ways(rounds: Sequence[dict], pairs: int, published: str) -> Figure:
    """One program under two names: the interval of each round, timed one after the other and interleaved.

    published: what was claimed on the strength of the first way.
    """
    figure, both = new(10, 0.22 * len(rounds) + 2.6, columns=2, sharex=True, sharey=True)
    titles = {
        "sequential": "as published: all of A, then all of B",
        "interleaved": "this protocol: pairs in random order",
    }
    apart = {way: sum(ratios[way].excludes_one for ratios in rounds) for way in titles}
    for axes, (way, title) in zip(both, titles.items(), strict=True):
        for i, ratio in enumerate(ratios[way] for ratios in rounds):
            shade, form = (BAD, "x") if ratio.excludes_one else (WITH, "o")
            axes.plot([ratio.low, ratio.high], [i] * 2, color=shade, linewidth=3, alpha=0.6, solid_capstyle="butt")
            axes.plot(ratio.value, i, form, color=shade, markersize=6, markeredgewidth=2)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_title(title)
        count = f"{apart[way]} of {len(rounds)} rounds called different (x)"
        axes.set_xlabel(f"tokens/s of B over A, 95% interval ({pairs} answers each)\n{count}")
        axes.set_yticks(range(len(rounds)), [str(i + 1) for i in range(len(rounds))])
        axes.grid(axis="y", visible=False)
    both[0].set_ylabel("round (a process each)")
    words = f"A program timed against itself differs in {apart['sequential']} of {len(rounds)} rounds in sequence"
    headline(figure, f"{words}, in {apart['interleaved']} of {len(rounds)} interleaved")
    footnote(figure, f"Published one after the other: {published}. Here A and B are one program.")
    both[0].invert_yaxis()
    return figure


SAID = "5 processes"  # the scenario of the headline: as many as the A/B test of the notebook has
ALONE = "one process"  # the scenario that naive timing is
PLAIN = {  # scenario → its name in the figure
    "base": f"{BASE.processes} processes",
    "no drift": f"{BASE.processes} processes (naive: 1),\nno drift (other rows: {BASE.drift:.0%})",
    "noise 10 %": f"{BASE.processes} processes (naive: 1),\n10% noise (other rows: {BASE.noise:.0%})",
}


@styled
def validation(table: Sequence[dict], thresholds: dict[str, float]) -> Figure:
    """Simulated measurements with a known truth: how often each way is right. table: of `simulation.table`, of which
    DRAWN is shown."""
    table = [r for r in table if r["scenario"] in DRAWN]
    scenarios = list(dict.fromkeys(r["scenario"] for r in table))
    chosen = SAID if SAID in scenarios else scenarios[0]
    told = {r["protocol"]: r for r in table if r["scenario"] == chosen}
    looks = {"ours": (0.13, "o", WITH), "naive": (-0.13, "X", BAD)}
    alike = itemgetter("protocol", "coverage", "aa_false_positive_rate", "power")
    naive = sorted((r for r in reversed(table) if r["protocol"] == "naive"), key=lambda r: r["scenario"] == ALONE)
    different = [*{alike(r): r for r in naive}.values(), *(r for r in table if r["protocol"] != "naive")]
    figure, panels = new(11, 0.45 * len(scenarios) + 2.3, columns=3, sharey=True)
    heights = rows.heights(panels[0], scenarios)
    panels[0].set_yticks([*heights.values()], [PLAIN.get(name, name) for name in heights])
    for axes, (key, title, bound) in zip(
        panels,
        (
            ("coverage", "interval covers the truth\n(higher is better)", "at least"),
            ("aa_false_positive_rate", "equal called different\n(lower is better)", "at most"),
            ("power", "a 3% effect is found\n(higher is better)", "at least"),
        ),
        strict=True,
    ):
        axes.grid(axis="y", visible=False)
        for r in different:
            up, form, shade = looks[r["protocol"]]
            share, height = r[key], heights[r["scenario"]] + up
            error = 1.96 * np.sqrt(max(share * (1 - share), 0) / r["runs"])
            span = [100 * (share - error), 100 * (share + error)]
            axes.plot(span, [height] * 2, color=shade, linewidth=2, alpha=0.5)
            axes.plot(100 * share, height, form, color=shade, markersize=7)
            if r["scenario"] == chosen or (r["protocol"] == "naive" and alike(r) == alike(told["naive"])):
                side = "left" if share < 0.04 else "center"  # clear of the axis
                over = dict(textcoords="offset points", ha=side, fontsize=8.5, color=shade, zorder=5)
                over["bbox"] = dict(facecolor="white", edgecolor="none", pad=0.5)  # the dotted line ends below it
                axes.annotate(f"{share:.1%}", (100 * share, height), (0, -15), **over)
        at = 100 * thresholds[key]
        axes.axvline(at, color="black", linestyle=":", linewidth=1.5)
        axes.set(xlim=(-3, 103), title=title, xlabel=f"% of simulated runs\n(dotted: should be {bound} {at:.0f}%)")
    panels[0].plot([], [], "o", color=WITH, label="this protocol: interleaved blocks, pairs, bootstrap of processes")
    panels[0].plot([], [], "X", color=BAD, label="naive: one after the other, unpaired, always in one process")
    figure.legend(loc="outside lower center", ncols=1, fontsize=9.5)
    held = {name: f"{r['coverage']:.1%}" for name, r in told.items()}
    words = f"In simulations with {PLAIN.get(chosen, chosen)} our intervals cover the truth in {held['ours']} of runs"
    headline(figure, f"{words}, naive timing's (1 process) in {held['naive']}")
    return figure
