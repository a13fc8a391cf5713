"""Charts of what compiling costs: stages and programs against depth, starts, two surprises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from llama_lab.bench import summary
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import DIFFERENT, Ratio
from llama_lab.bench.wording import listed
from llama_lab.experiments.compile_time import finding, table
from llama_lab.experiments.compile_time.measure import LAYOUTS, STAGES, Compilation
from llama_lab.experiments.compile_time.starts import BASELINE, WAYS
from llama_lab.figures import bars, labels, notes, rows, style
from llama_lab.figures.bars import Part
from llama_lab.figures.labels import End
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, footnote, headline, new, styled

SHADES = dict(zip((*STAGES, "first_run"), style.STAGES.values(), strict=True))
MARKS = {"trace": "s", "lower": "^", "compile": "o", "first_run": "D"}
LINES = {
    name: dict(color=colour(name), marker=marker, linestyle="--" if "scan" in name else "-")
    for name, marker in {"step": "o", "step+scan": "s", "step+donate": "^", "step+scan+donate": "D"}.items()
}
A_LAYER = "ms per layer"
MB_HELD, RATE = "temporaries, MB (log scale)", "decode rate, tokens/s (log scale)"  # against depth
NARROWED = ("step", "chunk8", "loop")  # measured with bfloat16 weights too
TITLES = dict(zip(LAYOUTS, ("layers unrolled", "layers scanned"), strict=True))
LOAD = table.PARTS[1]
PARTS = {
    name: Part(shade, hatch)
    for name, shade, hatch in zip(
        table.PARTS,
        ("#BBBBBB", "#888888", *list(SHADES.values())[:3], style.OTHERS[4], style.OTHERS[5]),
        ("", "..", "", "//", "", "xx", "\\\\"),
        strict=True,
    )
}


def against_depth(axes, data: Sequence[Compilation], value: Callable, **style) -> dict[int, float]:
    """Each process as a point, the medians joined by a line. Returns the medians, deepest last."""
    points = [(r.depth, known) for r in data if (known := value(r)) is not None]
    groups = summary.grouped(points, lambda point: point[0], lambda point: point[1])
    middle = {depth: float(np.median(groups[depth])) for depth in sorted(groups)}
    line = dict(linewidth=1.8, markersize=0, linestyle=style.pop("linestyle", "-"), color=style["color"])
    axes.plot(list(middle), list(middle.values()), **line)
    axes.plot(*zip(*points, strict=True), linestyle="", markersize=5, alpha=0.75, **style)
    return middle


@styled
def compile_stages(data: Sequence[Compilation]) -> Figure:
    """Seconds of each stage against depth, unrolled (left) and scanned (right), on one scale."""
    figure, both = new(10.5, 4.6, columns=2, sharey=True)
    mine = table.of_run(data, "depth")
    deepest = max((r.depth for r in mine), default=1)
    slopes = {layout: table.per_layer(data, layout) for layout in LAYOUTS}
    for axes, layout in zip(both, LAYOUTS, strict=True):
        kept, ends = [r for r in mine if r.placement == layout], {}
        for stage, shade in SHADES.items():
            field, look = f"{stage}_ns", dict(color=shade, marker=MARKS[stage])
            if middle := against_depth(axes, kept, lambda r, field=field: getattr(r, field) / 1e9, **look):
                words = f"{stage.replace('_', ' ')}: {table.per_layer(data, layout, field).words(1)}"
                ends[middle[max(middle)], words] = shade
        room, at = 0.055 * max((r.seconds for r in mine), default=1), -np.inf  # between two labels, in seconds
        for (seconds, words), shade in sorted(ends.items()):
            at = max(seconds, at + room)
            lead = dict(arrowstyle="-", color=shade, linewidth=0.6, relpos=(0, 0.5))
            style = dict(fontsize=9, va="center", color=shade, annotation_clip=False)
            axes.annotate(words, (deepest, seconds), (deepest * 1.08, at), arrowprops=lead, **style)
        processes = len({(r.block, r.depth) for r in kept})
        words = f"layers (point: one fresh process, {processes} in all;\nms: per layer, with 95% interval)"
        axes.set(xlabel=words, xlim=(0, deepest * 1.02))
        depths = sorted({r.depth for r in kept})
        followed = pairwise([*depths, deepest])  # the shallowest lie too close
        axes.set_xticks(depths, [str(d) if d == deepest or after - d > deepest / 20 else "" for d, after in followed])
        axes.set_title(f"{TITLES[layout]}: {slopes[layout].words(unit=A_LAYER)}", fontsize=10)
        axes.set_ylim(bottom=0)
    both[0].set_ylabel("seconds")
    unrolled, scanned = (f"{1e3 * slope.slope:.0f} ms" for slope in slopes.values())
    headline(figure, f"Each extra layer adds {unrolled} to trace, lower and compile; scanned, {scanned}")
    figure.get_layout_engine().set(wspace=0.28)
    return figure


@styled
def compile_sizes(data: Sequence[Compilation]) -> Figure:
    """Instructions, temporaries and warm rate of the decode program against depth. data: rows of the run `depth`."""
    figure, panels = new(10.5, 4.7, columns=3)
    mine = table.of_run(data, "depth")
    deepest = max((r.depth for r in mine), default=1)
    values = {
        "instructions of the program": lambda r: r.instructions,
        MB_HELD: lambda r: None if r.temp_bytes is None else r.temp_bytes / 1e6,
        RATE: lambda r: r.rate,
    }
    for axes, (title, value) in zip(panels, values.items(), strict=True):
        for layout in LAYOUTS:
            kept = [r for r in mine if r.placement == layout]
            middle = against_depth(axes, kept, value, **LINES[layout])
            if deepest in middle and title != MB_HELD:
                below = title == RATE and layout == LAYOUTS[1]  # clear of both falling lines
                over = dict(textcoords="offset points", ha="center", va="top" if below else "bottom", fontsize=9)
                axes.annotate(f"{middle[deepest]:,.0f}", (deepest, middle[deepest]), (0, -6 if below else 6), **over)
        axes.set(xlabel="layers", xlim=(0, deepest * 1.05), title=title, xticks=sorted({r.depth for r in mine}))
        if title.startswith("instructions"):
            axes.set_ylim(bottom=0)
        else:
            notes.log_scale(axes)
            axes.margins(y=0.1)
    layer = next((r.layer_bytes for r in mine), None)
    if layer:
        panels[1].axhline(layer / 1e6, color=GREY, linestyle=":")
        below = dict(textcoords="offset points", va="top", ha="right", fontsize=9, color=GREY)
        panels[1].annotate(f"weights of one layer: {layer / 1e6:.1f} MB", (deepest, layer / 1e6), (0, -9), **below)
    probed = [r.bandwidth_gbps for r in mine if r.bandwidth_gbps]  # one limit, from the fastest of all
    limits = {r.depth: max(probed) * 1e9 / r.bytes_per_token for r in mine} if probed else {}
    panels[2].plot(sorted(limits), [limits[d] for d in sorted(limits)], color=LIMIT_COLOUR, linestyle=(0, (5, 3)))
    if limits:
        note = dict(textcoords="offset points", color=LIMIT_COLOUR, fontsize=9)
        panels[2].annotate("memory-bandwidth\nlimit", (min(limits), limits[min(limits)]), (26, -8), **note)
    for layout in LAYOUTS:
        panels[0].plot([], [], label=TITLES[layout], **LINES[layout])
    n = min(Counter((r.placement, r.depth) for r in mine).values(), default=0)
    counted = f"point: one of {n} processes per depth" if n > 1 else "n = 1 process per depth, so no interval"
    figure.legend(loc="outside lower center", ncols=2, fontsize=10, title=f"one decode program, batch 1 ({counted})")
    headline(figure, what_scanning_does(mine, deepest))
    return figure


def what_scanning_does(data: Sequence[Compilation], deepest: int) -> str:
    """Instructions and rate of the deepest program, scanned beside unrolled."""
    unrolled, scanned = ([r for r in data if (r.placement, r.depth) == (layout, deepest)] for layout in LAYOUTS)
    if not unrolled or not scanned:
        return "The decode program was not compiled both ways"
    few, many = (np.median([r.instructions for r in side]) for side in (scanned, unrolled))
    rates = [np.median([r.rate for r in side if r.rate] or [np.nan]) for side in (scanned, unrolled)]
    verb = "cuts" if few < many else "takes"
    said = f"At {deepest} layers scanning {verb} the program from {many:,.0f} to {few:,.0f} instructions"
    if not np.isfinite(rates).all():
        return said
    mine, other = (f"{rate:.0f}" for rate in rates)
    if mine == other:
        return f"{said}, and it decodes {mine} tokens/s either way"
    return f"{said}, {'but' if rates[0] < rates[1] else 'and'} it decodes {mine} tokens/s instead of {other}"


@styled
def compile_starts(trials: Sequence[Start], seed: int = 0) -> Figure:
    """From process start to first token of `step`, by parts: the processes' mean as a bar, each process as a point, all
    as if the weights had been loaded in the mean time of cold starts."""
    figure, axes = new(10, 4.4)
    starts = {way: list(table.of_start(trials, BASELINE, way).values()) for way in WAYS}
    heights = rows.heights(axes, [f"{way} (n = {len(starts[way])})" for way in WAYS])
    alike, usual = finding.loaded_alike(trials, BASELINE), finding.usual_load(trials, BASELINE)
    totals = {way: [*map(alike, mine)] for way, mine in starts.items()}
    cold = (BASELINE, "cold")
    ratios = {way: table.start_ratio(trials, (BASELINE, way), cold, alike, seed) for way in WAYS if way != "cold"}
    shares = {way: ratio for way, ratio in ratios.items() if ratio.n}
    furthest = max((seconds for each in totals.values() for seconds in each), default=1.0)
    ground = dict(facecolor="white", edgecolor="none", pad=1, alpha=0.75)
    loaded = {}
    for way, height in zip(WAYS, heights.values(), strict=True):
        each, end = [table.parts(s) for s in starts[way]], 0.0
        means = {part: float(np.mean([p[part] for p in each])) for part in table.PARTS if each}
        if each:
            loaded[way], means[LOAD] = means[LOAD], usual
        bars.stack(axes, height, [(mean, PARTS[part]) for part, mean in means.items()], 0.5)
        for mean in means.values():
            if mean > 0.035 * furthest:
                axes.text(end + mean / 2, height, f"{mean:.2f}", ha="center", va="center", fontsize=9, bbox=ground)
            end += mean
        axes.plot(totals[way], [height + 0.34] * len(each), "o", color="black", markersize=4, alpha=0.7)
        if each:
            left = f"   {finding.share(shares[way])} of cold" if way in shares else ""
            axes.text(end, height, f"  {end:.2f} s", va="bottom" if left else "center", fontsize=10, fontweight="bold")
            axes.text(end, height, left, va="top", fontsize=9)
    keys = [Patch(facecolor=part.color, hatch=part.hatch, edgecolor="white", label=k) for k, part in PARTS.items()]
    axes.set_xlim(0, furthest * 1.1)
    really = ", ".join(f"{seconds:.2f} s {way}" for way, seconds in loaded.items())
    words = "seconds from process start to first token on the host (bar: mean; point: one fresh process)"
    axes.set_xlabel(
        words + f"\nloading is drawn at the cold starts' mean in bars and points; measured: {really}" * bool(loaded)
    )
    figure.legend(handles=keys, loc="outside lower center", ncols=4, fontsize=9)
    took = ", ".join(f"{float(np.mean(seconds)):.1f} s {way}" for way, seconds in totals.items() if seconds)
    said = f"From process start to first token under {BASELINE}: {took or 'not measured'}"
    if shares and all(ratio.verdict in DIFFERENT for ratio in shares.values()):
        kept = listed([f"{ratio.value:.0%}" for ratio in shares.values()])
        ways = listed([*shares]).capitalize()
        said = f"{ways} starts take {kept} of a cold start's time to first token, loading of weights set equal"
    headline(figure, said)
    return figure


@styled
def compile_surprises(data: Sequence[Compilation]) -> Figure:
    """What a scan over layers copies: temporaries of a step against the slots of its KV cache. data: rows of the run
    `slots`."""
    figure, axes = new(9.5, 4.6)
    sizes = sorted(
        (r for r in table.of_run(data, "slots") if r.temp_bytes is not None), key=lambda r: (r.placement, r.cache_slots)
    )
    unrolled, ends, held = [r for r in sizes if r.placement == "step"], [], {}
    for name in ("step", "step+scan", "step+scan+donate"):
        if mine := [(r.cache_slots, r.temp_bytes / 1e6) for r in sizes if r.placement == name]:
            axes.plot(*zip(*mine, strict=True), linewidth=1.8, **LINES[name])
            held[name] = mine[-1][1]
            ends.append(End(f"{name}: {held[name]:.3g} MB", *mine[-1], colour(name)))
    for words, value in {"the whole KV cache": "kv_bytes", "weights of one layer": "layer_bytes"}.items():
        if line := [(r.cache_slots, getattr(r, value) / 1e6) for r in unrolled]:
            axes.plot(*zip(*line, strict=True), ":", color=GREY)
            ends.append(End(f"{words}: {line[-1][1]:.3g} MB", *line[-1], GREY))
    axes.set(yscale="log", xlabel="slots of the KV cache, log scale", ylabel="temporaries of one step, MB, log scale")
    axes.set_xscale("log", base=2)
    slots = [r.cache_slots for r in unrolled]
    axes.set_xticks(slots, map(str, slots))
    notes.plain(axes.yaxis)
    labels.at_ends(axes, ends, 1.5)
    words = "No step was compiled for several cache lengths"
    if {"step", "step+scan"} <= set(held):
        words = f"At {max(slots):,} slots a scanned step holds {held['step+scan']:.3g} MB of temporaries"
        if donated := held.get("step+scan+donate"):
            words += f", {donated:.3g} MB with a donated cache"
        words += f"; unrolled, {held['step']:.3g} MB"
    headline(figure, words)
    return figure


@styled
def bfloat16(trials: Sequence[Start], seed: int = 0) -> Figure:
    """What bfloat16 weights do to the warm rate of each placement, pair by pair, and the temporaries of all."""
    figure, axes = new(9.5, 3)
    gains = {name: summary.paired_ratio(trials, f"{name}+bf16", name, seed) for name in NARROWED}
    narrowed(axes, trials, gains, seed)
    names = [name + dtype for name in NARROWED for dtype in ("", "+bf16")]
    held = sorted(t.temp_bytes / 1e6 for name in names for t in summary.warm(trials, name)[:1] if t.temp_bytes)
    footnote(figure, f"Temporaries of these programs: {held[0]:.2f} to {held[-1]:.2f} MB." if held else "")
    headline(figure, halved(gains))
    return figure


def halved(gains: dict[str, Ratio]) -> str:
    """What bfloat16 weights do to the decode rate. gains: placement → the rate over float32's."""
    known = {name: ratio for name, ratio in gains.items() if ratio.n and ratio.verdict in DIFFERENT}
    if not known:
        return f"Whether bfloat16 weights decode faster under {' or '.join(gains)} is not decided"
    times = ", ".join(f"{ratio.value:.2f} times as fast under {name}{ratio.aside}" for name, ratio in known.items())
    undecided = listed([name for name in gains if name not in known])
    return f"bfloat16 weights decode {times}" + (f"; under {undecided} that is not decided" if undecided else "")


