"""Charts of what compiling costs: stages against depth, programs against depth, starts, break-even, and two
surprises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from llama_jax.bench import statistics, summary
from llama_jax.bench.cold import Start
from llama_jax.bench.wording import within
from llama_jax.experiments.compile_time import table
from llama_jax.experiments.compile_time.measure import LAYOUTS, STAGES, Compilation
from llama_jax.experiments.compile_time.starts import WAYS
from llama_jax.experiments.compile_time.table import NEVER, BreakEven
from llama_jax.figures.marks import spread_labels
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, colour, new, plain_ticks, rows, scatter_row, styled

SHADES = {
    "trace": PALETTE["sky"],
    "lower": PALETTE["orange"],
    "compile": PALETTE["blue"],
    "first_run": PALETTE["green"],
}
MARKS = {"trace": "s", "lower": "^", "compile": "o", "first_run": "D"}
LINES = {
    "step": dict(color=PALETTE["blue"], marker="o"),
    "step+scan": dict(color=PALETTE["vermilion"], marker="s", linestyle="--"),
    "step+donate": dict(color=PALETTE["sky"], marker="^"),
    "step+scan+donate": dict(color=PALETTE["orange"], marker="D", linestyle="--"),
}
TITLES = dict(zip(LAYOUTS, ("layers unrolled", "layers scanned"), strict=True))
PART_SHADES = dict(
    zip(
        table.PARTS,
        ("#BBBBBB", "#888888", PALETTE["sky"], PALETTE["orange"], PALETTE["blue"], PALETTE["purple"], PALETTE["green"]),
        strict=True,
    )
)
PART_HATCHES = dict(zip(table.PARTS, ("", "..", "", "//", "", "xx", "\\\\"), strict=True))
GREY = "#555555"


def with_interval(found: table.Slope, digits: int = 0) -> str:
    """`45 ms a layer [40, 50]` of a slope in seconds."""
    slope = round(1e3 * found.slope, digits) + 0.0  # no minus zero
    return f"{slope:.{digits}f} ms a layer{within(found, lambda seconds: f'{1e3 * seconds:.{digits}f}')}"


def logarithmic(axes) -> None:
    """A log y axis with ticks at 1, 2 and 5 of each decade, so that a short range has some too."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_formatter("")
    plain_ticks(axes.yaxis)


def against_depth(axes, data: Sequence[Compilation], value: Callable, **style) -> dict[int, float]:
    """Each process as a point, the medians joined by a line. Returns the medians."""
    points = [(r.depth, known) for r in data if (known := value(r)) is not None]
    middle = table.medians(data, value)
    line = dict(linewidth=1.8, markersize=0, linestyle=style.pop("linestyle", "-"), color=style["color"])
    axes.plot(list(middle), list(middle.values()), **line)
    axes.plot(*zip(*points, strict=True), linestyle="", markersize=5, alpha=0.75, **style)
    return middle


@styled
def compile_stages(data: Sequence[Compilation]) -> Figure:
    """Seconds of each stage against depth, unrolled (left) and scanned (right), on one scale. data: rows of the run
    `depth`."""
    figure, both = new(11.5, 4.6, columns=2, sharey=True)
    mine = table.of(data, "depth")
    deepest = max((r.depth for r in mine), default=1)
    for axes, layout in zip(both, LAYOUTS, strict=True):
        kept, ends, words = [r for r in mine if r.placement == layout], {}, {}
        for stage in (*STAGES, "first_run"):
            field = f"{stage}_ns"
            if middle := against_depth(
                axes, kept, lambda r, field=field: getattr(r, field) / 1e9, color=SHADES[stage], marker=MARKS[stage]
            ):
                ends[stage] = middle[max(middle)]
                words[stage] = f"{stage.replace('_', ' ')}: {with_interval(table.per_layer(data, layout, field), 1)}"
        for stage, height in spread_labels(ends, 1.75).items():
            axes.text(deepest * 1.03, height, words[stage], color=SHADES[stage], fontsize=8.5, va="center")
        processes = len({(r.block, r.depth) for r in kept})
        axes.set(xlabel=f"layers (point: one fresh process, {processes} in all)", xlim=(0, deepest * 1.02))
        axes.set_xticks(sorted({r.depth for r in kept}))
        axes.set_title(f"{TITLES[layout]}: {with_interval(table.per_layer(data, layout))}", fontsize=11.5)
        logarithmic(axes)
    both[0].set_ylabel("seconds, log scale")
    figure.get_layout_engine().set(wspace=0.28)
    return figure


