"""Charts of the peers: the original's histogram again, rates side by side, rate against quality, a conversation, memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_jax.bench import standings
from llama_jax.bench.statistics import Ratio
from llama_jax.figures.measurement import interval_words
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, new, rows, styled

SHADES = {standings.JAX: PALETTE["blue"], standings.TORCH: PALETTE["vermilion"], standings.LLAMACPP: PALETTE["green"],
          standings.OLLAMA: PALETTE["orange"]}  # fmt: skip
MARKERS = {standings.JAX: "o", standings.TORCH: "s", standings.LLAMACPP: "^", standings.OLLAMA: "D"}
HATCHES = {standings.JAX: "", standings.TORCH: "..", standings.LLAMACPP: "//", standings.OLLAMA: "xx"}
OTHER, GREY = PALETTE["purple"], "#555555"
WIDE = 60  # characters of a line beside a chart


def shade(entry: dict) -> str:
    return SHADES.get(entry["backend"], OTHER)


def gap_words(gap: dict) -> str:
    """`ollama: No server answers. Run ...` in one line, cut where it is long."""
    words = " ".join(filter(None, [gap["reason"], gap["remedy"]]))
    return words if len(words) <= 2 * WIDE else words[: 2 * WIDE - 2] + " …"


@styled
def tokens_per_second(
    entries: Sequence[dict], ratio: Ratio | None, published: dict[str, tuple[float, float]], missing: Sequence[dict]
) -> Figure:
    """The original's figures (left), and its histogram measured again (right).

    entries: of the ladder, our placement first. ratio: of the first over the second; None where there is no second. published: system →
    (tokens/s, ± as published). missing: peers of which there is no histogram.
    """
    figure, (left, right) = new(11.5, 4.3, columns=2, gridspec_kw={"width_ratios": [1, 2.6]})
    for x, (rate, spread) in enumerate(published.values()):
        left.bar(x, rate, yerr=spread, width=0.6, capsize=6, color=SHADES[standings.JAX if x else standings.OLLAMA], alpha=0.6)
        left.text(x, 0.5, f"{rate:g} ± {spread:g}", ha="center", va="bottom", fontsize=10)
    left.set_xticks(range(len(published)), list(published))
    left.set(ylabel="tokens/s")
    left.grid(axis="x", visible=False)
    left.set_title("As published (M1 Max)", pad=10)
    series = [e["points"]["decode"] for e in entries]
    edges = np.histogram_bin_edges(np.concatenate(series), bins=int(np.clip(2 * max(map(len, series)), 12, 40)))
    for e, values in zip(entries, series, strict=True):
        middle = e["decode"]
        words = f"{e['name']} ({e['dtype']}): median {middle.median:.1f} tokens/s, IQR {middle.iqr:.1f}, n = {middle.n}"
        right.hist(values, edges, color=shade(e), alpha=0.5, hatch=HATCHES.get(e["backend"], "--"), edgecolor=shade(e), label=words)
        right.axvline(middle.median, color=shade(e), linewidth=2)
    right.set(xlabel="decode rate, tokens/s (line: median)", ylabel="answers")
    right.set_xlim(left=0)
    right.yaxis.get_major_locator().set_params(integer=True)
    right.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.17), fontsize=9.5)
    title = f"Here: {entries[0]['name']} " + (f"makes {interval_words(ratio)} of {entries[1]['name']}" if ratio else "alone")
    right.set_title(title, pad=10)
    if missing:
        lines = "\n".join(f"no {gap['name']}: {gap_words(gap)}" for gap in missing)
        right.text(0.0, -0.24 - 0.07 * len(entries), lines, transform=right.transAxes, fontsize=8, va="top", color=GREY, wrap=True)
    return figure


@styled
def peer_ladder(entries: Sequence[dict], missing: Sequence[dict], prefill_limit: float | None, prompt_tokens: int) -> Figure:
    """Decode rate, prefill rate and time to first token of every subject, with intervals; the limit of each weight format beside.

    entries: `standings.ladder`. prefill_limit: prompt tokens/s that the machine's float32 arithmetic allows.
    """
    names = [e["name"] for e in entries] + [gap["name"] for gap in missing]
    figure, panels = new(13.5, 0.48 * len(names) + 1.9, columns=3, sharey=True, gridspec_kw={"width_ratios": [1.5, 1, 1]})
    heights = rows(panels[0], names)
    titles = {
        "decode": "Decode, tokens/s",
        "prefill": f"Prefill, prompt tokens/s ({prompt_tokens} tokens)",
        "ttft": "Time to first token, ms",
    }
    for axes, (what, title) in zip(panels, titles.items(), strict=True):
        axes.grid(axis="y", visible=False)
        for e in entries:
            row(axes, e, what, heights[e["name"]])
        axes.set_xlim(left=0)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * 1.22)
        axes.set_title(title, fontsize=11.5, pad=16)
    for e in entries:
        if not e["decode"].n:
            words = "; ".join(e["reasons"])[:WIDE] or "not measured"
            panels[0].text(0.02, heights[e["name"]], f"no valid trial: {words}", va="center", fontsize=8.5, color=LIMIT_COLOUR,
                           transform=panels[0].get_yaxis_transform())  # fmt: skip
    for gap in missing:
        panels[0].text(0.02, heights[gap["name"]], f"not measured: {gap_words(gap)}", va="center", fontsize=8.5, color=GREY,
                       transform=panels[0].get_yaxis_transform())  # fmt: skip
    if prefill_limit:
        panels[1].axvline(prefill_limit, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
        words = f"float32 arithmetic {prefill_limit:.0f} "
        panels[1].text(prefill_limit, 1.0, words, color=LIMIT_COLOUR, ha="right", va="bottom", fontsize=8.5,
                       transform=panels[1].get_xaxis_transform())  # fmt: skip
    n = min((e["decode"].n for e in entries if e["decode"].n), default=0)
    panels[0].set_xlabel(
        f"red: what the memory bandwidth allows for the subject's\nown bytes a token (point: one answer; bar: median; n ≥ {n})"
    )
    return figure


def row(axes, entry: dict, what: str, height: float) -> None:
    """One subject's trials, median and interval in one panel, and in the first its own limit."""
    found, values, colour = entry[what], entry["points"][what], shade(entry)
    if not found.n:
        return
    spread, marker = np.linspace(-0.16, 0.16, len(values)), MARKERS.get(entry["backend"], "v")
    axes.scatter(values, height + spread, s=13, color=colour, marker=marker, alpha=0.45, linewidths=0, zorder=2)
    axes.plot([found.low, found.high], [height] * 2, color="black", linewidth=5, alpha=0.35, solid_capstyle="butt", zorder=3)
    axes.plot(found.median, height, "|", color="black", markersize=15, markeredgewidth=2.2, zorder=4)
    words = f"{found.median:.0f}" if found.median >= 100 else f"{found.median:.1f}"
    if what == "decode" and entry["limit"]:
        limit = entry["limit"]
        axes.plot([limit] * 2, [height - 0.3, height + 0.3], color=LIMIT_COLOUR, linewidth=2, linestyle=(0, (2, 1)))
        words += f"   {found.median / limit:.0%} of {limit:.0f} ({entry['dtype']})"
    furthest = max([*values, found.high if np.isfinite(found.high) else 0, (entry["limit"] or 0) if what == "decode" else 0])
    axes.annotate(words, (furthest, height), (6, 0), textcoords="offset points", va="center", fontsize=8.5)