def narrowed(axes, trials: Sequence[Start], gains: dict[str, Ratio], seed: int) -> None:
    """The rate with bfloat16 weights over that with float32 ones, a row per placement: a point per pair, the mean and
    its interval, and both medians in words. gains: as of `halved`."""
    for name, height in rows.heights(axes, [*gains]).items():
        ratio, both = gains[name], (summary.both_rates(trials, f"{name}+bf16"), summary.both_rates(trials, name))
        if not ratio.n:
            both_ways = [t for t in trials if t.phase == "warm" and t.placement in (name, f"{name}+bf16")]
            reasons = sorted({t.reason for t in both_ways if t.reason})
            rows.beside(axes, height, "no valid pairs" + (f": {reasons[0][:40]}" if reasons else ""))
            continue
        pairs = [both[0][at] / both[1][at] for at in sorted(both[0].keys() & both[1].keys())]
        rows.points(axes, pairs, height, colour(name), seed)
        rows.interval(axes, ratio, height, mark=16, edge=2, zorder=(2, 2))
        narrow, wide = (np.median([*rates.values()]) for rates in both)
        rows.beside(axes, height, f"{ratio.words}, n = {ratio.n}\n{wide:.0f} → {narrow:.0f} tok/s")
    axes.axvline(1, color=GREY, linewidth=1)
    axes.axvline(2, color=LIMIT_COLOUR, linestyle="--", linewidth=1.2)
    above = dict(ha="center", va="bottom", fontsize=9, transform=axes.get_xaxis_transform())
    for at, words, tint in ((1, "same rate", GREY), (2, "half the bytes", LIMIT_COLOUR)):
        axes.text(at, 1.01, words, color=tint, **above)
    meaning = "(point: a pair; bar: mean; band: its 95% interval)"
    axes.set_xlabel(f"decode rate with bfloat16 weights over that with float32 weights\n{meaning}")
