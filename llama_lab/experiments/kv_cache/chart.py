"""Charts of the KV cache: what it saves in time, arithmetic and bytes, and what keeping it in fewer bytes does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from llama_lab.bench import statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed, round_ratio, span, within
from llama_lab.experiments.kv_cache.measure import COMBINATIONS, TYPES, after
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End
from llama_lab.figures.marks import interval_words
from llama_lab.figures.style import GREY, LIMIT_COLOUR, OTHERS, colour, headline, new, styled

MARKERS = {"step": "o", "eager": "s", "step+nocache": "^", "eager+nocache": "D"}
TYPE_SHADES = dict(zip(("f32", "bf16", "f16", "int8"), OTHERS, strict=False))


def mark(name: str) -> dict:
    """How a combination is drawn: in its placement's colour, hollow and dashed without a cache."""
    hollow = dict(markerfacecolor="white") if "nocache" in name else {}
    return dict(color=colour(name), marker=MARKERS[name], linestyle="--" if hollow else "-", **hollow)


def limits(trials: Sequence[Trial], model: str, gigabytes_per_second: float) -> dict[int, list[float]]:
    """Context → ms that one bandwidth, whichever run it was probed in, needs for the bytes of a token with a cache."""
    mine = [t for t in trials if t.run == after(model, t.prompt_tokens) and t.subject == "step" and t.bytes_per_token]
    return summary.grouped(mine, "prompt_tokens", lambda t: t.bytes_per_token / gigabytes_per_second / 1e6)


@styled
def latency_by_context(panels_of: dict[str, dict]) -> Figure:
    """Milliseconds per token against context, with and without cache, jitted and not; one panel per model.

    panels_of: title → `measure.latencies`, with `limits`. The line goes through the medians; every answer is a point.
    """
    figure, panels = new(9.5, 4.9, columns=len(panels_of), sharey=True, squeeze=False)
    for axes, (title, series) in zip(panels[0], panels_of.items(), strict=True):
        for name, label in COMBINATIONS.items():
            points = sorted(series[name].items())
            if not points:
                continue
            axes.plot([c for c, _ in points], [np.median(v) for _, v in points], linewidth=2, label=label, **mark(name))
            if name.startswith("step"):  # its last median, which the title or the finding names
                last, high = points[-1][0], np.median(points[-1][1])
                at = dict(textcoords="offset points", va="center", fontsize=9, color=colour(name))
                axes.annotate(f"{high:,.3g} ms" if high < 100 else f"{high:,.0f} ms", (last, high), (7, 0), **at)
            every = [(c, x) for c, v in points for x in v]
            axes.plot(*zip(*every, strict=True), markersize=4, alpha=0.7, **mark(name) | dict(linestyle=""))
        allowed = {context: np.median(ms) for context, ms in sorted(series["limit"].items())}
        dotted = dict(color=LIMIT_COLOUR, linestyle=":", linewidth=1.8)
        axes.plot([*allowed], [*allowed.values()], label="memory-bandwidth limit with a cache", **dotted)
        axes.set(xscale="log", yscale="log", xlabel="tokens already in the text (log)")
        axes.set_xticks(list(allowed), [str(c) for c in allowed], fontsize=9)
        axes.minorticks_off()
        axes.set_xlim(right=2.2 * max(allowed, default=1))  # room for the last medians
        notes.plain(axes.yaxis)
        counts = {label: [*map(len, series[name].values())] for name, label in COMBINATIONS.items() if series[name]}
        least = min(map(min, counts.values()), default=0)
        more = "".join(f"; {label}: {span(n, 'd')}" for label, n in counts.items() if max(n) > least)
        axes.set_title(f"{title}\n(line: median of n = {least} answers{more})", fontsize=10)
    panels[0][0].set_ylabel("ms per token after the first (log scale)")
    handles = panels[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=10)
    last = list(panels_of.values())[-1]  # the headline speaks of the last panel's model
    if shared := last["step"].keys() & last["step+nocache"].keys():
        most = max(shared)
        cached, without = (float(np.median(last[name][most])) for name in ("step", "step+nocache"))
        words = f"takes {cached:.3g} ms with a KV cache and {without:,.0f} ms without"
        headline(figure, f"After {most:,} tokens a jitted step of {list(panels_of)[-1]} {words}")
    else:
        headline(figure, "No context was measured with and without a cache")
    return figure