@styled
def compile_sizes(data: Sequence[Compilation]) -> Figure:
    """Instructions, temporaries and warm rate of the decode program against depth. data: rows of the run `depth`."""
    figure, panels = new(12, 4.2, columns=3)
    mine = table.of(data, "depth")
    deepest = max((r.depth for r in mine), default=1)
    values = {
        "instructions of the program": lambda r: r.instructions,
        "temporaries, MB": lambda r: None if r.temp_bytes is None else r.temp_bytes / 1e6,
        "decode rate, tokens/s": lambda r: r.rate,
    }
    for axes, (title, value) in zip(panels, values.items(), strict=True):
        for layout in LAYOUTS:
            kept = [r for r in mine if r.placement == layout]
            against_depth(axes, kept, value, **LINES[layout])
        axes.set(xlabel="layers", xlim=(0, deepest * 1.05), title=title, xticks=sorted({r.depth for r in mine}))
        if title.startswith("instructions"):
            axes.set_ylim(bottom=0)
        else:
            logarithmic(axes)
    layer = next((r.layer_bytes for r in mine), None)
    if layer:
        panels[1].axhline(layer / 1e6, color=GREY, linestyle=":")
        words, below = (
            f"weights of one layer: {layer / 1e6:.1f} MB",
            dict(xytext=(0, -9), textcoords="offset points", va="top"),
        )
        panels[1].annotate(words, (deepest, layer / 1e6), ha="right", fontsize=9, color=GREY, **below)
    limits = table.medians([r for r in mine if r.bandwidth_gbps], lambda r: r.bandwidth_gbps * 1e9 / r.bytes_per_token)
    panels[2].plot(list(limits), list(limits.values()), color=LIMIT_COLOUR, linestyle=(0, (5, 3)), linewidth=1.3)
    if limits:
        panels[2].annotate(
            "memory-bandwidth limit",
            (min(limits), limits[min(limits)]),
            (8, 4),
            textcoords="offset points",
            color=LIMIT_COLOUR,
            fontsize=9,
        )
    for layout in LAYOUTS:
        panels[0].plot([], [], label=TITLES[layout], **LINES[layout])
    n = min(
        (sum((r.placement, r.depth) == key for r in mine) for key in {(r.placement, r.depth) for r in mine}), default=0
    )
    figure.legend(
        loc="outside upper center",
        ncols=2,
        fontsize=9.5,
        title=f"one decode program, batch 1 (point: one of {n} processes)",
    )
    return figure


@styled
def compile_starts(trials: Sequence[Start], placement: str = "step") -> Figure:
    """From process start to first token, by its parts: mean of the processes as a bar, each process as a point."""
    figure, axes = new(11, 4.2)
    found = {way: list(table.of_start(trials, placement, way).values()) for way in WAYS}
    heights = rows(axes, [f"{way} (n = {len(found[way])})" for way in WAYS])
    furthest = max((s.to_first_ns / 1e9 for each in found.values() for s in each), default=1.0)
    for way, height in zip(WAYS, heights.values(), strict=True):
        each, at = [table.parts(s) for s in found[way]], 0.0
        for part in table.PARTS if each else ():
            seconds = float(np.mean([p[part] for p in each]))
            axes.barh(
                height,
                seconds,
                left=at,
                height=0.5,
                color=PART_SHADES[part],
                hatch=PART_HATCHES[part],
                edgecolor="white",
            )
            if seconds > 0.035 * furthest:
                axes.text(
                    at + seconds / 2,
                    height,
                    f"{seconds:.2f}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    bbox=dict(facecolor="white", edgecolor="none", pad=1, alpha=0.75),
                )
            at += seconds
        totals = [s.to_first_ns / 1e9 for s in found[way]]
        axes.plot(totals, [height + 0.34] * len(totals), "o", color="black", markersize=4, alpha=0.7)
        if each:
            axes.text(at, height, f"  {at:.2f} s", va="center", fontsize=10, fontweight="bold")
    keys = [
        Patch(facecolor=PART_SHADES[part], hatch=PART_HATCHES[part], edgecolor="white", label=part)
        for part in table.PARTS
    ]
    axes.set_xlim(0, furthest * 1.1)
    axes.set_xlabel("seconds from process start to first token on the host (bar: mean; point: one fresh process)")
    figure.legend(handles=keys, loc="outside upper center", ncols=4, fontsize=9)
    axes.set_title(f"What a fresh process does before its first token ({placement})")
    return figure


