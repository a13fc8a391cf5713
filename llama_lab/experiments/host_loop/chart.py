"""Charts of the host: rates, dispatch beside the device's work, and busy cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import AGAIN, summary
from llama_lab.bench.statistics import DIFFERENT
from llama_lab.bench.wording import counted
from llama_lab.experiments.host_loop import finding, measure
from llama_lab.experiments.host_loop.clock import HostTrial
from llama_lab.figures import notes, rows
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, headline, new, styled

DRAWN = ("step", "step (again)", "step+async8", "step+queue", "chunk8", "chunk8+callback", "loop", "loop+callback")
LOOK = dict(mark=16, edge=2, linewidth=6, alpha=0.5, zorder=(2, 2))  # of a band and its median
Panels = Sequence[tuple[str, Sequence[HostTrial], list[dict]]]  # (label, a model's trials, its `measure.table`)


@styled
def host_strategies(panels: Panels, seed: int = 0) -> Figure:
    """Decode tokens/s of each strategy in DRAWN, one panel per model: answers, median, ratio to `step`, the limit."""
    drawn = [[line for line in table if line["name"] in DRAWN] for *_, table in panels]
    figure, all_axes = new(5.2 * len(panels), 0.46 * max(map(len, drawn)) + 2.2, columns=len(panels), squeeze=False)
    for axes, (label, trials, _), lines in zip(all_axes[0], panels, drawn, strict=True):
        heights = rows.heights(axes, [line["name"] for line in lines])
        for line in lines:
            strategy_row(axes, line, [t.tg for t in summary.warm(trials, line["name"])], heights[line["name"]], seed)
        rates = [t.tg for line in lines for t in summary.warm(trials, line["name"]) if t.tg > 0]
        limit, right = summary.limit(trials, measure.BASELINE), 1.08 * max(rates, default=1.0)
        if near := limit < 2 * right:
            axes.axvline(limit, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
        axes.set_xlim(0, max(right, 1.08 * limit) if near else right)
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        words = f"bandwidth limit {limit:,.0f}" + ", beyond the scale" * (not near)
        axes.text(1, 1, words, transform=axes.transAxes, color=LIMIT_COLOUR, ha="right", va="bottom", fontsize=9)
        n = counted(line["valid_trials"] for line in lines)
        marks = f"point: one answer, {n}; bar: median; band: 95% interval"
        axes.set_xlabel(f"decode rate, tokens/s\n({marks})", fontsize=10)
        axes.set_title(label, pad=18)
    for axes in all_axes[0][1:]:
        axes.tick_params(labelleft=False)
    headline(figure, finding.title([(label, table) for label, _, table in (panels[0], panels[-1])]))
    return figure


def strategy_row(axes, line: dict, rates: Sequence[float], height: float, seed: int) -> None:
    """One strategy's points, median and interval, and its ratio beside."""
    if not rates:
        words = "no valid trial: " + "; ".join(line["reasons"])[:60]
        return rows.beside(axes, height, words, 8.5, x=0.01, color=LIMIT_COLOUR)
    ratio = line["ratio_to_baseline"]
    words = "baseline" if ratio["verdict"] == summary.BASELINE else f"{finding.unrounded(ratio)}\n{ratio['verdict']}"
    if line["name"].endswith(AGAIN):
        failed = ratio["verdict"] in DIFFERENT
        noise = "the same program differs:\nonly larger effects count" if failed else "noise: the same program"
        words = f"{finding.unrounded(ratio)}\n{noise}"
    rows.points(axes, rates, height, colour(line["name"]), seed)
    rows.interval(axes, line["tokens_per_second"], height)
    rows.beside(axes, height, words, 9, linespacing=1.1)


