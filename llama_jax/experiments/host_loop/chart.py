"""Charts of the host: rate by strategy, dispatch against the device's work by size of model, and how busy the cores
are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_jax.bench import summary
from llama_jax.bench.wording import times
from llama_jax.experiments.host_loop import measure
from llama_jax.experiments.host_loop.clock import HostTrial
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, colour, interval_bar, new, plain_ticks, rows, styled

GREY = "#555555"


def shade(name: str) -> str:
    """A strategy's colour: that of the placement it drives."""
    return colour(name.partition("+")[0].removesuffix(" (again)"))


@styled
def host_strategies(panels: Sequence[tuple[str, Sequence[HostTrial], list[dict]]], seed: int = 0) -> Figure:
    """Decode tokens/s of each strategy, one panel a model: trials as points, median with interval, ratio to token by
    token, the limit.

    panels: (label, the model's trials, its `measure.table`).
    """
    most = max(len(table) for *_, table in panels)
    figure, all_axes = new(7.2 * len(panels), 0.5 * most + 2.0, columns=len(panels), squeeze=False)
    for axes, (label, trials, table) in zip(all_axes[0], panels, strict=True):
        heights = rows(axes, [line["name"] for line in table])
        for line in table:
            strategy_row(axes, line, [t.tg for t in summary.warm(trials, line["name"])], heights[line["name"]], seed)
        drawn = [t.tg for t in trials if t.phase == "warm" and t.valid and t.tg > 0]
        limit, right = summary.limit(trials, measure.BASELINE), 1.08 * max(drawn, default=1.0)
        if limit < 2 * right:
            axes.axvline(limit, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
            axes.set_xlim(0, max(right, 1.08 * limit))
        else:
            axes.set_xlim(0, right)
        place = "" if limit < 2 * right else ", beyond the scale"
        axes.text(
            1.0,
            1.0,
            f"memory-bandwidth limit {limit:,.0f} tokens/s{place}",
            color=LIMIT_COLOUR,
            ha="right",
            va="bottom",
            fontsize=9,
            transform=axes.transAxes,
        )
        axes.set_xlabel("decode rate, tokens/s\n(point: one answer; bar: median; band: its 95 % interval)")
        axes.set_title(label, pad=18)
    return figure


def strategy_row(axes, line: dict, rates: Sequence[float], height: float, seed: int) -> None:
    """One strategy's points, median and interval, and its ratio beside."""
    if not rates:
        axes.text(
            0.01,
            height,
            "no valid trial: " + "; ".join(line["reasons"])[:60],
            va="center",
            fontsize=8.5,
            color=LIMIT_COLOUR,
            transform=axes.get_yaxis_transform(),
        )
        return
    spread = np.random.default_rng(seed).uniform(-0.22, 0.22, len(rates))
    axes.scatter(rates, height + spread, s=12, alpha=0.45, color=shade(line["name"]), linewidths=0, zorder=2)
    rate, ratio = line["tokens_per_second"], line["ratio_to_baseline"]
    interval_bar(axes, rate["low"], rate["median"], rate["high"], height)
    words = (
        f"baseline, n = {rate['n']}"
        if ratio["verdict"] == "baseline"
        else f"{times(ratio)}\n{ratio['verdict']}, n = {ratio['n']}"
    )
    axes.text(1.01, height, words, va="center", fontsize=8.5, linespacing=0.95, transform=axes.get_yaxis_transform())


@styled
def dispatch_and_device(points: Sequence[dict], cross: float | None) -> Figure:
    """Microseconds a token against size of model, both log: in calls that start programs, waiting for them, and the
    device alone.

    points: `measure.by_size`. cross: `measure.crossover`.
    """
    figure, axes = new(9.5, 5)
    weights = np.array([p["weights"] for p in points])
    series = {
        "dispatch": ("in calls that start programs (step)", PALETTE["vermilion"], "o-", -1),
        "wait": ("waiting for their tokens (step)", PALETTE["blue"], "s-", 1),
        "alone": ("device alone: whole loop / tokens", "black", "^:", 1),
    }
    for key, (label, tint, form, _) in series.items():
        middle = np.array([p[key].median for p in points])
        axes.fill_between(
            weights, [p[key].low for p in points], [p[key].high for p in points], color=tint, alpha=0.15, linewidth=0
        )
        axes.vlines(
            weights, [p[key].low for p in points], [p[key].high for p in points], color=tint, linewidth=3, alpha=0.4
        )
        axes.plot(weights, middle, form, color=tint, linewidth=2, markersize=7, label=label)
    if cross:
        axes.axvline(cross, color=GREY, linestyle="--", linewidth=1.2)
        axes.text(
            cross,
            0.99,
            f" waiting overtakes dispatch\n at about {cross / 1e6:.2g} M weights",
            fontsize=9.5,
            va="top",
            color=GREY,
            transform=axes.get_xaxis_transform(),
        )
    axes.set(xscale="log", yscale="log", ylabel="µs a token, log scale\n(median; band: its 95 % interval)")
    names = [
        f"{measure.short(p['model'])}\n{p['weights'] / 1e6:.3g} M\nn = {p['dispatch'].n}, {p['alone'].n}"
        for p in points
    ]
    axes.set_xticks(weights, names, fontsize=9)
    axes.minorticks_off()
    plain_ticks(axes.yaxis)
    axes.set_xlabel("weights that a token reads, log scale (n: answers of step, of loop)")
    axes.legend(fontsize=9.5, loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=3)
    axes.set_title("Where a token's time goes when the host starts every one")
    return figure


@styled
def host_load(panels: Sequence[tuple[str, Sequence[HostTrial], list[dict]]], cores: int, seed: int = 0) -> Figure:
    """Processor cores kept busy, one panel a model (hatched: by the reader's thread), and the last one's gaps between
    tokens.

    panels: as for `host_strategies`. cores: those that the processes might use.
    """
    table = panels[-1][2]
    figure, (*busy, gaps) = new(4.6 * len(panels) + 5, 0.5 * len(table) + 1.9, columns=len(panels) + 1, sharey=True)
    heights = rows(gaps, [line["name"] for line in table])
    for axes, (label, trials, lines) in zip(busy, panels, strict=True):
        for line in (line for line in lines if line["valid_trials"] and line["name"] in heights):
            cores_row(axes, line, [t.cores for t in summary.warm(trials, line["name"])], heights[line["name"]], seed)
        axes.axvline(cores, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
        axes.text(
            cores,
            1.0,
            f"all {cores} cores ",
            color=LIMIT_COLOUR,
            ha="right",
            va="bottom",
            fontsize=9,
            transform=axes.get_xaxis_transform(),
        )
        axes.set_xlim(0, 1.3 * max(cores, *(t.cores for t in trials if t.valid)))
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(
            "cores busy, host and device together\n(bar: median; hatched: reader's thread;\npoint: one answer)",
            fontsize=10,
        )
        axes.set_title(label, pad=18)
    for line in (line for line in table if line["valid_trials"]):
        name, height = line["name"], heights[line["name"]]
        low, middle, high = np.percentile(summary.itl_pooled(summary.warm(panels[-1][1], name)) * 1e3, [5, 50, 95])
        gaps.plot([low, high], [height] * 2, color=shade(name), linewidth=6, alpha=0.5, solid_capstyle="butt")
        gaps.plot(middle, height, "|", color="black", markersize=18, markeredgewidth=2)
        gaps.annotate(f"{middle:.2g}", (middle, height), (0, 9), textcoords="offset points", fontsize=8.5, ha="center")
    gaps.set_xscale("symlog", linthresh=0.1)
    gaps.set_xlim(left=-0.02)
    plain_ticks(gaps.xaxis)
    gaps.set_xlabel(
        "gap between tokens at the reader, ms\n(log scale above 0.1; bar: median;\nband: 5th to 95th percentile)",
        fontsize=10,
    )
    gaps.set_title(f"{panels[-1][0]}: how tokens arrive", pad=18)
    return figure


def cores_row(axes, line: dict, cores: Sequence[float], height: float, seed: int) -> None:
    """One strategy's busy cores: every answer, the median, and the share of the reader's thread."""
    tint = shade(line["name"])
    axes.barh(height, line["cores"], color=tint, alpha=0.35, height=0.62)
    axes.barh(height, line["reader_cores"], color="none", edgecolor=tint, hatch="////", height=0.62, linewidth=0)
    spread = np.random.default_rng(seed).uniform(-0.22, 0.22, len(cores))
    axes.scatter(cores, height + spread, s=10, color="black", alpha=0.5, linewidths=0, zorder=3)
    axes.text(max(cores), height, f"  {line['cores']:.2f}, n = {len(cores)}", va="center", fontsize=9)