@styled
def published_case(case: dict) -> Figure:
    """The published 15-token case beside ours, all four combinations warm. case: `measure.published_case`."""
    published, slow, fast = (
        case["published"],
        *(f"published (another machine):\n{what}" for what in ("no cache, cold", "cache + jit, warm")),
    )
    figure, axes = new(9.5, 4.2)
    heights = rows.heights(axes, [slow, fast, *COMBINATIONS.values()])
    for label, rate in ((slow, published["slow"]), (fast, published["fast"])):
        axes.plot(rate, heights[label], "X", color=GREY, markersize=10)
        axes.text(rate * 1.12, heights[label], f"{rate:g}", va="center", fontsize=9.5, color=GREY)
    for name, label in COMBINATIONS.items():
        rates, height = case["rates"][name], heights[label]
        look = dict(edgecolors=colour(name), facecolors="none" if "nocache" in name else colour(name))
        axes.scatter(rates, [height] * len(rates), marker=MARKERS[name], s=30, alpha=0.6, **look)
        if rates:
            middle, place = np.median(rates), dict(textcoords="offset points", ha="center", fontsize=9)
            rows.median(axes, middle, height, 20)
            axes.annotate(f"{middle:.1f}", (middle, height), (0, 12), **place)
    rows.beside(axes, heights[slow] + 0.62, "cache, jit over this row", 9.5, fontweight="bold")
    rows.beside(axes, heights[slow], f"{published['ratio']:.2f}x, of the published pair", 9.5)
    for name, ratio in {"eager": "jit_alone", "step+nocache": "cache_alone", "eager+nocache": "both"}.items():
        rows.beside(axes, heights[COMBINATIONS[name]], interval_words(case[ratio]), 9.5)
    if case["limit"]:
        notes.bandwidth_limit(axes, case["limit"])
    axes.set_xscale("log")
    notes.one_two_five(axes.xaxis)
    what = "tokens/s over an answer of 15 tokens after a prompt of 4"
    axes.set_xlabel(f"{what}\n(log scale; point: one answer; bar: median)")
    words = f"Both warm, cache and jit together are {round_ratio(case['both'].value)} times as fast as neither"
    headline(figure, f"{words}; the published {published['ratio']:.2f} is warm over cold")
    return figure


@styled
def work_and_bytes(work: Sequence[dict], sizes: dict[str, Sequence[dict]]) -> Figure:
    """Attention arithmetic of writing a text (left), and bytes of the cache by type (right): predicted lines, counted
    points.

    work: `measure.attention_work`. sizes: model → `measure.cache_bytes`; the first in three types, the others in one.
    """
    figure, (left, right) = new(9.5, 4.9, columns=2)
    lengths = [w["length"] for w in work]
    grows = {key: power_of(work, key) for key in ("uncached", "cached")}
    for key, label, shade, marker in (("uncached", "no cache", GREY, "^"), ("cached", "cache", colour("step"), "o")):
        predicted, counted = ([w[name] for w in work] for name in (key, f"{key}_counted"))
        left.plot(lengths, predicted, color=shade, linewidth=1.6, label=f"{label}, predicted")
        left.plot(lengths, counted, marker, color=shade, markersize=6, label=f"{label}, XLA's count")
        left.text(lengths[-1] * 1.15, predicted[-1], f"~ {grows[key]}", va="center", fontsize=10)
    left.set(xscale="log", yscale="log", xlabel="tokens written, n (log scale)")
    left.set_ylabel("operations of attention in all (log scale)")
    left.set_xlim(right=lengths[-1] * 2.2)
    left.legend(fontsize=9)
    left.minorticks_off()
    words = f"A cache turns attention's work from {grows['uncached']} into {grows['cached']} operations"
    headline(figure, words + in_eight_bits(sizes))
    ends = []
    for i, ((model, entries), line, marker) in enumerate(zip(sizes.items(), ("-", "--"), ("o", "s"), strict=False)):
        for kind in ("bf16",) if i else ("f32", "bf16", "int8"):  # one a width: f16 has bf16's
            these, shade = [e for e in entries if e["kv"] == kind], TYPE_SHADES[kind]
            slots, predicted, measured = (np.array([e[k] for e in these]) for k in ("slots", "predicted", "measured"))
            right.plot(slots, predicted / 1e6, line, color=shade, linewidth=1.6)
            hollow = dict(markersize=5, markerfacecolor="white", label=f"{model}, {kind}")
            right.plot(slots, measured / 1e6, marker, color=shade, **hollow)
            ends.append(End(f"{predicted[-1] / 1e6:.1f}", slots[-1], predicted[-1] / 1e6, shade))
    right.set(xscale="log", yscale="log", xlabel="slots of the cache (log scale)")
    if sizes:
        right.set_xticks(slots, map(str, slots))
        right.set_xlim(right=1.9 * slots[-1])
        right.minorticks_off()
    right.set_ylabel("MB of keys and values (log scale)")
    notes.plain(right.yaxis)
    labels.at_ends(right, ends, 1.25)
    low, high = right.get_ylim()
    right.set_ylim(low, 8 * high)  # room for the legend
    right.legend(fontsize=8.5, title="line: predicted; mark: arrays made", title_fontsize=8.5, alignment="left")
    return figure


