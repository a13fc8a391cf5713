"""Charts of the Flax twins: what one decode call costs, by the way it is made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.numbers import within
from llama_lab.bench.wording import listed
from llama_lab.experiments.host_loop import flax_twin
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, headline, new, plain_ticks, rows, styled

LABELS = {
    flax_twin.UNJITTED: "Linen apply, not jitted",
    flax_twin.NNX_UNJITTED: "NNX module, not jitted",
    flax_twin.NNX_JITTED: "NNX, nnx.jit",
    flax_twin.SPLIT: "NNX, split once + jax.jit",
    flax_twin.JITTED: "Linen, jax.jit(apply)",
    flax_twin.STEP: "ours: step",
}


@styled
def call_cost(table: Sequence[dict]) -> Figure:
    """When one decode call returns (diamond) and when its token is there (bar), by way, a panel a model size; log
    scale.

    table: as `flax_twin.table` gives it.
    """
    models = list(dict.fromkeys(e["model"] for e in table))
    names = [name for name in flax_twin.WAYS if any(e["subject"] == name for e in table)]
    figure, panels = new(
        2.4 + 4.3 * len(models), 0.62 * len(names) + 2.1, columns=len(models), sharey=True, squeeze=False
    )
    heights = rows(panels[0][0], names)
    panels[0][0].set_yticks(list(heights.values()), [LABELS[name] for name in heights])
    for axes, model in zip(panels[0], models, strict=True):
        entries = [e for e in table if e["model"] == model]
        axes.grid(axis="y", visible=False)
        for e in entries:
            draw_way(axes, e, heights[e["subject"]])
        limit = entries[0]["limit_us"] / 1e3
        axes.axvline(limit, color=LIMIT_COLOUR, linestyle="--", linewidth=1.3)
        axes.text(
            limit,
            1.0,
            f"memory limit {limit:.2g} ms",
            color=LIMIT_COLOUR,
            fontsize=8.5,
            ha="left",
            va="bottom",
            transform=axes.get_xaxis_transform(),
        )
        seen = [value / 1e3 for e in entries for point in e["points"] for value in point]
        axes.set_xscale("log")
        axes.set_xlim(min(limit, *seen) / 1.6, max(seen) * 1.6)
        plain_ticks(axes.xaxis)
        axes.xaxis.set_minor_formatter("")
        axes.set_title(
            f"{entries[0]['layers']} layers of width {entries[0]['width']}: {size(entries[0]['parameters'])} weights",
            fontsize=11,
            pad=18,
        )
    panels[0][0].set_ylim(bottom=-0.75)
    panels[0][0].plot([], [], "D", color=GREY, label="the call returns: Python and dispatch")
    panels[0][0].plot(
        [], [], "|", color="black", markersize=13, markeredgewidth=2.2, label="the token is there (band: 95 % interval)"
    )
    figure.legend(
        *panels[0][0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=9.5,
    )
    at = {e["subject"]: e["over_step"].value for e in table if e["model"] == models[-1] and e["over_step"]}
    words = {
        flax_twin.UNJITTED: "as long as ours without jit",
        flax_twin.JITTED: "with",
        flax_twin.NNX_JITTED: "under nnx.jit",
    }
    said = listed([f"{short(at[way])} times {how}" for way, how in words.items() if way in at] or [""])
    headline(figure, f"A token takes Flax {said}" if said else "Flax was not measured")
    n, calls = min(e["complete_us"].n for e in table), table[0]["calls"]
    for axes in panels[0]:
        axes.set_xlabel(f"ms a token, log scale (median of n ≥ {n} bursts\nof {calls} calls each; point: one burst)")
    return figure


def draw_way(axes, entry: dict, height: float) -> None:
    """One way's row: bursts, medians, the interval, and in words its number of dispatches and its ratio to `step`."""
    returned, token, ratio = entry["dispatch_us"], entry["complete_us"], entry["over_step"]
    if not token.n:
        axes.text(
            0.02,
            height,
            "no valid burst: " + "; ".join(entry["reasons"])[:60],
            fontsize=8.5,
            va="center",
            color=LIMIT_COLOUR,
            transform=axes.get_yaxis_transform(),
        )
        return
    spread = np.linspace(-0.14, 0.14, len(entry["points"]))
    axes.scatter(
        [c / 1e3 for _, c in entry["points"]],
        height + spread,
        s=12,
        color=colour("step" if entry["subject"] == flax_twin.STEP else "flax"),
        alpha=0.55,
        linewidths=0,
        zorder=2,
    )
    axes.plot(
        [token.low / 1e3, token.high / 1e3],
        [height] * 2,
        color="black",
        linewidth=6,
        alpha=0.3,
        solid_capstyle="butt",
        zorder=3,
    )
    axes.plot(token.median / 1e3, height, "|", color="black", markersize=17, markeredgewidth=2.2, zorder=4)
    axes.plot(
        returned.median / 1e3,
        height,
        "D",
        color=GREY,
        markersize=6.5,
        markeredgecolor="white",
        markeredgewidth=0.7,
        zorder=5,
    )
    jobs = f"{entry['dispatches']} dispatch" + "es" * (entry["dispatches"] > 1)
    over = "" if entry["subject"] == flax_twin.STEP else f" · {short(ratio.value)}x step{within(ratio, short)}"
    axes.text(
        0.5,
        height - 0.34,
        jobs + over,
        fontsize=8.5,
        ha="center",
        va="center",
        color="#333333",
        zorder=6,
        bbox=dict(facecolor="white", linewidth=0, pad=0.8),
        transform=axes.get_yaxis_transform(),
    )


def short(value: float) -> str:
    """Three digits at most: 0.98, 1.07, 13.4, 245."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def size(parameters: int) -> str:
    """`135 M`, `1.4 M`, `98 k`."""
    if parameters < 1e6:
        return f"{parameters / 1e3:.0f} k"
    return f"{parameters / 1e6:.1f} M" if parameters < 1e7 else f"{parameters / 1e6:.0f} M"
