"""What the rows of `workers` say: tokens/s by engine, what a unit costs, how large one should be, and what a fleet of
workers that were never here would make of such times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, statistics, summary
from llama_lab.bench.statistics import Summary
from llama_lab.bench.wording import within
from llama_lab.experiments.activation_extraction.simulation import Fleet, simulate, useful
from llama_lab.experiments.activation_extraction.table import over_base
from llama_lab.experiments.activation_extraction.workers import CHILDREN, ONE, OVERHEAD, RAY, SCALING, UNIT, Run

SUBJECTS = (ONE, CHILDREN, RAY)
BELOW = 0.02  # share of a unit's time that its overhead may be
FLEET = (1, 3, 10, 30, 100, 300, 1000)  # workers that are simulated
RATES = {"no failures": 0.0, "one failure a worker in 8 hours": 1 / 8, "one failure a worker an hour": 1.0}  # an hour
FLEET_UNITS, FLEET_SEEDS = 5_000, 3


def scaled(rows: Sequence[Run], seed: int = 0) -> list[dict]:
    """`over_base` of each engine and number of workers over one process, which is the first."""
    rows = [row for row in rows if row.run == SCALING and row.valid]
    rows = sorted(rows, key=lambda row: (SUBJECTS.index(row.subject), row.workers))
    return over_base(rows, ("subject", "workers"), [row for row in rows if row.subject == ONE], seed)


def overheads(rows: Sequence[Run], seed: int = 0) -> dict[str, Summary]:
    """Engine → seconds of a worker that a unit costs beside its tokens: in each block the slope of a run's seconds over
    its number of units, times its workers."""
    rows, costs = [row for row in rows if row.run == OVERHEAD and row.valid], {}
    for subject in SUBJECTS:
        slopes = []
        for block in sorted({row.block for row in rows}):
            mine = [row for row in rows if (row.subject, row.block) == (subject, block)]
            if len({row.units for row in mine}) > 1:
                slope = np.polyfit([row.units for row in mine], [row.wall_ns / 1e9 for row in mine], 1)[0]
                slopes.append(float(slope) * mine[0].workers)
        if slopes:
            costs[subject] = statistics.summarise(slopes, seed)
    return costs


def of_one(engines: Sequence[dict]) -> float:
    """Median tokens/s of one process; 0 if no run of it counts."""
    return next((e["rate"].median for e in engines if e["subject"] == ONE), 0.0)


def milliseconds(cost: Summary) -> str:
    """`2.3 ms [2.0, 2.9]` of seconds."""
    return f"{1e3 * cost.median:.1f} ms{within(cost, lambda s: f'{1e3 * s:.1f}')}"


def smallest(overhead: float, rate: float, below: float = BELOW) -> float:
    """Tokens of a unit from which on its overhead is no more than that share of its time; 0 if there is none."""
    return max(0.0, overhead) * (1 / below - 1) * rate


def starts(rows: Sequence[Run]) -> dict[tuple[str, int], list[float]]:
    """(engine, workers) → seconds of each command beside its work: Python, the engine, weights, compiling, leaving."""
    good = [row for row in rows if row.run == SCALING and row.valid]
    return summary.grouped(good, lambda row: (row.subject, row.workers), lambda row: row.start_ns / 1e9)


def fleets(rows: Sequence[Run], seed: int = 0) -> list[dict]:
    """Simulated: {failures: words, workers, shares: useful share of the workers' time in each seed}; none where no
    units or starts were measured. A failed worker loads as long as one that starts."""
    engine = RAY if any(row.subject == RAY for row in rows) else ONE
    begun = [value for (subject, _), values in starts(rows).items() if subject == engine for value in values]
    spent = [row.wall_ns / 1e9 for row in rows if row.run == UNIT and row.valid]  # from commit to commit
    if not begun or not spent:
        return []
    cost = overheads(rows, seed).get(engine)
    overhead, entries = max(0.0, cost.median) if cost else 0.0, []
    for words, rate in RATES.items():
        for workers in FLEET:
            fleet = Fleet(workers, FLEET_UNITS, spent, begun, overhead, rate / 3600)
            shares = [useful(fleet, simulate(fleet, seed + i)) for i in range(FLEET_SEEDS)]
            entries.append(dict(failures=words, workers=workers, shares=shares))
    return entries


def simulated(entries: Sequence[dict]) -> str:
    """How many runs stand behind each share of `fleets`, and how far they differ."""
    if not entries:
        return "No fleet was simulated: no units or starts were measured."
    spread = max(max(e["shares"]) - min(e["shares"]) for e in entries)
    seeds = len(entries[0]["shares"])
    return f"SIMULATED: each share is the median of {seeds} runs, which differ by up to {spread:.2f}."


def with_costs(rows: Sequence[Run], seed: int = 0) -> list[dict]:
    """The entries of `scaled`, each with {start: median seconds of its commands beside their work, unit: of
    `overheads`, or None}."""
    began, costs = starts(rows), overheads(rows, seed)
    return [
        e | dict(start=float(np.median(began[e["subject"], e["workers"]])), unit=costs.get(e["subject"]))
        for e in scaled(rows, seed)
    ]


COLUMNS = frames.Columns(
    {
        "engine": "subject",
        "workers": "workers",
        "tokens/s": lambda e: round(e["rate"].median),
        "x one process": lambda e: e["ratio"].words if e["ratio"].n else "",
        "n": "rate.n",
        "start s": "start",
        "a unit ms": lambda e: 1e3 * e["unit"].median if e["unit"] else float("nan"),
    },
    digits=1,
)
