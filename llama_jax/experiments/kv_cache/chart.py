"""Charts of the KV cache: what it saves in time, arithmetic and bytes, and what keeping it in fewer bytes does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from llama_jax.bench import summary
from llama_jax.bench.record import Trial
from llama_jax.experiments.kv_cache.measure import COMBINATIONS, TYPES
from llama_jax.figures.marks import interval_words
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, new, plain_ticks, rows, styled

SHADES = {
    "step": PALETTE["blue"],
    "eager": PALETTE["sky"],
    "step+nocache": PALETTE["vermilion"],
    "eager+nocache": PALETTE["orange"],
}
MARKERS = {"step": "o", "eager": "s", "step+nocache": "^", "eager+nocache": "D"}
TYPE_SHADES = {"f32": PALETTE["black"], "bf16": PALETTE["blue"], "f16": PALETTE["green"], "int8": PALETTE["vermilion"]}
GREY = "#555555"


@styled
def latency_by_context(found: dict[str, dict]) -> Figure:
    """Milliseconds a token against context, with and without cache, jitted and not; a panel a model.

    found: title → `measure.latencies`. The line goes through the medians; every answer is a point.
    """
    figure, panels = new(11.5, 4.6, columns=len(found), sharey=True, squeeze=False)
    for axes, (title, series) in zip(panels[0], found.items(), strict=True):
        for name, label in COMBINATIONS.items():
            points = sorted(series[name].items())
            if not points:
                continue
            axes.plot(
                [c for c, _ in points],
                [np.median(v) for _, v in points],
                color=SHADES[name],
                linewidth=2,
                linestyle="-" if "jit" in label else "--",
            )
            axes.scatter(
                [c for c, v in points for _ in v],
                [x for _, v in points for x in v],
                color=SHADES[name],
                marker=MARKERS[name],
                s=26,
                alpha=0.7,
                linewidths=0,
                zorder=3,
                label=label,
            )
        limit = sorted(series["limit"].items())
        axes.plot(
            [c for c, _ in limit],
            [np.median(v) for _, v in limit],
            color=LIMIT_COLOUR,
            linestyle=":",
            linewidth=1.8,
            label="memory-bandwidth limit with a cache",
        )
        axes.set(xscale="log", yscale="log", xlabel="tokens before the one that is made (log scale)")
        axes.set_xticks([c for c, _ in limit], [str(c) for c, _ in limit])
        axes.minorticks_off()
        plain_ticks(axes.yaxis)
        n = min((len(v) for name in COMBINATIONS for v in series[name].values()), default=0)
        axes.set_title(f"{title} (n ≥ {n} a point)")
    panels[0][0].set_ylabel("ms a token after the first (log scale)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=9.5)
    return figure


@styled
def published_case(found: dict) -> Figure:
    """The published 15-token case beside ours, all four combinations warm. found: `measure.published_case`."""
    labels = ["published: no cache, cold", "published: cache + jit, warm", *COMBINATIONS.values()]
    figure, axes = new(11.5, 4.2)
    heights, published = rows(axes, labels), found["published"]
    for label, rate in zip(labels, (published["slow"], published["fast"]), strict=False):
        axes.plot(rate, heights[label], "X", color=GREY, markersize=10)
        axes.text(rate * 1.12, heights[label], f"{rate:g}", va="center", fontsize=9.5, color=GREY)
    for name, label in COMBINATIONS.items():
        rates = found["rates"][name]
        axes.scatter(
            rates,
            [heights[label]] * len(rates),
            color=SHADES[name],
            marker=MARKERS[name],
            s=30,
            alpha=0.6,
            linewidths=0,
        )
        if rates:
            axes.plot(np.median(rates), heights[label], "|", color="black", markersize=20, markeredgewidth=2)
            axes.annotate(
                f"{np.median(rates):.1f}",
                (np.median(rates), heights[label]),
                (0, 9),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    words = {"published: cache + jit, warm": f"published {published['ratio']:.2f}x: one side cold",
             COMBINATIONS["eager"]: "cache + jit over this: " + interval_words(found["jit_alone"]),
             COMBINATIONS["step+nocache"]: "cache + jit over this: " + interval_words(found["cache_alone"]),
             COMBINATIONS["eager+nocache"]: "cache + jit over this: " + interval_words(found["both"])}  # fmt: skip
    for label, text in words.items():
        axes.text(1.01, heights[label], text, va="center", fontsize=9.5, transform=axes.get_yaxis_transform())
    if found["limit"]:
        axes.axvline(found["limit"], color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
        axes.text(
            found["limit"],
            1.0,
            f"memory-bandwidth limit {found['limit']:.0f} ",
            color=LIMIT_COLOUR,
            ha="right",
            va="bottom",
            fontsize=9,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain_ticks(axes.xaxis)
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel(
        "tokens/s over a whole answer of 15 tokens after a prompt of 4 (log scale; point: one answer; bar: median)"
    )
    axes.set_title("GPT-2: what a cache and jit gain when both sides are warm", pad=18)
    return figure


@styled
def work_and_bytes(work: Sequence[dict], sizes: dict[str, Sequence[dict]]) -> Figure:
    """Attention arithmetic of writing a text (left), and bytes of the cache by type (right): predicted lines, counted
    points.

    work: `measure.attention_work`. sizes: model → `measure.cache_bytes`.
    """
    figure, (left, right) = new(11.5, 4.6, columns=2)
    lengths = [w["length"] for w in work]
    for key, label, shade, marker in (
        ("uncached", "no cache", PALETTE["vermilion"], "^"),
        ("cached", "cache", PALETTE["blue"], "o"),
    ):
        left.plot(lengths, [w[key] for w in work], color=shade, linewidth=1.6, label=f"{label}, predicted")
        left.plot(
            lengths,
            [w[f"{key}_counted"] for w in work],
            marker,
            color=shade,
            markersize=6,
            label=f"{label}, XLA's count",
        )
    last = work[-1]
    for key, power in (("uncached", "~ n³"), ("cached", "~ n²")):
        left.text(last["length"] * 1.15, last[key], power, va="center", fontsize=10)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="tokens written, n (log scale)",
        ylabel="operations of attention in all (log scale)",
    )
    left.set_xlim(right=last["length"] * 2.2)
    left.legend(fontsize=9)
    left.set_title("Attention's arithmetic adds up")
    for (model, entries), style in zip(sizes.items(), ("-", "--"), strict=False):
        for kind in ("f32", "bf16", "int8"):  # one a width: f16 has bf16's
            these, shade = [e for e in entries if e["kv"] == kind], TYPE_SHADES[kind]
            right.plot(
                [e["slots"] for e in these], [e["predicted"] / 1e6 for e in these], style, color=shade, linewidth=1.6
            )
            right.plot(
                [e["slots"] for e in these],
                [e["measured"] / 1e6 for e in these],
                "o" if style == "-" else "s",
                color=shade,
                markersize=5,
                markerfacecolor="white",
                label=f"{model}, {kind}",
            )
    right.set(
        xscale="log", yscale="log", xlabel="slots of the cache (log scale)", ylabel="MB of keys and values (log scale)"
    )
    plain_ticks(right.xaxis, right.yaxis)
    right.legend(fontsize=8.5, title="line: predicted; mark: arrays made", title_fontsize=8.5, alignment="left")
    right.set_title("Bytes of the cache, one row")
    return figure


@styled
def types(trials: Sequence[Trial], quality: Sequence[dict], seed: int = 0) -> Figure:
    """The cache in each type that was timed: decode rate (left), and distance of the next token's distribution from
    float32's (right)."""
    timed = {name: label for name, label in TYPES.items() if any(t.subject == name for t in trials)}
    figure, (left, right) = new(11.5, 2.9, columns=2, gridspec_kw={"width_ratios": [1.5, 1]})
    heights, baseline = rows(left, list(timed.values())), next(iter(TYPES))
    for name, label in timed.items():
        good, shade = summary.warm(trials, name), TYPE_SHADES[label.replace("bfloat", "bf").replace("float", "f")]
        rates = [t.tg for t in good]
        left.scatter(rates, [heights[label]] * len(rates), color=shade, s=28, alpha=0.6, linewidths=0)
        if not rates:
            continue
        left.plot(np.median(rates), heights[label], "|", color="black", markersize=20, markeredgewidth=2)
        mb = good[0].kv_bytes / 1e6
        words = "baseline" if name == baseline else interval_words(summary.paired_ratio(trials, name, baseline, seed))
        left.text(
            1.01, heights[label], f"{mb:.3g} MB\n{words}", va="center", fontsize=9, transform=left.get_yaxis_transform()
        )
    left.set_xlim(left=0)
    left.set_xlabel("decode rate, tokens/s (point: one answer; bar: median)")
    left.set_title("Rate")
    heights = rows(right, [e["kv"] for e in quality])
    for e in quality:
        right.barh(heights[e["kv"]], e["kl"], height=0.5, color=TYPE_SHADES[e["kv"]])
        words = "reference" if e["kv"] == "f32" else f"KL {e['kl']:.1e}, best token equal {e['top1']:.1%}"
        right.text(e["kl"], heights[e["kv"]], " " + words, va="center", fontsize=9)
    right.set_yticks([])
    right.set_xlim(right=3.2 * max((e["kl"] for e in quality), default=1) or 1)
    right.set_xlabel(f"KL divergence from float32, nats a token ({quality[0]['tokens'] if quality else 0} tokens)")
    right.xaxis.set_major_locator(MaxNLocator(3))
    right.xaxis.set_major_formatter("{x:.0e}")
    right.set_title("Distance")
    return figure
