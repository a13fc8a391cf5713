"""Decode rate from release to release of JAX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench.intervals import FEWEST
from llama_lab.bench.record import Trial
from llama_lab.experiments.upgrading_jax import table
from llama_lab.figures import labels
from llama_lab.figures.labels import End, readable
from llama_lab.figures.style import GREY, LIMIT_COLOUR, OTHERS, colour, headline, new, styled


@styled
def releases(trials: Sequence[Trial], meta: dict) -> Figure:
    """Tokens/s of each placement, a line from release to release with the bars of `table.bar_ends`; a release that
    computes wrong values is joined by no line, and crossed out on the axis and named in red; one that could not be had
    is a gap that says so."""
    names, placements = meta["parameters"]["releases"], meta["parameters"]["placements"]
    present, right = table.releases(meta), table.sound(trials, meta)
    figure, axes = new(10.5, 5.8)
    title, ends, bad = table.claim(trials, meta), [], [name for name in present if name not in right]
    for i, placement in enumerate(placements):
        rates = {name: rate for name in present if (rate := table.rate(trials, name, placement)).n}
        if not rates:
            continue
        own, middle = (OTHERS[2] if "+scan" in placement else colour(placement)), [r.median for r in rates.values()]
        x = [names.index(name) + 0.15 * (i - (len(placements) - 1) / 2) for name in rates]
        edges = [table.bar_ends(trials, name, placement) for name in rates]
        reach = np.clip(
            [
                [m - low for m, (low, _) in zip(middle, edges, strict=True)],
                [high - m for m, (_, high) in zip(middle, edges, strict=True)],
            ],
            0,
            None,
        )
        mark, line = ("s", "--") if "+scan" in placement else ("o", "-")
        *_, bars = axes.errorbar(x, middle, reach, color=own, fmt=mark, markersize=5, zorder=3)
        joined = [m if name in right else np.nan for name, m in zip(rates, middle, strict=True)]
        axes.plot(x, joined, line, color=own, linewidth=1.8, zorder=3)
        for bar in bars:
            bar.set(alpha=0.35, linewidth=3)
        shown = {rates[name].median: at for at, name in enumerate(rates) if name in right}  # of right values
        ends_ = {shown[m] for m in (*sorted(shown)[:2], max(shown))} if shown else ()
        for at in ends_ if placement == table.PLACEMENT else ():
            place = dict(textcoords="offset points", ha="center", va="top", fontsize=10, color=own)
            axes.annotate(f"{middle[at]:.1f}", (x[at], middle[at]), (0, -7), **place)
        if placement == table.PLACEMENT and len(shown) > 2:
            (slow, at), *others = sorted(shown.items())
            count = sum(name in rates for name in right) - 1
            most = f"the {count} others{' that pass every check' * bool(bad)} {others[0][0]:.1f} to {others[-1][0]:.1f}"
            title = f"Under {placement}, JAX {[*rates][at]} makes {slow:.1f} tokens/s, {most}"
        ends.append(End(placement, x[-1], middle[-1], own))
    labels.at_ends(axes, ends, 1.3, x=len(names) - 0.62, size=11)
    limits = [t.limit for t in trials if t.bytes_per_token and t.bandwidth_gbps and t.phase == "warm"]
    if limits:
        axes.axhline(max(limits), color=LIMIT_COLOUR, linestyle="--", linewidth=1.2)
        ground = dict(color=LIMIT_COLOUR, fontsize=9, bbox=dict(facecolor="white", edgecolor="none", pad=1), zorder=5)
        at = (0, max(limits))
        axes.annotate(f"bandwidth limit {at[1]:.0f}", at, (0, 4), textcoords="offset points", **ground)
    for name in names:
        if name not in present:
            where = dict(rotation=90, ha="center", va="center", color=GREY)
            axes.annotate("not measured", (names.index(name), 0.5), xycoords=("data", "axes fraction"), **where)
    axes.set_yscale("log")
    readable(axes.yaxis)
    axes.set_xlim(-0.4, len(names))
    axes.set_xticks(range(len(names)), [name.replace("+", "\n+") for name in names])
    for tick, name in zip(axes.get_xticklabels(), names, strict=True):
        if name in bad:
            tick.set(color=LIMIT_COLOUR, fontweight="bold")
    cross = dict(color=LIMIT_COLOUR, markersize=11, markeredgewidth=2.2, clip_on=False, zorder=4)
    crossed = [names.index(name) for name in bad]
    axes.plot(crossed, [0] * len(crossed), "x", transform=axes.get_xaxis_transform(), **cross)
    most = max((table.rate(trials, name, placements[0]).n for name in present), default=0)
    processes = meta["parameters"]["processes"]
    reached = "their range, of" if processes < FEWEST else "its 95% interval over"
    here = table.set_up(meta)
    ours = f"; this repository runs {here}" * (here in names)
    axes.set_xlabel(
        f"release of JAX, as shipped or with this package's flag{ours}\n(red cross: wrong values or crashes;"
        f" mark: median of n = {most} answers; bar: {reached} {processes} processes)"
    )
    axes.set_ylabel("decode, tokens/s (log scale)")
    headline(figure, title)
    return figure
