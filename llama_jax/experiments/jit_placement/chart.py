"""Charts of placements: rate, distribution, latency, compilation, break-even, arrivals. One function a chart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from llama_jax.bench import summary
from llama_jax.bench.record import Trial
from llama_jax.bench.wording import times
from llama_jax.experiments.jit_placement.table import Cost
from llama_jax.figures.marks import spread_labels
from llama_jax.figures.style import (
    LIMIT_COLOUR,
    PALETTE,
    colour,
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
    axes.set_title("Decode rate by placement of jax.jit", pad=18)
    return figure


def ratio_words(line: dict) -> str:
    """`46.1 tok/s · 1.02x [1.00, 1.03] of step, n = 20`."""
    rate, ratio = line["tokens_per_second"], line["ratio_to_baseline"]
    words = f"{rate['median']:.1f} tok/s"
    if ratio["verdict"] == "baseline":
        words += f" · baseline, n = {rate['n']}"
    else:
        words += f" · {times(ratio)}, n = {ratio['n']}"
    return words + (" · rate scatters" if line["unstable"] else "")


@styled
def pipelines(trials: Sequence[Trial], names: dict[str, str]) -> Figure:
    """Distribution of tokens/s of a few placements, as the original notebook drew it. names: subject → label."""
    import seaborn as sns

    figure, axes = new(9, 4.2)
    series = {label: [t.tg for t in summary.warm(trials, subject)] for subject, label in names.items()}
    edges = np.histogram_bin_edges(
        np.concatenate(list(series.values())), bins=int(np.clip(max(map(len, series.values())), 4, 16))
    )
    for (subject, label), hatch in zip(names.items(), ("", "//", ".."), strict=False):
        values = series[label]
        text = (
            f"{label}: median {np.median(values):.1f}, sd {np.std(values, ddof=1) if len(values) > 1 else 0:.1f},"
            f" n = {len(values)}"
        )
        sns.histplot(
            x=values,
            bins=edges,
            ax=axes,
            color=colour(subject),
            alpha=0.5,
            label=text,
            hatch=hatch,
            edgecolor=colour(subject),
        )
        axes.axvline(np.median(values), color=colour(subject), linewidth=2)
    axes.set(xlabel="decode rate, tokens/s (line: median)", ylabel="answers")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), fontsize=10)
    axes.set_title("The original's pipelines 1 and 2 on the same prompts")
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
    axes.set_xscale("symlog", linthresh=1)
    plain_ticks(axes.xaxis)
    axes.set_xlabel(
        "milliseconds added to a token, log scale beyond ±1\n"
        "(point: a sampled and a greedy answer of one block; bar: median; band: its 95 % interval)"
    )
    axes.set_title(f"What sampling adds: {settings}", pad=18)
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
            (0, 9),
            textcoords="offset points",
            fontsize=8.5,
            ha="center",
        )
        gaps = summary.itl_pooled(good) * 1e3
        low, middle, high = np.percentile(gaps, [5, 50, 95])
        right.plot([low, high], [height] * 2, color=colour(name), linewidth=6, alpha=0.5, solid_capstyle="butt")
        right.plot(middle, height, "|", color="black", markersize=18, markeredgewidth=2)
        right.annotate(f"{middle:.1f}", (middle, height), (0, 9), textcoords="offset points", fontsize=8.5, ha="center")
    left.set(xscale="log", xlabel="time to first token, ms, log scale\n(point: one answer; bar: median)")
    right.set_xscale("symlog", linthresh=1)
    right.set_xlim(left=-0.15)
    plain_ticks(left.xaxis, right.xaxis)
    left.xaxis.set_minor_formatter("{x:g}")
    right.set_xlabel("inter-token latency, ms, log scale above 1\n(bar: median; band: 5th to 95th percentile)")
    left.set_title("Time to first token")
    right.set_title("Gap between tokens")
    n = min((r["valid_trials"] for r in table), default=0)
    right.text(
        1.0,
        0.02,
        f"n ≥ {n} answers each; chunk and loop\ndeliver many tokens at once: gap 0",
        ha="right",
        va="bottom",
        transform=right.transAxes,
        fontsize=8.5,
        color="#555555",
    )
    return figure


@styled
def compilation(trials: Sequence[Trial], names: Sequence[str]) -> Figure:
    """What the first request of a fresh process compiles: seconds by stage (left), number of programs (right)."""
    figure, (left, right) = new(11, 0.5 * len(names) + 1.8, columns=2, sharey=True)
    heights = rows(left, names)
    right.grid(axis="y", visible=False)
    stages = {"trace": ("trace_ns", PALETTE["sky"], ""), "lower": ("lower_ns", PALETTE["orange"], "//"),
              "compile (XLA)": ("backend_ns", PALETTE["blue"], "")}  # fmt: skip
    n = 0
    for name in names:
        cold = sorted(
            (t for t in trials if t.subject == name and t.phase == "cold" and t.valid), key=summary.compile_seconds
        )
        typical, at, height = cold[(len(cold) - 1) // 2], 0.0, heights[name]  # the process of median total
        n = min(n or len(cold), len(cold))
        for label, (field, shade, hatch) in stages.items():
            seconds = getattr(typical, field) / 1e9
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
        right.barh(height, programs, color=colour(name), height=0.6)
        right.text(programs, height, f" {programs}", va="center", fontsize=9)
    left.set_xlabel(
        f"seconds spent before the first answer ended\n(the median one of n = {n} fresh processes, nothing cached)"
    )
    right.set_xlabel("programs compiled")
    left.margins(x=0.15)
    right.margins(x=0.15)
    left.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.2), ncols=3)
    left.set_title("Compile time")
    right.set_title("Compilations")
    return figure


@styled
def break_even(table: list[dict], against: str = "eager", longest: int = 2000) -> Figure:
    """Time to make n tokens in a fresh process, compilation included: where a line crosses, its compilation has
    paid."""
    figure, axes = new(9.5, 5)
    n = np.unique(np.geomspace(1, longest, 200).round())
    drawn = [r for r in table if r["compile"] and r["valid_trials"]]
    ends = {}
    for line in drawn:
        seconds = line["compile"]["seconds"] + line["ttft_ms"] / 1e3 + (n - 1) / line["tokens_per_second"]["median"]
        axes.plot(n, seconds, color=colour(line["name"]), linewidth=2)
        ends[line["name"]] = float(seconds[-1])
    for name, at in spread_labels(ends, 1.18, centred=True).items():
        crossing = next(
            (
                summary.break_even(r, base)
                for r in drawn
                for base in drawn
                if r["name"] == name and base["name"] == against
            ),
            None,
        )
        words = name + (
            "" if name == against or crossing is None else f": {crossing:.0f} tokens" if crossing else ": ahead at once"
        )
        # from line to label
        axes.plot([longest, longest * 1.12], [ends[name], at], color=colour(name), linewidth=0.8, clip_on=False)
        axes.text(longest * 1.15, at, words, va="center", fontsize=9, color=colour(name))
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1, longest),
        xlabel="tokens made by the process, log scale",
        ylabel="seconds, compilation included,\nlog scale",
    )
    plain_ticks(axes.xaxis, axes.yaxis)
    axes.set_title(f"Tokens until compilation has paid for itself against {against}")
    return figure