def tokens_words(found: BreakEven) -> str:
    """`41 tokens [30, 55]`, `at once`, `never`."""
    if np.isnan(found.tokens):
        return "not measured"
    words = "at once" if found.tokens == 0 else "never" if found.tokens == NEVER else f"{found.tokens:.0f} tokens"
    if np.isnan(found.low) or found.low == found.high:
        return words
    return words + within(found, lambda tokens: "never" if tokens == NEVER else f"{tokens:.0f}")


@styled
def paid_back(
    trials: Sequence[Start],
    ways: Sequence[tuple[str, str]],
    pairs: Sequence[tuple[tuple[str, str], tuple[str, str]]],
    seed: int = 0,
) -> Figure:
    """Seconds until n tokens are made by each way of starting (left), and where pairs of them cross (right).

    ways: (placement, cold or cached or serialised). pairs: (ours, the other).
    """
    figure, (left, right) = new(12.5, 4.6, columns=2, gridspec_kw={"width_ratios": [1.25, 1]})
    longest, ends, styles = 3000, {}, {"cold": "-", "cached": "--", "serialised": ":"}
    n = np.unique(np.geomspace(1, longest, 300).round())
    for who in ways:
        seconds = table.seconds_for(trials, who, n)
        if np.isfinite(seconds[-1]):
            left.plot(n, seconds, color=colour(who[0]), linestyle=styles[who[1]], linewidth=2)
            ends[who] = float(seconds[-1])
    for (name, way), at in spread_labels(ends, 1.3).items():
        left.text(longest * 1.06, at, f"{name}, {way}", color=colour(name), fontsize=9, va="center")
    left.set(
        xscale="log",
        yscale="log",
        xlabel="tokens made by the process, log scale",
        xlim=(5, longest),
        ylabel="seconds since weights were loaded,\nmean start + mean time a token, log scale",
    )
    plain_ticks(left.xaxis, left.yaxis)
    left.set_title("The race, start included")
    found = {f"{a[0]}, {a[1]}\nagainst {b[0]}, {b[1]}": (a, table.break_even(trials, a, b, seed)) for a, b in pairs}
    heights = rows(right, list(found))
    for label, (who, even) in found.items():
        height, shade = heights[label], colour(who[0])
        low, high, point = (np.clip(x, 1, longest) for x in (even.low, even.high, even.tokens))
        if np.isfinite(low) and np.isfinite(high):
            right.plot([low, high], [height] * 2, color=shade, linewidth=5, alpha=0.4, solid_capstyle="butt")
        if np.isfinite(point):
            marker = "<" if even.tokens < 1 else ">" if even.tokens > longest else "o"
            right.plot(point, height, marker, color=shade, markersize=8)
        right.text(
            1.02,
            height,
            f"{tokens_words(even)}\nn = {even.n} starts each",
            va="center",
            fontsize=9,
            transform=right.get_yaxis_transform(),
        )
    right.set(
        xscale="log",
        xlim=(0.9, longest * 1.1),
        xlabel="tokens until the first is ahead, log scale\n(band: interval; < at once, > never)",
    )
    plain_ticks(right.xaxis)
    right.tick_params(axis="y", labelsize=9)
    right.set_title("Break-even")
    return figure


