"""Charts of several workers: measured here, and simulated for more than there are here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.experiments.activation_extraction import workers_table as table
from llama_lab.experiments.activation_extraction.workers import CHILDREN, ONE, RAY, Run
from llama_lab.figures import notes
from llama_lab.figures.labels import labelled, readable
from llama_lab.figures.style import GREY, LIMIT_COLOUR, OTHERS, headline, new, styled

SHADES = dict(zip((ONE, CHILDREN, RAY), OTHERS, strict=False))
SEEN = 0.01  # of the workers' time: a smaller difference is none that is seen
FAILING = dict(zip(table.RATES, OTHERS, strict=False))


@styled
def workers(rows: Sequence[Run], seed: int = 0) -> Figure:
    """Left: tokens/s by number of workers, each run a point. Right: the share of a unit's time that is overhead by the
    tokens in it."""
    figure, (left, right) = new(12.5, 4.6, columns=2)
    engines = table.scaled(rows, seed)
    rates(left, engines)
    shares(right, rows, engines, seed)
    headline(figure, rates_title(engines))
    return figure


def rates(axes, engines: Sequence[dict]) -> None:
    if not engines:
        return notes.bare(axes, "tokens/s by workers: not measured")
    marks = []
    for e in engines:
        shade, rate = SHADES[e["subject"]], e["rate"].median
        axes.scatter([e["workers"]] * len(e["values"]), e["values"], s=22, color=shade, alpha=0.6, linewidths=0)
        words = f"{e['subject']}: {rate:,.0f}"
        words += f", {e['ratio'].words}" if e["subject"] != ONE and e["ratio"].n else ""
        marks.append((words, e["workers"], rate, shade))
    counts = sorted({e["workers"] for e in engines})
    base = engines[0]
    proportion = counts, [base["rate"].median * n / base["workers"] for n in counts]
    axes.plot(*proportion, color=GREY, linestyle="--", linewidth=1)
    axes.set_xticks(counts)
    axes.set_xlim(counts[0] - 0.4, counts[-1] + 1.2)
    axes.set_ylim(0, 1.3 * max(max(e["values"]) for e in engines))
    meaning = f"(point: one run, n = {base['rate'].n};\ndashed: in proportion; x: over one process)"
    axes.set_xlabel(f"workers on the same cores {meaning}")
    axes.set_ylabel("tokens/s")
    labelled(axes, marks, [proportion])


def rates_title(engines: Sequence[dict]) -> str:
    """What the most workers make of one process."""
    if not engines:
        return "Several workers were not measured here"
    most, best = max(e["workers"] for e in engines), max(engines, key=lambda e: e["rate"].median)
    if most == 1 or not best["ratio"].n:
        return "One worker was measured, and nobody beside it"
    top = max((e for e in engines if e["workers"] == most), key=lambda e: e["rate"].median)
    return f"{most} {top['subject']} on the same cores: {top['ratio'].value:.2f}x of one process"


def shares(axes, rows: Sequence[Run], engines: Sequence[dict], seed: int) -> None:
    costs, rate = table.overheads(rows, seed), table.of_one(engines)
    if not costs or not rate:
        return notes.bare(axes, "overhead of a unit: not measured")
    tokens = np.geomspace(30, 100_000, 60)
    for subject, cost in costs.items():
        low, line, high = (100 * table.share(max(0.0, s), tokens, rate) for s in (cost.low, cost.median, cost.high))
        words = f"{subject}: {table.milliseconds(cost)} a unit"
        axes.plot(tokens, line, color=SHADES[subject], linewidth=1.8, label=words)
        if np.isfinite(cost.low):
            axes.fill_between(tokens, low, high, color=SHADES[subject], alpha=0.15, linewidth=0)
    axes.axhline(100 * table.BELOW, color=LIMIT_COLOUR, linestyle="--", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(tokens[0], tokens[-1])
    axes.set_ylim(0.05, 100)
    readable(axes.xaxis, axes.yaxis)
    n = min(cost.n for cost in costs.values())
    most = max(table.smallest(c.median, rate) for c in costs.values())
    axes.set_xlabel(
        f"tokens of a unit, log scale (from a small model's slope of seconds over units, n = {n} blocks;\n"
        f"band: 95 % interval; tokens at {rate:,.0f} a second; dashed: {100 * table.BELOW:.0f} %)"
    )
    axes.set_ylabel("overhead, % of a unit's time")
    size = 10 ** max(0, len(str(int(most))) - 2)  # rounded up to two figures
    axes.set_title(f"Units of {int(-(-most // size) * size):,} tokens or more keep it below 2 %", fontsize=12)
    axes.legend(fontsize=9.5, loc="upper right")


@styled
def simulated(fleets: Sequence[dict]) -> Figure:
    """Useful share of the workers' time by their number, for several rates of failure: simulated from times that were
    measured here. fleets: `table.fleets`."""
    figure, axes = new(9, 4.8)
    headline(figure, simulated_title(fleets))
    if not fleets:
        notes.bare(axes, "nothing to simulate from: no run of one process was measured")
        return figure
    marks = []
    for words, shade in FAILING.items():
        mine = [e for e in fleets if e["failures"] == words]
        counts = [e["workers"] for e in mine]
        low, middles, high = ([100 * float(of(e["shares"])) for e in mine] for of in (min, np.median, max))
        axes.plot(counts, middles, color=shade, marker="o", markersize=4, linewidth=1.6)
        axes.fill_between(counts, low, high, color=shade, alpha=0.15, linewidth=0)
        marks.append((f"{words}: {middles[-1]:.0f} %", counts[-1], middles[-1], shade))
    axes.set_xscale("log")
    axes.set_xlim(0.9, 1000 * 12)
    axes.set_ylim(0, 108)
    axes.set_xticks(table.FLEET, [f"{n:,}" for n in table.FLEET])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(
        f"workers, log scale (SIMULATED: {table.FLEET_UNITS:,} units; durations, starts and overhead drawn from those\n"
        f"measured here, failure rates assumed; median and range of {table.FLEET_SEEDS} seeds)"
    )
    axes.set_ylabel("useful share of the workers' time, %")
    labelled(axes, marks)
    return figure


def simulated_title(fleets: Sequence[dict]) -> str:
    """What of the most workers' time is useful, without and with failures."""
    if not fleets:
        return "A fleet of workers is not simulated here"
    most = max(e["workers"] for e in fleets)
    ends = [float(np.median(e["shares"])) for e in fleets if e["workers"] == most]
    alike = abs(ends[0] - ends[-1]) < SEEN
    failing = ", whether workers fail or not" if alike else f", {100 * ends[-1]:.0f} % if each fails hourly"
    return f"Simulated: of {most:,} workers' time {100 * ends[0]:.0f} % is useful{failing}"
