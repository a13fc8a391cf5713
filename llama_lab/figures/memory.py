"""The chart of memory: what each subject's process needs for an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import standings
from llama_lab.bench.wording import counted, listed, named_well
from llama_lab.figures import rows
from llama_lab.figures.marks import shade
from llama_lab.figures.style import LIMIT_COLOUR, footnote, headline, new, styled


@styled
def footprint(subjects: Sequence[dict], file_bytes: int | None) -> Figure:
    """Peak resident memory of each subject's own process: interpreter and libraries (pale), and all that came with the
    model.

    subjects: `footprints.table`; Ollama has no row, since its process here is the client, which does not compute. A
    red tick marks where the process would end if the model brought nothing but the bytes of its weights and cache.
    """
    alone = [f["name"] for f in subjects if f["backend"] == standings.OLLAMA]
    subjects = [f for f in subjects if f["name"] not in alone]
    figure, axes = new(10, 0.45 * len(subjects) + 1.9)
    footnote(figure, "".join(f"No row for {name}: it computes in its server's process." for name in alone))
    heights, grey = rows.heights(axes, [f["name"] for f in subjects]), dict(color="#CCCCCC", hatch="..")
    for f in subjects:
        height, peak, held = heights[f["name"]], np.median(f["peak"]) / 1e6, (f["libraries"] or 0) / 1e6
        axes.barh(height, held, height=0.55, edgecolor="white", **grey)
        axes.barh(height, peak - held, left=held, height=0.55, color=shade(f), alpha=0.8)
        axes.scatter(np.array(f["peak"]) / 1e6, [height] * len(f["peak"]), s=14, color="black", zorder=3)
        need = (f["weights"] + f["kv"]) / 1e6
        axes.plot([held + need] * 2, [height - 0.36, height + 0.36], color=LIMIT_COLOUR, linewidth=2)
        axes.text(max(peak, held + need), height, f"  {peak:,.0f} MB", va="center", fontsize=9)
    axes.set_xlim(0, 1.15 * max((np.median(f["peak"]) / 1e6 for f in subjects), default=1))
    axes.barh(0, 0, edgecolor="white", label="interpreter and libraries", **grey)
    red = dict(color=LIMIT_COLOUR, markersize=13, markeredgewidth=2)
    axes.plot([], [], "|", label="libraries + bytes of weights and cache", **red)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9.5, borderaxespad=0.2)
    name = f"\nthe file on disk: {file_bytes / 1e6:.0f} MB" if file_bytes else ""
    n = counted(len(f["peak"]) for f in subjects)
    axes.set_xlabel(
        f"peak resident memory of a process with this subject alone, MB (point: a process, {n}; bar: median){name}"
    )
    peaks = sorted((float(np.median(f["peak"])) / 1e6, f["name"], f["backend"]) for f in subjects)
    mine = [peak for peak in peaks if peak[2] == standings.JAX]
    ends = [(peak, named_well(name)) for peak, name, _ in (*peaks[:1], *mine[:1], *peaks[-1:])]
    said = dict.fromkeys(f"{peak:,.0f} MB under {name}" for peak, name in ends)
    headline(figure, f"One answer needs {listed(list(said))}" if said else "No process was measured")
    return figure
