"""Charts of the peers: a conversation, and the memory that each needs for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from llama_jax.bench import standings
from llama_jax.figures.measurement import interval_words
from llama_jax.figures.ollama import HATCHES, look, shade
from llama_jax.figures.placements import spread_labels
from llama_jax.figures.style import LIMIT_COLOUR, new, plain_ticks, rows, styled


@styled
def conversation(found: dict[str, dict], backends: dict[str, str], history: Sequence[int], new_tokens: int, reference: str) -> Figure:
    """Seconds of each turn of a conversation (left), and of the whole (right), times as long as the reference's in words.

    found: `standings.talks`. history: prompt tokens of each turn.
    """
    figure, (left, right) = new(12.5, 4.4, columns=2, gridspec_kw={"width_ratios": [1.25, 1]})
    ends: dict[str, tuple[float, float]] = {}
    for name, f in found.items():
        colour, marker = look(name, backends[name])
        for k, seconds in enumerate(f["turns"]):
            left.scatter([history[k]] * len(seconds), seconds, s=16, color=colour, marker=marker, alpha=0.45, linewidths=0)
        points = [(history[k], np.median(seconds)) for k, seconds in enumerate(f["turns"]) if seconds]
        left.plot(
            *zip(*points, strict=True),
            color=colour,
            linewidth=1.8,
            linestyle="--" if name != reference and backends[name] == standings.JAX else "-",
        )
        ends[name] = points[-1]
    for name, height in spread_labels({name: y for name, (_, y) in ends.items()}, 1.09).items():
        left.annotate(name, (ends[name][0], height), (8, 0), textcoords="offset points", va="center", fontsize=9,
                      color=look(name, backends[name])[0])  # fmt: skip
    left.set(xlim=(0, max(history) * 1.35), yscale="log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain_ticks(left.yaxis)
    left.yaxis.set_minor_formatter("")
    left.set_xlabel(f"tokens of history and question (turns 1 to {len(history)})")
    left.set_ylabel(f"seconds until {new_tokens} tokens are there (log scale)")
    left.set_title("Each turn reads all that was said before", fontsize=11.5)
    heights = rows(right, list(found))
    for name, f in found.items():
        total, colour = f["total"], look(name, backends[name])[0]
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
    """Peak resident memory of each subject's own process: interpreter and libraries (pale), and all that came with the model.

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
        words = f"  {peak:.0f} MB, {peak - held:.0f} of them from loading on ({f['dtype']} weights and cache: {need:.3g})"
        axes.text(max(peak, held + need), height, words, va="center", fontsize=9)
    axes.set_xlim(0, 2.3 * max((np.median(f["peak"]) / 1e6 for f in found), default=1))
    name = f" · the file on disk: {file_bytes / 1e6:.0f} MB" if file_bytes else ""
    n = min((len(f["peak"]) for f in found), default=0)
    axes.set_xlabel(f"peak resident memory of a process with this subject alone, MB (point: a process, n ≥ {n}; bar: median)\n"
                    f"(grey: interpreter and libraries; then weights, loading, programs; red: weights and cache{name})")  # fmt: skip
    axes.set_title("Peak memory of one answer")
    return figure
