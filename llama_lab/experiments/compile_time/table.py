"""What compiling costs and when it pays, computed from the rows of `compiling` and `starts`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llama_lab.bench import intervals, statistics, summary
from llama_lab.bench.cold import Start
from llama_lab.bench.experiment import whole
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import bandwidths, within
from llama_lab.experiments.compile_time.measure import STAGES, Compilation

NAN, NEVER = float("nan"), float("inf")
Way = tuple[str, str]  # (placement, one of `starts.WAYS`)


def of_run(rows: Sequence[Compilation], run: str) -> list[Compilation]:
    """The rows of one run (depth, placement, slots), void ones left out."""
    return [r for r in whole(rows) if r.run.split()[0] == run and r.valid]


@dataclass(frozen=True)
class Slope:
    """A straight line through processes and its slope's 95% interval. n: processes."""

    slope: float
    low: float
    high: float
    n: int

    def words(self, digits: int = 0, unit: str = "ms") -> str:
        """`45 ms [40, 50]` of a slope in seconds."""
        middle = round(1e3 * self.slope, digits) + 0.0  # no minus zero
        return f"{middle:.{digits}f} {unit}{within(self, lambda seconds: f'{1e3 * seconds:.{digits}f}')}"


def slope(x: Sequence[float], y: Sequence[float]) -> Slope:
    """Least squares with Student's interval of the slope: none for two points, all NaN for fewer depths."""
    from scipy import stats

    if len(set(x)) < 2:
        return Slope(NAN, NAN, NAN, len(x))
    line = stats.linregress(x, y)
    half = stats.t.ppf(0.975, len(x) - 2) * line.stderr if len(x) > 2 else NAN
    return Slope(float(line.slope), float(line.slope - half), float(line.slope + half), len(x))


def per_layer(rows: Sequence[Compilation], layout: str, stage: str = "seconds") -> Slope:
    """Seconds that each layer adds to a stage (`trace_ns` …) or to all three, over the processes of the run `depth`."""
    mine = [r for r in of_run(rows, "depth") if r.placement == layout]
    seconds = [r.seconds if stage == "seconds" else getattr(r, stage) / 1e9 for r in mine]
    return slope([r.depth for r in mine], seconds)


def stage_table(rows: Sequence[Compilation]) -> list[dict]:
    """One entry per placement of the run `placement`, in milliseconds and medians: its stages, sizes and warm rate."""
    ordered = sorted(of_run(rows, "placement"), key=lambda r: (r.block, r.order))
    entries = []
    for name, mine in summary.grouped(ordered, "placement").items():
        stages = (*STAGES, "first_run")
        times = {f"{s} ms": float(np.median([getattr(r, f"{s}_ns") / 1e6 for r in mine])) for s in stages}
        size = {f"{k} MB": (getattr(mine[0], f"{k}_bytes") or NAN) / 1e6 for k in ("executable", "temp")}
        rate = float(np.median([r.rate for r in mine]))
        counts = dict(instructions=mine[0].instructions)
        entries.append({"placement": name, **times, **counts, **size, "tokens/s": rate, "processes": len(mine)})
    return entries


def recorded_words(meta: dict) -> str:
    """`recorded 2026-11-26, median bandwidth probe 54 GB/s`: two tables of one model may be of two days."""
    probes = bandwidths(meta)
    return f"recorded {meta['created'][:10]}" + (f", median bandwidth probe {probes[1]:.0f} GB/s" if probes else "")


def scanned_rates(rows: Sequence[Compilation]) -> dict[int, float]:
    """The scanned program's decode rate over the unrolled one's by depth, of the run `depth`, medians."""
    rates = summary.grouped([r for r in of_run(rows, "depth") if r.rate], lambda r: (r.depth, r.placement), "rate")
    both = sorted({depth for depth, _ in rates if {(depth, "step"), (depth, "step+scan")} <= rates.keys()})
    return {depth: float(np.median(rates[depth, "step+scan"]) / np.median(rates[depth, "step"])) for depth in both}


# Starts ---------------------------------------------------------------------------------------------------------------

PARTS = ("imports", "load weights", "trace", "lower", "compile (XLA) or read from cache", "read executables",
         "prefill and the rest")  # fmt: skip
