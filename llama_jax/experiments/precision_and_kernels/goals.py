"""The goals that the kernels were built for, each beside what was measured and whether that reaches it.

A goal counts as reached only where the whole 95 % interval lies on its good side, as missed where the whole of it lies
on the other; between the two the data do not decide. What happens once a process (memory, compiling) has no interval
but its least and its most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llama_jax.bench.record import Trial
from llama_jax.bench.statistics import Ratio, Summary
from llama_jax.bench.wording import within
from llama_jax.experiments.precision_and_kernels import measure, reading, table
from llama_jax.experiments.precision_and_kernels.reading import Reading

REACHED, MISSED, UNDECIDED, ABSENT = "reached", "missed", "undecided", "not measured"
NAN = float("nan")
GEMV, FUSED, STEPPED = "loop+gemv", "loop+fused", "step+fused"
SHARE, MEMORY, DISTANCE, COMPILE_S, LOAD_S = 0.8, 2.0, 1.1, 15.0, 1.0


@dataclass(frozen=True)
class Goal:
    """about: what is to be reached. bound: by the value, from above (`least`) or below. value, low, high: as measured,
    n times.
    noise: the bound is equality, which anything but a value clearly on the wrong side reaches. unstable: the run was
    too unsteady to decide anything by it."""

    about: str
    bound: float
    least: bool
    value: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0
    unit: str = ""
    noise: bool = False
    unstable: bool = False

    @property
    def verdict(self) -> str:
        if not self.n or math.isnan(self.value):
            return ABSENT
        if math.isnan(self.low) or self.unstable:
            return UNDECIDED
        good, bad = (self.low, self.high) if self.least else (self.high, self.low)
        beyond = (lambda x: x >= self.bound) if self.least else (lambda x: x <= self.bound)
        if beyond(good) or (self.noise and beyond(bad)):
            return REACHED
        return UNDECIDED if beyond(bad) else MISSED

    @property
    def aim(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.bound:g}{self.unit}" + (", within noise" if self.noise else "")

    @property
    def measured(self) -> str:
        if self.verdict == ABSENT:
            return ""
        return f"{self.value:.3g}{self.unit}{within(self, '.3g')}"


def of_interval(
    about: str, bound: float, least: bool, found: Ratio | Summary | None, unit: str = "", noise: bool = False
) -> Goal:
    """A goal beside a ratio or a summary; None where there is neither."""
    if found is None or not found.n:
        return Goal(about, bound, least, unit=unit, noise=noise)
    value = found.value if isinstance(found, Ratio) else found.median
    unstable = isinstance(found, Ratio) and found.value > 0 and found.verdict == "unstable"
    return Goal(
        about=about,
        bound=bound,
        least=least,
        value=value,
        low=found.low,
        high=found.high,
        n=found.n,
        unit=unit,
        noise=noise,
        unstable=unstable,
    )


def of_worst(about: str, bound: float, values: Sequence[float], unit: str = "") -> Goal:
    """A goal from above that every value is to keep; the value is the worst."""
    if not len(values):
        return Goal(about, bound, False, unit=unit)
    return Goal(
        about=about,
        bound=bound,
        least=False,
        value=max(values),
        low=min(values),
        high=max(values),
        n=len(values),
        unit=unit,
    )


def judge(
    trials: Sequence[Trial],
    entries: dict[int, Sequence[dict]],
    readings: Sequence[Reading],
    notes: Sequence[dict],
    seed: int = 0,
    races: Sequence[dict] = (),
) -> list[Goal]:
    """Every goal. entries: context → `table.ladder`. notes: of the measuring processes. races: `same_file.races`."""
    return [*speeds(trials, entries, seed), *firsts(races), *bounds(entries, notes), *qualities(readings, seed)]


def speeds(trials: Sequence[Trial], entries: dict[int, Sequence[dict]], seed: int) -> list[Goal]:
    """Rates over llama.cpp's at the shortest context, of `loop+gemv` at the longest too."""
    short, long = min(entries), max(entries)

    def over(name: str, context: int, same_file: bool = True) -> tuple[str, Ratio | None]:
        other = table.rival(entries[context], same_file)
        kind = "mode of this file" if same_file else "quantisation of this model"
        about = (
            f"{name} over llama.cpp's fastest {kind}"
            + (f" ({other['name']})" if other else "")
            + f" at context {context}"
        )
        ran = other and any(e["name"] == name and e["decode"].n for e in entries[context])
        return about, table.ratio(trials, name, other["name"], context, seed) if ran else None

    def goal(name: str, context: int, bound: float, same_file: bool = True) -> Goal:
        about, found = over(name, context, same_file)
        return of_interval(about, bound, True, found, "x")

    found = [goal(GEMV, short, 1.3)]
    found += [goal(GEMV, long, 1.0)] if long > short else []
    return [*found, goal(FUSED, short, 2.5), goal(STEPPED, short, 2.0), goal(FUSED, short, 1.7, same_file=False)]


