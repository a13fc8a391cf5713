"""Charts of placements: rate, distribution, latency, compilation, break-even, arrivals. One function a chart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import AGAIN, statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times
from llama_lab.experiments.jit_placement import finding
from llama_lab.experiments.jit_placement.table import Cost
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import spread_labels
from llama_lab.figures.style import (
    GREY,
    LIMIT_COLOUR,
    STAGES,
    colour,
    headline,
    interval_bar,
    limit_line,
    new,
    plain_ticks,
    rows,
    scatter_row,
    styled,
)


@styled
def throughput(trials: Sequence[Trial], table: list[dict], seed: int = 0) -> Figure:
    """Decode tokens/s: trials as points, median with its 95 % interval, ratio to the baseline, the bandwidth limit."""
    figure, axes = new(9.5, 0.55 * len(table) + 1.6)
    heights, limit = rows(axes, [r["name"] for r in table]), summary.limit(trials, summary.baseline_of(table))
    for line in table:
        name, rate, height = line["name"], line["tokens_per_second"], heights[line["name"]]
        void = [t.tg for t in summary.warm(trials, name, valid=False) if not t.valid and not t.wrong]
        axes.scatter(void, [height] * len(void), marker="x", s=18, color="#999999", linewidths=0.8)
        if not rate["n"]:
            axes.text(
                0,
                height,
                "  no valid trial: " + "; ".join(line["reasons"])[:80],
                va="center",
                fontsize=9,
                color=LIMIT_COLOUR,
            )
            continue
        scatter_row(axes, [t.tg for t in summary.warm(trials, name)], height, name, seed)
        interval_bar(axes, rate["low"], rate["median"], rate["high"], height, 20)
        axes.text(1.01, height, ratio_words(line), va="center", fontsize=9, transform=axes.get_yaxis_transform())
    limit_line(axes, limit)
    axes.set_xlim(0, max(limit * 1.06, *(t.tg * 1.05 for t in trials if t.phase == "warm" and t.tg > 0)))
    axes.set_xlabel("decode rate, tokens/s (point: one answer; bar: median; band: its 95 % interval)")
    headline(figure, finding.claim(trials, table))
    return figure


def ratio_words(line: dict) -> str:
    """`46.1 tok/s · 1.02x [1.00, 1.03], n = 20`, over the baseline."""
    rate, ratio = line["tokens_per_second"], line["ratio_to_baseline"]
    words = f"{rate['median']:.1f} tok/s"
    if ratio["verdict"] == "baseline":
        words += f" · baseline, n = {rate['n']}"
    else:
        words += f" · {times(ratio)}, n = {ratio['n']}"
    return words + (" · rate scatters" if line["unstable"] else "")


@styled
def pipelines(trials: Sequence[Trial], names: dict[str, str], seed: int = 0) -> Figure:
    """The original notebook's two pipelines: every answer (left), and block by block the second over the first (right).
    names: two subjects → labels, the baseline first."""
    figure, (left, right) = new(9.5, 3.4, columns=2, width_ratios=(3, 2))
    (base, label), (other, other_label) = names.items()
    heights = rows(left, [label, other_label])
    for subject, said in names.items():
        rates = list(summary.rates(trials, subject).values())
        found = statistics.summarise(rates, seed)
        scatter_row(left, rates, heights[said], subject, seed)
        interval_bar(left, found.low, found.median, found.high, heights[said])
        left.text(found.median, heights[said] + 0.36, f"{found.median:.1f}", ha="center", fontsize=9)
    left.set_xlabel("decode rate, tokens/s\n(point: one answer; bar: median; band: its 95 % interval)")
    ratio, of = summary.paired_ratio(trials, other, base, seed), (summary.rates(trials, n) for n in (other, base))
    theirs, mine = of
    scatter_row(right, [theirs[at] / mine[at] for at in sorted(theirs.keys() & mine.keys())], 0, other, seed)
    interval_bar(right, ratio.low, ratio.value, ratio.high, 0)
    right.axvline(1, color=GREY, linewidth=0.9)
    right.locator_params(axis="x", nbins=4)
    right.set(yticks=[], ylim=(-1, 1), xlabel=f"{other} over {base} in the same block\n(n = {ratio.n} blocks)")
    words = {"faster": "is faster than its first", "slower": "is slower than its first"}.get(ratio.verdict)
    words = words or ("is as fast as" if ratio.verdict.startswith("equal") else "is not told apart from") + " its first"
    headline(figure, f"The original's second pipeline ({other}) {words}: {ratio.words}")
    return figure


@styled
def sampling(costs: Sequence[Cost], settings: str, seed: int = 0) -> Figure:
    """Milliseconds that drawing a token adds to choosing the best one, a row a placement."""
    figure, axes = new(9.5, 0.55 * len(costs) + 1.6)
    heights = rows(axes, [c.name for c in costs])
    for cost in costs:
        height, a = heights[cost.name], cost.added
        scatter_row(axes, cost.points, height, cost.name, seed)
        interval_bar(axes, a.low, a.median, a.high, height, 20)
        words = f"{a.median:+.2f} ms · {cost.ratio.value:.2f}x the rate, n = {cost.ratio.n}"
        axes.text(1.01, height, words, va="center", fontsize=9, transform=axes.get_yaxis_transform())
    axes.axvline(0, color="#888888", linewidth=0.8)
    axes.set_xlabel(
        "milliseconds added to a token\n"
        "(point: a sampled and a greedy answer of one block; bar: median; band: its 95 % interval)"
    )
    headline(figure, f"{finding.added(costs)} ({settings})")
    return figure


@styled
def latency(trials: Sequence[Trial], table: list[dict], seed: int = 0) -> Figure:
    """TTFT (left) and inter-token latency (right), warm, a row a subject."""
    figure, (left, right) = new(11, 0.5 * len(table) + 1.8, columns=2, sharey=True)
    heights = rows(left, [r["name"] for r in table])
    right.grid(axis="y", visible=False)
    for line in (r for r in table if r["valid_trials"]):
        name, height, good = line["name"], heights[line["name"]], summary.warm(trials, line["name"])
        ttft = [t.ttft * 1e3 for t in good]
        scatter_row(left, ttft, height, name, seed)
        left.plot(np.median(ttft), height, "|", color="black", markersize=18, markeredgewidth=2)
        left.annotate(
            f"{np.median(ttft):.0f}",
            (np.median(ttft), height),
            (0, 11),
            textcoords="offset points",
            fontsize=8.5,
            ha="center",
        )
        gaps = summary.itl_pooled(good) * 1e3
        low, middle, high = np.percentile(gaps, [5, 50, 95])
        right.plot([low, high], [height] * 2, color=colour(name), linewidth=6, alpha=0.5, solid_capstyle="butt")
        right.plot(middle, height, "|", color="black", markersize=18, markeredgewidth=2)
        right.annotate(
            f"{middle:.1f}", (middle, height), (0, 11), textcoords="offset points", fontsize=8.5, ha="center"
        )
    left.set(xscale="log", xlabel="time to first token, ms, log scale\n(point: one answer; bar: median)")
    right.set_xscale("symlog", linthresh=1)
    right.set_xlim(left=-0.15)
    readable(left.xaxis)
    plain_ticks(right.xaxis)
    right.set_xlabel("inter-token latency, ms, log scale above 1\n(bar: median; band: 5th to 95th percentile)")
    headline(figure, soonest(table))
    n = min((r["valid_trials"] for r in table), default=0)
    right.text(
        1.0,
        0.02,
        f"n ≥ {n} answers each; chunk and loop\ndeliver many tokens at once: gap 0",
        ha="right",
        va="bottom",
        transform=right.transAxes,
        fontsize=8.5,
        color=GREY,
    )
    return figure


@styled
def compilation(trials: Sequence[Trial], names: Sequence[str]) -> Figure:
    """What the first request of a fresh process compiles: seconds by stage (left), number of programs (right)."""
    figure, (left, right) = new(11, 0.5 * len(names) + 1.8, columns=2, sharey=True)
    heights = rows(left, names)
    right.grid(axis="y", visible=False)
    stages = {"trace": ("trace_ns", STAGES["trace"], ""), "lower": ("lower_ns", STAGES["lower"], "//"),
              "compile (XLA)": ("backend_ns", STAGES["compile"], "")}  # fmt: skip
    n, found = 0, {}
    for name in names:
        cold = [t for t in trials if t.subject == name and t.phase == "cold" and t.valid]
        at, height = 0.0, heights[name]
        n = min(n or len(cold), len(cold))
        for label, (field, shade, hatch) in stages.items():
            seconds = float(np.mean([getattr(t, field) for t in cold])) / 1e9  # means add up, medians do not
            left.barh(
                height,
                seconds,
                left=at,
                color=shade,
                hatch=hatch,
                edgecolor="white",
                height=0.6,
                label=label if height == 0 else None,
            )
            at += seconds
        left.text(at, height, f" {at:.2f} s", va="center", fontsize=9)
        programs = int(np.median([t.compiled for t in cold]))
        found[name] = (at, programs)
        right.barh(height, programs, color=colour(name), height=0.6)
        right.text(programs, height, f" {programs}", va="center", fontsize=9)
    left.set_xlabel(f"seconds spent before the first answer ended\n(mean of n = {n} fresh processes, nothing cached)")
    right.set_xlabel("programs compiled")
    left.margins(x=0.15)
    right.margins(x=0.15)
    left.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.2), ncols=3)
    ends = [
        f"{name} for {found[name][0]:.1f} s ({found[name][1]} programs)"
        for name in (max(found, key=found.get), min(found, key=found.get))
    ]
    headline(figure, f"Before its first answer a process compiles longest under {ends[0]}, shortest under {ends[1]}")
    return figure


def soonest(table: list[dict]) -> str:
    """From when to when the first token comes under jit, and when without."""
    took = {r["name"]: r["ttft_ms"] for r in table if r["valid_trials"]}
    jitted = [ms for name, ms in took.items() if name != "eager"]
    if not jitted:
        return "No placement has a valid first token"
    said = f"The first token takes {min(jitted):.0f} to {max(jitted):.0f} ms under jit"
    return said + (f", {took['eager']:.0f} ms without" if "eager" in took else "")


@styled
def break_even(table: list[dict], longest: int = 2000) -> Figure:
    """Seconds until a fresh process has made n tokens, compilation included, over those of the quickest at that n."""
    figure, axes = new(9.5, 5)
    n = np.unique(np.geomspace(1, longest, 200).round())
    drawn = [r for r in table if r["compile"] and r["valid_trials"] and not r["name"].endswith(AGAIN)]
    took = {
        r["name"]: r["compile"]["seconds"] + r["ttft_ms"] / 1e3 + (n - 1) / r["tokens_per_second"]["median"]
        for r in drawn
    }
    least = np.min(list(took.values()), axis=0)
    for name, seconds in took.items():
        axes.plot(n, seconds / least, color=colour(name), linewidth=2)
    ends = {name: float((seconds / least)[-1]) for name, seconds in took.items()}
    for name, at in spread_labels(ends, 1.09).items():
        axes.plot([longest, longest * 1.12], [ends[name], at], color=colour(name), linewidth=0.8, clip_on=False)
        words = f"{name}: {took[name][-1]:.0f} s"
        axes.text(longest * 1.15, at, words, va="center", fontsize=9, color=colour(name))
    axes.set(xscale="log", yscale="log", xlim=(1, longest), ylim=(0.95, None))
    axes.set_xlabel(f"tokens made by a fresh process, log scale (right: seconds for {longest:,} tokens)")
    axes.set_ylabel("seconds, compilation included,\nover the quickest placement's, log scale")
    readable(axes.xaxis, axes.yaxis)
    headline(figure, first_by_tokens({name: seconds <= least for name, seconds in took.items()}, n))
    return figure


def first_by_tokens(leads: dict[str, np.ndarray], n: np.ndarray) -> str:
    """Who has made n tokens first, from the fewest to the most."""
    order = [next(name for name, lead in leads.items() if lead[i]) for i in range(len(n))]
    until = {name: int(n[i]) for i, name in enumerate(order)}
    *early, last = until.items()
    said = [f"{name} up to about {float(f'{tokens:.1g}'):,.0f} tokens" for name, tokens in early]
    return (
        f"A fresh process that compiles first is done soonest under {', '.join([*said, last[0]])}"
        + " after that" * bool(early)
    )
