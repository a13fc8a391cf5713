"""The chart of the findings about XLA:CPU: how much longer the slow program takes, and what its compiled program
shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.experiments.xla_cpu.measure import Told
from llama_lab.figures import notes, rows
from llama_lab.figures.style import GREY, colour, headline, new, styled


def amount(value: int, unit: str) -> str:
    """`113 MB`, `40 kB`, `0`, or a plain count."""
    if not unit.startswith("bytes") or value == 0:
        return f"{value:,}"
    return f"{value / 1e6:.3g} MB" if value >= 1e6 else f"{value / 1e3:.3g} kB"


def evidence(told: Told) -> str:
    """What the compiled programs show, such as `temporaries: 113 MB against 0`."""
    unit = told.finding.unit
    words = f"{unit.removeprefix('bytes of ')}: {amount(told.slow, unit)} against {amount(told.fast, unit)}"
    faults = f"\npage faults: {told.faults[0]:,.0f} against {told.faults[1]:,.0f}" if max(told.faults) >= 1000 else ""
    return words + ("" if told.holds else "\nnot seen with this jaxlib") + faults


def cut_off(axes, found: Sequence[Told]) -> None:
    """An arrow where an interval goes on beyond the chart."""
    low, high = axes.get_xlim()
    for told, height in zip(found, sorted(axes.get_yticks(), reverse=True), strict=True):
        for end, marker, beyond in ((low, "<", told.ratio.low < low), (high, ">", told.ratio.high > high)):
            if beyond:
                shade = colour("step") if told.holds else GREY
                axes.plot(end, height, marker, color=shade, markersize=9, clip_on=False)


@styled
def xla_findings(found: Sequence[Told]) -> Figure:
    """One row a finding: slow over fast in time (point: a process; band: the mean's 95 % interval), its evidence beside
    it."""
    figure, axes = new(11.5, 1.6 + 0.95 * max(1, len(found)))
    labels = [f"{t.finding.name}\n{t.finding.slow.words}\nagainst {t.finding.fast.words}" for t in found]
    for told, height in zip(found, rows.heights(axes, labels).values(), strict=True):
        shade, ratio = colour("step") if told.holds else GREY, told.ratio
        rows.points(axes, told.pairs, height, shade, spread=0.12, s=16, alpha=0.5, zorder=1)
        words = "void: other numbers" if told.wrong and not told.pairs else "not measured"
        if np.isfinite(ratio.value):
            rows.interval(axes, ratio, height, shade, mark=16, edge=2, linewidth=9, alpha=0.3, zorder=(2, 2))
            words = f"{ratio.words}, n = {ratio.n}\n{told.ms[0]:.3g} ms against {told.ms[1]:.3g} ms"
        rows.beside(axes, height, f"{words}\n{evidence(told)}", x=1.02)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set(xscale="log", xlim=(0.8, max([2.0, *(1.15 * p for t in found for p in t.pairs)])))
    cut_off(axes, found)
    axes.set_xlabel(
        "time of the slow program over the fast one's, log scale\n"
        "(point: one process; bar: mean; band: its 95 % interval; arrow: it goes on)"
    )
    notes.one_two_five(axes.xaxis)
    axes.tick_params(axis="y", labelsize=9)
    seen = [t.ratio.value for t in found if t.holds and np.isfinite(t.ratio.value)]
    said = f"up to {max(seen):.0f} times as long as another" if seen else "as long as another"
    headline(figure, f"For the same numbers one program of XLA's takes {said}")
    return figure
