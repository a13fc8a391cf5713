"""Charts of fewer bits: speed against quality, and the roofline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.wording import counted, named_well
from llama_lab.experiments.fewer_bits.reading import ALL
from llama_lab.figures import notes
from llama_lab.figures.labels import labelled, readable
from llama_lab.figures.marks import distance_label, fastest_and_near, gaps_words, look, speed_against_distance
from llama_lab.figures.style import LIMIT_COLOUR, footnote, headline, new, styled


@styled
def quality_and_speed(entries: Sequence[dict], texts: str, missing: Sequence[dict] = ()) -> Figure:
    """Decode rate against the mean KL divergence from the float32 model, one point per subject, both with their 95%
    intervals.

    entries: `precision.table.ladder`. texts: what was read, in words.
    """
    figure, axes = new(10.5, 6.4)
    shown = [(e, e["distance"][ALL]) for e in entries if e["decode"].n and ALL in e["distance"]]
    speed_against_distance(axes, shown)
    if not shown:
        notes.empty(axes, "no subject has both a rate and a distance", color=LIMIT_COLOUR)
    axes.set_ylabel(distance_label(texts))
    headline(figure, fastest_and_near(shown))
    footnote(figure, gaps_words(missing))
    return figure


@styled
def roofline(entries: dict[int, Sequence[dict]], probes: dict[int, dict]) -> Figure:
    """Tokens/s against the bytes that a token must read, every subject a point, one panel per context; the line is what
    the fastest probe's bandwidth allows, the band reaches down to what the median one's does.

    probes: what they read by context, of `table.probes`.
    """
    figure, panels = new(max(9.5, 5.7 * len(entries)), 5.6, columns=len(entries), sharey=True, squeeze=False)
    rates = [e["decode"].median for found in entries.values() for e in found if e["decode"].n] or [1.0]
    for axes, (context, found) in zip(panels[0], entries.items(), strict=True):
        roof(axes, [e for e in found if e["decode"].n and e["bytes"]], probes[context], 0.6 * min(rates))
        intensity = [e["flops"] / e["bytes"] for e in found if e["decode"].n and e["bytes"] and e["flops"]]
        words = f", {min(intensity):.1f} to {max(intensity):.1f} operations per byte" if intensity else ""
        axes.set_title(f"Context {context}{words}\nbeside each mark: tokens/s, share of the limit", fontsize=11)
    panels[0][0].set_ylabel("decode rate, tokens/s (log scale)")
    near = max(
        (e for found in entries.values() for e in found if e["mbu"].n), key=lambda e: e["mbu"].median, default=None
    )
    share = f"; {named_well(near['name'])} comes nearest, at {near['mbu'].median:.0%}" if near else ""
    if near and near["mbu"].median > 1:
        headline(figure, f"{named_well(near['name'])} passes the memory's limit, at {near['mbu'].median:.0%}")
    else:
        headline(figure, f"No program reaches the memory's limit{share}")
    return figure


def roof(axes, shown: Sequence[dict], probed: dict, bottom: float) -> None:
    """One context's panel of the roofline."""
    bandwidth, usual = probed["max"], probed["median"]
    sizes = [e["bytes"] / 1e6 for e in shown] or [1.0]
    line = np.array([min(sizes) / 3.5, 1.7 * max(sizes)])  # room for labels to the left, where the roof is high
    axes.set(xscale="log", yscale="log", xlim=line, ylim=(bottom, 1.8 * bandwidth * 1e3 / min(sizes)))
    axes.plot(line, bandwidth * 1e3 / line, color=LIMIT_COLOUR, linestyle="--", linewidth=1.4)
    axes.fill_between(line, usual * 1e3 / line, bandwidth * 1e3 / line, color=LIMIT_COLOUR, alpha=0.08, linewidth=0)
    middle = (min(sizes) * max(sizes)) ** 0.5
    source = "as probed"
    if usual < 0.98 * bandwidth:  # else there is no band to be seen
        source = f"the fastest probe\n (band: down to the median one, {usual:.0f})"
    words = f" the limit: {bandwidth:.0f} GB/s, {source}"
    axes.text(middle, 1.1 * bandwidth * 1e3 / middle, words, color=LIMIT_COLOUR, fontsize=9, va="bottom")
    labels, taken = [], [(line, bandwidth * 1e3 / line)]
    for e in shown:
        (colour, marker), rate, size = look(e["name"], e["backend"]), e["decode"], e["bytes"] / 1e6
        axes.plot([size] * 2, [rate.low, rate.high], color=colour, linewidth=3.5, alpha=0.35, solid_capstyle="butt")
        axes.plot(size, rate.median, marker, color=colour, markersize=8, markeredgecolor="white")
        taken += [([size] * 2, [rate.low, rate.high])] if np.isfinite(rate.low) else []
        labels.append((f"{e['name']}: {rate.median:.0f}, {e['mbu'].median:.0%}", size, rate.median, colour))
    labelled(axes, labels, taken)
    readable(axes.xaxis, axes.yaxis)
    n = counted(e["decode"].n for e in shown)
    axes.set_xlabel(f"MB read per token (log scale;\n{n} answers; bands: 95% intervals)")