@styled
def dispatch_and_device(points: Sequence[dict], cross: float | None) -> Figure:
    """The share of launching its program in that and the waiting for a token under `step`, against size of model.

    points: `measure.by_size`. cross: `measure.crossover`.
    """
    figure, axes = new(9.5, 4.4)
    weights, tint = np.array([p["weights"] for p in points]), colour("step")
    shares = [*map(finding.share, points)]
    for p, share in zip(points, shares, strict=True):
        (low, starting, high), (least, waiting, most) = (rows.ends(p[key]) for key in ("dispatch", "wait"))
        axes.vlines(p["weights"], 100 * low / (low + most), 100 * high / (high + least), color=tint, lw=4, alpha=0.3)
        words = f"{share:.0%}: {starting:,.0f} of {starting + waiting:,.0f} µs"
        place = dict(textcoords="offset points", fontsize=9, color=tint)
        axes.annotate(words, (p["weights"], 100 * share), (7, 7), **place)
    axes.plot(weights, 100 * np.array(shares), "o-", color=tint, linewidth=2, markersize=7)
    if cross:
        axes.axvline(cross, color=GREY, linestyle="--", linewidth=1.2)
        words = f" waiting overtakes launching\n at about {cross / 1e6:.2g} M weights"
        axes.text(cross, 0.99, words, fontsize=9.5, va="top", color=GREY, transform=axes.get_xaxis_transform())
    axes.margins(x=0.14)
    axes.set(xscale="log", ylim=(0, 1.25 * max([*(100 * share for share in shares), 10])))
    axes.set_ylabel("launch, % of launch + wait\nper token under step")
    names = [f"{p['weights'] / 1e6:.3g} M\nn = {p['dispatch'].n}" for p in points]
    axes.set_xticks(weights, names, fontsize=9)
    axes.minorticks_off()
    axes.set_xlabel("weights that a token reads, log scale (n: answers; band: ends of both parts' 95% intervals)")
    headline(figure, finding.starting(points))
    return figure


@styled
def host_load(panels: Panels, cores: int) -> Figure:
    """Busy cores by strategy in DRAWN, a panel per model, and the last model's gaps between tokens (right)."""
    main, trials, table = panels[-1]
    table = [line for line in table if line["name"] in DRAWN and not line["name"].endswith(AGAIN)]
    size = 3.6 * (len(panels) + 1), 0.4 * len(table) + 2.2
    figure, (*busy, gaps) = new(*size, columns=len(panels) + 1, sharey=True)
    heights = rows.heights(busy[0], [line["name"] for line in table])
    most = max(cores, *(t.cores for _, answers, _ in panels for t in answers if t.valid))
    for axes, (label, answers, lines) in zip(busy, panels, strict=True):
        known = [line for line in lines if line["valid_trials"] and line["name"] in heights]
        for line in known:
            used = [t.cores for t in summary.warm(answers, line["name"])]
            place = heights[line["name"]]
            rows.interval(axes, (min(used), line["cores"], max(used)), place, colour(line["name"]), **LOOK)
            value = dict(textcoords="offset points", fontsize=8.5, ha="center")
            axes.annotate(f"{line['cores']:.2f}", (line["cores"], place), (0, 9), **value)
        notes.limit(axes, cores, f"all {cores} cores ")
        axes.set_xlim(0, 1.15 * most)
        axes.set_title(f"Cores busy, {label}", pad=18, fontsize=11.5)
        n = counted(line["valid_trials"] for line in known)
        axes.set_xlabel(f"host and device together\n(bar: median; band: all of {n} answers)", fontsize=9.5)
    shown = [line for line in table if line["valid_trials"]]
    for axes in (*busy, gaps):
        axes.grid(axis="y", visible=False)
    blocks = []
    for name, height in ((line["name"], heights[line["name"]]) for line in shown):
        span = np.percentile(summary.itl_pooled(summary.warm(trials, name)) * 1e3, [5, 50, 95])
        rows.interval(gaps, tuple(span), height, colour(name), **LOOK)
        place = dict(textcoords="offset points", fontsize=8.5, ha="left")
        gaps.annotate(f"{span[1]:.2g}" if span[1] else "in blocks", (span[1], height), (3, 9), **place)
        blocks += [] if span[1] else [name]
    gaps.set_title(f"Gap between tokens, {main}", pad=18, fontsize=11.5)
    gaps.set_xlabel("ms (bar: median; band:\n5th to 95th percentile)", fontsize=9.5)
    headline(figure, finding.load(panels, heights, cores, blocks))
    return figure