@styled
def compile_surprises(data: Sequence[Compilation], trials: Sequence[Start], seed: int = 0) -> Figure:
    """What a scan over layers copies (left), what that costs (middle), and where bfloat16 weights are converted
    (right)."""
    figure, (left, middle, right) = new(15, 4.6, columns=3, gridspec_kw={"width_ratios": [1.15, 1, 1.15]})
    sizes = [r for r in table.of(data, "slots") if r.temp_bytes is not None]
    lengths = sorted((r for r in sizes if r.placement == "step"), key=lambda r: r.cache_slots)
    for name, style in LINES.items():
        mine = sorted((r for r in sizes if r.placement == name), key=lambda r: r.cache_slots)
        left.plot([r.cache_slots for r in mine], [r.temp_bytes / 1e6 for r in mine], label=name, linewidth=1.8, **style)
    left.plot(
        [r.cache_slots for r in lengths],
        [r.kv_bytes / 1e6 for r in lengths],
        ":",
        color=GREY,
        label="the whole KV cache",
    )
    if lengths:
        left.axhline(
            lengths[0].layer_bytes / 1e6, color=GREY, linestyle="-.", linewidth=1, label="weights of one layer"
        )
    left.set(yscale="log", xlabel="slots of the KV cache", ylabel="temporaries of a step, MB, log scale")
    left.set_xscale("log", base=2)
    left.set_xticks([r.cache_slots for r in lengths], [f"{r.cache_slots}" for r in lengths])
    plain_ticks(left.yaxis)
    left.legend(fontsize=8.5, loc="upper center", bbox_to_anchor=(0.45, -0.18), ncols=2)
    left.set_title("What a scan copies")
    figure.get_layout_engine().set(wspace=0.06)
    rates(middle, trials, list(LINES), seed)
    middle.set_title("and what that costs")
    rates(right, trials, ["step", "chunk8", "loop", "step+bf16", "chunk8+bf16", "loop+bf16"], seed, temporaries=True)
    right.set_title("Where bfloat16 is converted")
    return figure


def rates(axes, trials: Sequence[Start], names: Sequence[str], seed: int, temporaries: bool = False) -> None:
    """Warm decode rates, one row a placement: points, median with its 95 % interval, ratio to `step`; temporaries where
    asked for."""
    heights = rows(axes, names)
    for name, height in heights.items():
        good = summary.warm(trials, name)
        if not good:
            reasons = sorted({t.reason for t in trials if t.placement == name and t.phase == "warm" and t.reason})
            axes.text(
                0, height, "  no valid trial" + (f": {reasons[0][:40]}" if reasons else ""), va="center", fontsize=8.5
            )
            continue
        found = statistics.summarise([t.tg for t in good], seed, [t.process for t in good])
        scatter_row(axes, [t.tg for t in good], height, name, seed)
        axes.plot([found.low, found.high], [height] * 2, color="black", linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot(found.median, height, "|", color="black", markersize=16, markeredgewidth=2)
        words = f"{found.median:.0f} tok/s, n = {found.n}"
        if name != "step":
            ratio = summary.paired_ratio(trials, name, "step", seed)
            words += f"\n{ratio.words} of step"
        if temporaries and good[0].temp_bytes is not None:
            words += f"\ntemporaries {good[0].temp_bytes / 1e6:.3g} MB"
        axes.text(1.01, height, words, va="center", fontsize=8, transform=axes.get_yaxis_transform())
    if any(t.bandwidth_gbps for t in summary.warm(trials, names[0])):
        limit = summary.limit(trials, names[0])
        axes.axvline(limit, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
        axes.text(limit, -0.66, f"float32 bandwidth limit {limit:.0f} ", color=LIMIT_COLOUR, ha="right", fontsize=8.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("decode rate, tokens/s\n(point: one answer; bar: median; band: its 95 % interval)")
