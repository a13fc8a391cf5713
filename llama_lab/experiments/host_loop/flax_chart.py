"""Charts of the Flax twins: what one decode call costs, by the way it is made."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench.wording import listed, within
from llama_lab.experiments.host_loop import flax_twin
from llama_lab.figures import notes, rows
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, headline, new, styled

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
    width = 2.4 + 4.3 * len(models)
    figure, panels = new(width, 0.62 * len(names) + 2.1, columns=len(models), sharey=True, squeeze=False)
    heights, first = rows.heights(panels[0][0], names), panels[0][0]
    first.set_yticks(list(heights.values()), [LABELS[name] for name in heights])
    n, calls = min(e["complete_us"].n for e in table), table[0]["calls"]
    for axes, model in zip(panels[0], models, strict=True):
        model_panel(axes, [e for e in table if e["model"] == model], heights)
        axes.set_xlabel(f"ms a token, log scale (median of n ≥ {n} bursts\nof {calls} calls each; point: one burst)")
    first.set_ylim(bottom=-0.75)
    first.plot([], [], "D", color=GREY, label="the call returns: Python and dispatch")
    upright = dict(color="black", markersize=13, markeredgewidth=2.2)
    first.plot([], [], "|", label="the token is there (band: 95 % interval)", **upright)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9.5)
    headline(figure, how_much_longer(table, models[-1]))
    return figure


def how_much_longer(table: Sequence[dict], model: str) -> str:
    """What a token of a model takes by Flax, over ours, by the way it is called."""
    ratios = {e["subject"]: e["over_step"].value for e in table if e["model"] == model and e["over_step"]}
    words = {
        flax_twin.UNJITTED: "as long as ours without jit",
        flax_twin.JITTED: "with",
        flax_twin.NNX_JITTED: "under nnx.jit",
    }
    said = listed([f"{short(ratios[way])} times {how}" for way, how in words.items() if way in ratios] or [""])
    return f"A token takes Flax {said}" if said else "Flax was not measured"


def model_panel(axes, entries: Sequence[dict], heights: dict[str, int]) -> None:
    """The ways of calling one model, beside the limit of the memory."""
    axes.grid(axis="y", visible=False)
    for e in entries:
        draw_way(axes, e, heights[e["subject"]])
    limit = entries[0]["limit_us"] / 1e3
    notes.limit(axes, limit, f"memory limit {limit:.2g} ms", "left", 8.5)
    seen = [value / 1e3 for e in entries for point in e["points"] for value in point]
    axes.set_xscale("log")
    axes.set_xlim(min(limit, *seen) / 1.6, max(seen) * 1.6)
    notes.plain(axes.xaxis)
    axes.xaxis.set_minor_formatter("")
    layers, width, weights = entries[0]["layers"], entries[0]["width"], size(entries[0]["parameters"])
    axes.set_title(f"{layers} layers of width {width}: {weights} weights", fontsize=11, pad=18)


def draw_way(axes, entry: dict, height: float) -> None:
    """One way's row: bursts, medians, the interval, and in words its number of dispatches and its ratio to `step`."""
    returned, token, ratio = entry["dispatch_us"], entry["complete_us"], entry["over_step"]
    if not token.n:
        words = "no valid burst: " + "; ".join(entry["reasons"])[:60]
        return rows.beside(axes, height, words, 8.5, x=0.02, color=LIMIT_COLOUR)
    ours = entry["subject"] == flax_twin.STEP
    tint, seconds = colour("step" if ours else "flax"), [complete / 1e3 for _, complete in entry["points"]]
    rows.points(axes, seconds, height, tint, spread=0.14, even=True, alpha=0.55)
    in_ms = tuple(us / 1e3 for us in rows.ends(token))
    rows.interval(axes, in_ms, height, mark=17, linewidth=6, alpha=0.3)
    diamond = dict(color=GREY, markersize=6.5, markeredgecolor="white", markeredgewidth=0.7, zorder=5)
    axes.plot(returned.median / 1e3, height, "D", **diamond)
    words = f"{entry['dispatches']} dispatch" + "es" * (entry["dispatches"] > 1)
    words += "" if ours else f" · {short(ratio.value)}x step{within(ratio, short)}"
    ground = dict(ha="center", color="#333333", zorder=6, bbox=dict(facecolor="white", linewidth=0, pad=0.8))
    rows.beside(axes, height - 0.34, words, 8.5, x=0.5, **ground)


def short(value: float) -> str:
    """Three digits at most: 0.98, 1.07, 13.4, 245."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def size(parameters: int) -> str:
    """`135 M`, `1.4 M`, `98 k`."""
    if parameters < 1e6:
        return f"{parameters / 1e3:.0f} k"
    return f"{parameters / 1e6:.1f} M" if parameters < 1e7 else f"{parameters / 1e6:.0f} M"