COMPILING = PARTS[2:5]  # of a cold start


def of_start(trials: Sequence[Start], placement: str, way: str) -> dict[int, Start]:
    """Valid starts of a placement by block."""
    return {
        t.block: t
        for t in trials
        if t.placement == placement and t.phase == way and t.valid and t.to_first_ns is not None
    }


def parts(start: Start) -> dict[str, float]:
    """Seconds from process start to first token by PARTS; they add up to the whole."""
    bound, read = (0, start.bind_ns) if start.phase == "serialised" else (start.bind_ns, 0)
    compiling = (start.first_trace_ns, start.first_lower_ns, start.first_backend_ns)
    known = [start.imports_ns, start.load_ns + bound, *compiling, read]
    return {part: ns / 1e9 for part, ns in zip(PARTS, [*known, start.to_first_ns - sum(known)], strict=True)}


def start_ratio(trials: Sequence[Start], start: Way, other: Way, value: Callable, seed: int = 0) -> Ratio:
    """A time of starts, value(start), over that of others, paired by block: each start is a process."""
    above, below = (of_start(trials, *each) for each in (start, other))
    blocks = sorted(set(above) & set(below))
    sides = ([value(side[block]) for block in blocks] for side in (above, below))
    return statistics.of_times(statistics.ratio(*sides, seed))


# Break-even -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BreakEven:
    """Tokens after which one way of starting is ahead of another, start included, with an interval.

    0: ahead before the tokens that were measured are made; infinity: never. low, high: the least and the most that the
    95% intervals of the extra start cost and of the gain a token allow together, so that it holds at least 90% of the
    time.
    """

    tokens: float
    low: float
    high: float
    extra_s: float  # mean start cost more than the other's
    gain_s: float  # mean seconds gained a token
    n: int  # starts of the side that has fewer
    pairs: int  # warm pairs behind the gain

    @property
    def words(self) -> str:
        """`41 tokens [30, 55]`, `at once`, `never`."""
        if math.isnan(self.tokens):
            return "not measured"
        words = "at once" if self.tokens == 0 else "never" if self.tokens == NEVER else f"{self.tokens:.0f} tokens"
        return words + self.interval

    @property
    def interval(self) -> str:
        """` [30, 55]`; "" where there is none, or only one number."""
        if self.low == self.high:
            return ""
        return within(self, lambda tokens: "never" if tokens == NEVER else f"{tokens:.0f}")


def break_even(trials: Sequence[Start], ours: Way, other: Way, seed: int = 0) -> BreakEven:
    """Break-even of one way of starting against another.

    A start costs `Start.cost`, the first tokens of its request included; each further token costs the reciprocal of the
    warm rate. Gains are paired by block of the warm trials.
    """
    above, below = ([t.cost for t in of_start(trials, *start).values()] for start in (ours, other))
    rates = [summary.both_rates(trials, name) for name, _ in (ours, other)]
    pairs = sorted(set(rates[0]) & set(rates[1]))
    if not above or not below or not pairs:
        return BreakEven(*[NAN] * 5, min(len(above), len(below)), len(pairs))
    made = next(t.new_tokens for t in of_start(trials, *ours).values())
    gains = np.array([1 / rates[1][p] - 1 / rates[0][p] for p in pairs])
    extra, gain = float(np.mean(above) - np.mean(below)), float(gains.mean())
    extras = intervals.mean_interval([intervals.gather(np.array(side), None) for side in (above, below)], seed)
    gained = intervals.mean_interval([intervals.gather(gains, [process for process, _ in pairs])], seed)
    corners = [crossing(e, g, made) for e, g in itertools.product(extras, gained)]
    low, high = (NAN, NAN) if any(map(math.isnan, corners)) else (min(corners), max(corners))
    return BreakEven(crossing(extra, gain, made), low, high, extra, gain, min(len(above), len(below)), len(pairs))


def crossing(extra: float, gain: float, made: int) -> float:
    """Tokens at which a gain a token has paid `extra` seconds, which hold `made` tokens; 0 at once, or NEVER."""
    if math.isnan(extra) or math.isnan(gain):
        return NAN
    if extra <= 0:
        return 0.0 if gain >= 0 else NEVER
    return made + extra / gain if gain > 0 else NEVER
