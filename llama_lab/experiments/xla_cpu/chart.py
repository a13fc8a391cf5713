"""The chart of the findings about XLA:CPU: how much longer the slow program takes, and what its compiled program
shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from llama_lab.experiments.xla_cpu.measure import Told
from llama_lab.figures.style import GREY, colour, headline, new, plain_ticks, rows, styled


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
                axes.plot(
                    end, height, marker, color=colour("step") if told.holds else GREY, markersize=9, clip_on=False
                )


@styled
def xla_findings(found: Sequence[Told]) -> Figure:
    """One row a finding: slow over fast in time (point: a process; band: the mean's 95 % interval), its evidence beside
    it."""
    figure, axes = new(11.5, 1.6 + 0.95 * max(1, len(found)))
    labels = [f"{t.finding.name}\n{t.finding.slow.words}\nagainst {t.finding.fast.words}" for t in found]
    for told, (_, height) in zip(found, rows(axes, labels).items(), strict=True):
        shade = colour("step") if told.holds else GREY
        spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(told.pairs))
        axes.scatter(told.pairs, height + spread, s=16, color=shade, alpha=0.5, linewidths=0)
        words = "void: other numbers" if told.wrong and not told.pairs else "not measured"
        if np.isfinite(told.ratio.value):
            if np.isfinite(told.ratio.low):
                axes.plot(
                    [told.ratio.low, told.ratio.high],
                    [height] * 2,
                    color=shade,
                    linewidth=9,
                    alpha=0.3,
                    solid_capstyle="butt",
                )
            axes.plot(told.ratio.value, height, "|", color="black", markersize=16, markeredgewidth=2)
            words = f"{told.ratio.words}, n = {told.ratio.n}\n{told.ms[0]:.3g} ms against {told.ms[1]:.3g} ms"
        axes.text(
            1.02, height, f"{words}\n{evidence(told)}", va="center", fontsize=9, transform=axes.get_yaxis_transform()
        )
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set(xscale="log", xlim=(0.8, max([2.0, *(1.15 * p for t in found for p in t.pairs)])))
    cut_off(axes, found)
    axes.set_xlabel(
        "time of the slow program over the fast one's, log scale\n"
        "(point: one process; bar: mean; band: its 95 % interval; arrow: it goes on)"
    )
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    plain_ticks(axes.xaxis)
    axes.tick_params(axis="y", labelsize=9)
    seen = [t.ratio.value for t in found if t.holds and np.isfinite(t.ratio.value)]
    said = f"up to {max(seen):.0f} times as long as another" if seen else "as long as another"
    headline(figure, f"For the same numbers one program of XLA's takes {said}")
    return figure
