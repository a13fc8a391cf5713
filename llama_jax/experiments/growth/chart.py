"""How a token's cost grows, one size at a time, beside what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from llama_jax.figures.marks import label
from llama_jax.figures.style import LIMIT_COLOUR, PALETTE, plain_ticks, styled

TITLES = {
    "layers": "Layers",
    "width": "Width",
    "context": "Cache slots",
    "batch": "Batch rows",
    "model": "Whole models",
}


@styled
def growth(axes_points: dict[str, Sequence[dict]]) -> Figure:
    """Milliseconds a step against each size: every answer a point, medians joined, the bandwidth and arithmetic limits
    beside.

    axes_points: axis → `measure.axis_of`.
    """
    columns = min(3, len(axes_points))
    lines = -(-len(axes_points) // columns)
    figure, panels = plt.subplots(lines, columns, figsize=(4.6 * columns, 4.1 * lines + 0.6), squeeze=False)
    for axes in panels.flat[len(axes_points) :]:
        axes.axis("off")
    for axes, (axis, points) in zip(panels.flat, axes_points.items(), strict=False):
        x = range(len(points)) if axis == "model" else [int(p["value"]) for p in points]
        axes.scatter(
            [at for at, p in zip(x, points, strict=True) for _ in p["ms"]],
            [ms for p in points for ms in p["ms"]],
            s=16,
            color=PALETTE["blue"],
            alpha=0.5,
            linewidths=0,
            zorder=3,
        )
        axes.plot(
            x,
            [p["median"] for p in points],
            color=PALETTE["blue"],
            linewidth=2,
            label="measured (median; point: one answer)",
        )
        axes.plot(
            x,
            [p["bytes_ms"] for p in points],
            color=LIMIT_COLOUR,
            linestyle="--",
            linewidth=1.5,
            label="bytes / bandwidth",
        )
        if all(p["flops_ms"] for p in points):
            axes.plot(
                x,
                [p["flops_ms"] for p in points],
                color=PALETTE["green"],
                linestyle=":",
                linewidth=1.8,
                label="operations / arithmetic",
            )
        for at, p in zip(x, points, strict=True):
            bound = max(p["bytes_ms"], p["flops_ms"] or 0)
            axes.annotate(
                f"{p['median'] / bound:.1f}x",
                (at, p["median"]),
                (0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
            )
        axes.set_ylim(bottom=0)
        if axis == "model":
            names = [label(p["value"].partition(" ")[0]) + own(p["value"]) for p in points]
            axes.set_xticks(list(x), names, fontsize=8.5)
            axes.margins(x=0.2)
        else:
            spread = max(x) / min(x) > 20
            axes.set_xscale("log" if spread else "linear")
            axes.set_xticks(x, [str(at) for at in x], fontsize=9, rotation=0 if len(x) < 4 else 45)
            axes.minorticks_off()
        plain_ticks(axes.yaxis)
        axes.set_title(TITLES[axis], fontsize=12)
        counts = sorted({p["n"] for p in points})
        processes = "one process" if points[0]["processes"] == 1 else f"{points[0]['processes']} processes"
        axes.set_xlabel(
            f"n = {'-'.join(str(n) for n in (counts[0], counts[-1])[: len(counts)])} a point, {processes}", fontsize=9
        )
    for axes in panels[:, 0]:
        axes.set_ylabel("ms a step (one token for each row)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    words = "2.0x over a point: twice the larger of the two limits"
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9.5, title=words, title_fontsize=9.5)
    return figure


def own(value: str) -> str:
    """A model's own placement, on a line below its name; "" for the one that all others run under."""
    return f"\n{name}" if (name := value.partition(" ")[2]) else ""
