"""The chart of findings about XLA:CPU: how much longer the slow program takes, and what its program shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.experiments.xla_cpu.measure import Outcome
from llama_lab.figures import notes, rows
from llama_lab.figures.style import GREY, colour, headline, new, styled


def amount(value: int, unit: str) -> str:
    """`113 MB`, `40 kB`, `0`, or a plain count."""
    if not unit.startswith("bytes") or value == 0:
        return f"{value:,}"
    return f"{value / 1e6:.3g} MB" if value >= 1e6 else f"{value / 1e3:.3g} kB"


def evidence(outcome: Outcome) -> str:
    """What the compiled programs show, such as `temporaries: 113 MB against 0`."""
    unit, faults = outcome.finding.unit, outcome.faults
    words = f"{unit.removeprefix('bytes of ')}: {amount(outcome.slow, unit)} against {amount(outcome.fast, unit)}"
    words += "" if outcome.holds else "\nnot seen with this jaxlib"
    return words + (f"\npage faults: {faults[0]:,.0f} against {faults[1]:,.0f}" if max(faults) >= 1000 else "")


@styled
def xla_findings(outcomes: Sequence[Outcome]) -> Figure:
    """One row per finding: slow over fast in time (point: a process; band: 95 % interval), its evidence beside."""
    figure, axes = new(11.5, 1.6 + 0.95 * max(1, len(outcomes)))
    labels = [f"{o.finding.name}\n{o.finding.slow.words}\nagainst {o.finding.fast.words}" for o in outcomes]
    heights = list(rows.heights(axes, labels).values())
    shades = [colour("step") if outcome.holds else GREY for outcome in outcomes]
    for outcome, height, shade in zip(outcomes, heights, shades, strict=True):
        ratio = outcome.ratio
        rows.points(axes, outcome.pairs, height, shade, spread=0.12, s=16, alpha=0.5, zorder=1)
        words = "void: other numbers" if outcome.wrong and not outcome.pairs else "not measured"
        if np.isfinite(ratio.value):
            rows.interval(axes, ratio, height, shade, mark=16, edge=2, linewidth=9, alpha=0.3, zorder=(2, 2))
            slow, fast = outcome.ms
            words = f"{ratio.words}, n = {ratio.n}\n{slow:.3g} ms against {fast:.3g} ms"
        rows.beside(axes, height, f"{words}\n{evidence(outcome)}", x=1.02)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set(xscale="log", xlim=(0.8, max([2.0, *(1.15 * p for o in outcomes for p in o.pairs)])))
    low, high = axes.get_xlim()
    arrows = ""
    for outcome, height, shade in zip(outcomes, heights, shades, strict=True):  # where an interval goes on
        for end, marker, beyond in ((low, "<", outcome.ratio.low < low), (high, ">", outcome.ratio.high > high)):
            if beyond:
                axes.plot(end, height, marker, color=shade, markersize=9, clip_on=False)
                arrows = "; arrow: it goes on"
    axes.set_xlabel(
        "time of the slow program over the fast one's, log scale\n"
        f"(point: one process; bar: mean; band: its 95 % interval{arrows})"
    )
    notes.one_two_five(axes.xaxis)
    axes.tick_params(axis="y", labelsize=9)
    seen = [o.ratio.value for o in outcomes if o.holds and np.isfinite(o.ratio.value)]
    longer = f"up to {max(seen):.0f} times as long as another" if seen else "as long as another"
    headline(figure, f"For the same numbers one program of XLA's takes {longer}")
    return figure