def firsts(races: Sequence[dict]) -> list[Goal]:
    """Time to first token over llama.cpp's, a goal a prompt length; in the order of `races`."""

    def about(race: dict) -> str:
        other = f" ({race['rival']})" if race["rival"] else ""
        return (
            f"{race['name']}'s first token over that of llama.cpp's fastest mode of this file{other} at"
            f" {race['tokens']} tokens"
        )

    return [of_interval(about(race), 1.0, False, race["ratio"], "x") for race in races]


def bounds(entries: dict[int, Sequence[dict]], notes: Sequence[dict]) -> list[Goal]:
    """The share of the bandwidth, memory, and the seconds until there are kernels."""
    here = {e["name"]: e for e in entries[min(entries)]}
    fused, other = here.get(FUSED), table.rival(list(here.values()), True)
    share = of_interval(
        f"{FUSED}: bytes read over the probed bandwidth at context {min(entries)}", SHARE, True, fused and fused["mbu"]
    )
    ours, theirs = (e["peak"] if e else [] for e in (fused, other))
    about = f"peak resident memory of {FUSED} over llama.cpp's" + (f" ({other['name']})" if other else "")
    seconds = {
        way: [note[measure.KERNELS]["seconds"] for note in notes if note.get(measure.KERNELS, {}).get("way") == way]
        for way in measure.WAYS
    }
    return [
        share,
        of_worst(about, MEMORY, [a / b for a in ours for b in theirs], "x"),
        of_worst("first use: kernels compiled into an empty cache", COMPILE_S, seconds["cold"], " s"),
        of_worst("later starts: kernels read from the cache", LOAD_S, seconds["cached"], " s"),
    ]


def qualities(readings: Sequence[Reading], seed: int) -> list[Goal]:
    """Distance, best tokens and perplexity against llama.cpp's on the same positions of both texts."""
    found = []
    for name in (FUSED, GEMV):
        over = {what: reading.over(readings, name, "llamacpp", what, seed) for what in ("kl", "top1", "ppl")}
        found.append(of_interval(f"KL from float32, {name} over llamacpp", DISTANCE, False, over["kl"], "x"))
        found.append(
            of_interval(f"top-1 agreement with float32, {name} over llamacpp", 1.0, True, over["top1"], "x", noise=True)
        )
        found.append(of_interval(f"perplexity, {name} over llamacpp", 1.0, False, over["ppl"], "x", noise=True))
    return found


def as_frame(goals: Sequence[Goal]):
    """The table for a notebook, a pandas.DataFrame."""
    import pandas as pd

    rows = [dict(goal=g.about, aim=g.aim, measured=g.measured, n=g.n, verdict=g.verdict) for g in goals]
    return pd.DataFrame(rows, columns=["goal", "aim", "measured", "n", "verdict"]).set_index("goal")


def by_verdict(goals: Sequence[Goal]) -> dict[str, list[Goal]]:
    return {verdict: [g for g in goals if g.verdict == verdict] for verdict in (REACHED, MISSED, UNDECIDED, ABSENT)}