@styled
def speed_and_quality(entries: Sequence[dict], distances: Sequence[dict]) -> Figure:
    """Decode rate against the distance of each subject's arithmetic from float32, every subject labelled; up is further away.

    distances: `quality.table`. An exact zero has a line of its own below the log scale.
    """
    figure, axes = new(11, 5)
    known, tokens = {d["subject"]: d for d in distances}, max((d["tokens"] for d in distances), default=0)
    shown = [(e, known.get(e["arithmetic"])) for e in entries if e["decode"].n]
    positive = [d["kl"] for _, d in shown if d and d["kl"]]
    zero = min([*positive, 1e-9]) / 30
    ceiling = max([*positive, 1e-3]) * 30
    for i, (e, d) in enumerate(shown):
        height, words = zero, f"{e['name']}"
        if d is None or d["kl"] is None:  # nothing is known of its distribution
            height = ceiling
            words += ": no logits" + (f", top-1 {d['top1']:.1%}" if d else ", not compared")
        elif d["kl"]:
            height = d["kl"]
            low = max(d["kl_low"], zero) if np.isfinite(d["kl_low"]) else height
            axes.plot(
                [e["decode"].median] * 2,
                [low, d["kl_high"] if np.isfinite(d["kl_high"]) else height],
                color=shade(e),
                linewidth=4,
                alpha=0.35,
            )
            words += f": top-1 {d['top1']:.1%}"
        axes.plot([e["decode"].low, e["decode"].high], [height] * 2, color=shade(e), linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.plot(e["decode"].median, height, MARKERS.get(e["backend"], "v"), color=shade(e), markersize=9, markeredgecolor="white")
        up = 9 + 13 * sum(same(e, f, d, g) for f, g in shown[:i])
        axes.annotate(words, (e["decode"].median, height), (0, up), textcoords="offset points", fontsize=8.5, ha="center", va="bottom")
    axes.axhline(zero, color=GREY, linewidth=0.8, linestyle=":")
    axes.text(1.0, zero, "exactly float32's ", transform=axes.get_yaxis_transform(), ha="right", va="top", fontsize=8.5, color=GREY)
    axes.set(yscale="log", xlabel="decode rate, tokens/s (mark: median; bands: 95 % intervals)")
    axes.set_ylim(zero / 6, ceiling * 8)
    axes.set_xlim(left=0)
    axes.margins(x=0.12)
    axes.set_ylabel(f"mean KL divergence from float32, nats a token\n(log scale, {tokens:,} tokens of English)")
    axes.set_title("Faster to the right, further from the float32 model upwards")
    return figure


def same(entry: dict, other: dict, distance: dict | None, others: dict | None) -> bool:
    """Whether two labels would lie on each other: about equal rates and one height."""
    near = abs(entry["decode"].median - other["decode"].median) < 0.2 * max(entry["decode"].median, other["decode"].median)
    height = [d["kl"] if d else None for d in (distance, others)]
    return near and (height[0] == height[1] or (all(height) and 0.2 < height[0] / height[1] < 5))


@styled
def conversation(found: dict[str, dict], backends: dict[str, str], history: Sequence[int], new_tokens: int, reference: str) -> Figure:
    """Seconds of each turn of a conversation (left), and of the whole (right), times as long as the reference's in words.

    found: `standings.talks`. history: prompt tokens of each turn.
    """
    figure, (left, right) = new(12.5, 4.4, columns=2, gridspec_kw={"width_ratios": [1.25, 1]})
    for name, f in found.items():
        colour, marker = SHADES.get(backends[name], OTHER), MARKERS.get(backends[name], "v")
        for k, seconds in enumerate(f["turns"]):
            left.scatter([history[k]] * len(seconds), seconds, s=16, color=colour, marker=marker, alpha=0.45, linewidths=0)
        points = [(history[k], np.median(seconds)) for k, seconds in enumerate(f["turns"]) if seconds]
        left.plot(
            *zip(*points, strict=True),
            color=colour,
            linewidth=1.8,
            linestyle="--" if name != reference and backends[name] == standings.JAX else "-",
        )
        left.annotate(name, points[-1], (7, 0), textcoords="offset points", va="center", fontsize=9, color=colour)
    left.set_xlim(0, max(history) * 1.35)
    left.set_ylim(bottom=0)
    left.set_xlabel(f"tokens of history and question (turns 1 to {len(history)})")
    left.set_ylabel(f"seconds until {new_tokens} tokens are there")
    left.set_title("Each turn reads all that was said before", fontsize=11.5)
    heights = rows(right, list(found))
    for name, f in found.items():
        total, colour = f["total"], SHADES.get(backends[name], OTHER)
        if not total.n:
            right.text(
                0.02, heights[name], "no conversation without a void turn", va="center", fontsize=8.5, transform=right.get_yaxis_transform()
            )
            continue
        right.barh(
            heights[name], total.median, height=0.55, color=colour, alpha=0.75, hatch=HATCHES.get(backends[name], "--"), edgecolor="white"
        )
        right.plot([total.low, total.high], [heights[name]] * 2, color="black", linewidth=2)
        words = f"n = {total.n}" if name == reference else interval_words(f["ratio"])
        end = max(total.median, total.high if np.isfinite(total.high) else 0)
        right.text(end, heights[name], f"  {total.median:.2f} s, {words}", va="center", fontsize=8.5)
    right.set_xlim(right=1.9 * max((f["total"].median for f in found.values() if f["total"].n), default=1))
    right.set_xlabel(f"seconds of the whole conversation (bar: median, line: 95 % interval;\nx: times as long as {reference})")
    right.set_title("The whole conversation", fontsize=11.5)
    return figure


@styled
def footprint(found: Sequence[dict], file_bytes: int | None) -> Figure:
    """Peak resident memory of each subject's own process: interpreter and libraries (pale), and what the model added.

    found: `standings.footprints`. A tick marks the bytes that weights and cache need by the configuration.
    """
    figure, axes = new(10.5, 0.55 * len(found) + 1.7)
    heights = rows(axes, [f["name"] for f in found])
    for f in found:
        height, peak, held = heights[f["name"]], np.median(f["peak"]) / 1e6, (f["libraries"] or 0) / 1e6
        axes.barh(height, held, height=0.55, color="#CCCCCC", hatch="..", edgecolor="white")
        axes.barh(height, peak - held, left=held, height=0.55, color=shade(f), alpha=0.8)
        axes.scatter(np.array(f["peak"]) / 1e6, [height] * len(f["peak"]), s=14, color="black", zorder=3)
        need = (f["weights"] + f["kv"]) / 1e6
        axes.plot([held + need] * 2, [height - 0.36, height + 0.36], color=LIMIT_COLOUR, linewidth=2)
        axes.text(max(peak, held + need), height, f"  {peak:.0f} MB, {peak - held:.0f} of them the model ({f['dtype']}: {need:.0f} needed)",
                  va="center", fontsize=9)  # fmt: skip
    axes.set_xlim(right=1.75 * max(np.median(f["peak"]) / 1e6 for f in found))
    name = f" · the file on disk: {file_bytes / 1e6:.0f} MB" if file_bytes else ""
    axes.set_xlabel("peak resident memory of a process with this subject alone, MB\n"
                    f"(grey: interpreter and libraries; red: + weights and cache by the configuration{name})")  # fmt: skip
    axes.set_title("Memory")
    return figure