def in_eight_bits(sizes: dict[str, Sequence[dict]]) -> str:
    """What the first model's longest cache takes in int8, of its bytes in float32; "" where both are not known."""
    first = next(iter(sizes.values()), [])
    made = {e["kv"]: e["measured"] for e in sorted(first, key=lambda e: e["slots"])}
    both = {"int8", "f32"} <= made.keys()
    return f"; in int8 it takes {made['int8'] / made['f32']:.0%} of float32's bytes" if both else ""


def power_of(work: Sequence[dict], key: str) -> str:
    """With which power of the length a count grows in the end: `n²`, `n²·⁹`."""
    (shorter, before), (longer, after) = ((w["length"], w[key]) for w in work[-2:])
    power = np.log(after / before) / np.log(longer / shorter)
    return "n" + f"{power:.1f}".removesuffix(".0").translate(str.maketrans("0123456789.", "⁰¹²³⁴⁵⁶⁷⁸⁹·"))


def decimal(value: float) -> str:
    """A small number in one digit, without an exponent: `0.00004`."""
    return np.format_float_positional(value, precision=1, fractional=False, trim="-")


def three_digits(ratio: Ratio) -> str:
    """A ratio close to 1, and its verdict below it."""
    return f"{ratio.value:.3f}x{within(ratio, '.3f')}\n{ratio.verdict}, n = {ratio.n}"


@styled
def types(trials: Sequence[Trial], quality: Sequence[dict], seed: int = 0) -> Figure:
    """The cache in each type: megabytes and decode rate (left), the next token's distance from float32's (right)."""
    timed = {name: label for name, label in TYPES.items() if any(t.subject == name for t in trials)}
    figure, (left, right) = new(10, 3.2, columns=2, gridspec_kw={"width_ratios": [1.3, 1]})
    baseline = next(iter(TYPES))
    kept = {t.subject: f"\n{t.kv_bytes / 1e6:.3g} MB" for name in timed for t in summary.warm(trials, name)[:1]}
    names = {name: label + kept.get(name, "") for name, label in timed.items()}
    heights = rows.heights(left, list(names.values()))
    ratios = {name: summary.paired_ratio(trials, name, baseline, seed) for name in timed if name != baseline}
    for name, label in names.items():
        good = summary.warm(trials, name)
        if good:
            rates = [t.tg for t in good]
            rate = statistics.summarise(rates, seed, [t.process for t in good])
            words = "baseline" if name == baseline else three_digits(ratios[name])
            rows.subject(left, name, rates, rate, heights[label], words, seed)
    left.set_xlim(left=0)
    left.set_xlabel("decode rate, tokens/s (point: one answer;\nbar: median; band: 95% interval)")
    for e, height in zip(quality, rows.heights(right, [e["kv"] for e in quality]).values(), strict=True):
        right.barh(height, e["kl"], height=0.5, color="#BBBBBB")
        words = "reference" if e["kv"] == "f32" else f"{decimal(e['kl'])}, best token\n same {e['top1']:.1%}"
        right.text(e["kl"], height, " " + words, va="center", fontsize=9)
    right.set_yticks([])
    right.set_xlim(right=3.2 * max((e["kl"] for e in quality), default=1) or 1)
    tokens = quality[0]["tokens"] if quality else 0
    right.set_xlabel(f"distance of next tokens' probabilities from\nfloat32's: KL divergence, nats ({tokens} tokens)")
    right.xaxis.set_major_locator(MaxNLocator(3))
    right.xaxis.set_major_formatter(lambda x, _: decimal(x))
    faster = [timed[name] for name, ratio in ratios.items() if ratio.n and ratio.verdict == Verdict.FASTER]
    none = "None of the smaller caches is shown to decode"
    words = f"{listed(faster)} decode{'s' * (len(faster) == 1)}" if faster else none
    least = min((e["top1"] for e in quality if e["kv"] != "f32"), default=0)
    same = f"; every smaller cache keeps the best token the same for {math.floor(1e3 * least) / 10}% of tokens or more"
    headline(figure, f"{words} faster than float32{same * bool(least)}")
    return figure
