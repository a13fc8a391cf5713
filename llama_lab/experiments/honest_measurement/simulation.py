"""The measurement itself, simulated: noise, drift and luck are known, so the claims of the statistics can be checked.

A trial's log time is log(true time) + drift of the machine + luck of its process + noise. The drift is one path over
the whole run, shared by all subjects and continuous within blocks. Two ways to measure in it:

ours   each block runs the subject once and the baseline twice, in random order; blocks are spread over fresh processes;
       statistics.ratio, judged against the A/A control
naive  all trials of the baseline, then all of the subject, each in one process; Welch's t interval of the log times, as
       many published comparisons are timed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from llama_lab.bench import intervals, statistics
from llama_lab.bench.statistics import DIFFERENT, Ratio, Verdict

COVERAGE = 0.93  # least share of 95 % intervals that must hold the true ratio
FALSE_POSITIVES = 0.06  # greatest share of runs in which two identical subjects may be called faster or slower
POWER = 0.85  # least share of runs in which the effect is called in its direction
RESAMPLES = 1999  # fewer than in a report: thousands of intervals are averaged here
SUBJECT, BASELINE, TWIN = range(3)


@dataclass(frozen=True)
class Scenario:
    """A machine and a plan. Standard deviations and changes are of log time, so 0.03 is about 3 %."""

    noise: float = 0.03  # sd of a trial
    tails: float = 4  # degrees of freedom of the noise, Student's t scaled to that sd; infinite: normal
    drift: float = 0.05  # about the change from end to end
    process_sd: float = 0.005  # luck of a subject in one process
    blocks: int = 20
    processes: int = 20
    effect: float = 0.03  # the subject is faster by this
    method: str = intervals.MEANS  # the bootstrap's

    @property
    def true(self) -> float:
        return 1 + self.effect


BASE = Scenario()
SCENARIOS = {
    "base": BASE,
    "base, BCa interval": replace(BASE, method="BCa"),
    **{f"{n} processes" if n > 1 else "one process": replace(BASE, processes=n) for n in (10, 5, 4, 2, 1)},
    "no drift": replace(BASE, drift=0.0),
    "noise 10 %": replace(BASE, noise=0.10),  # the pairs scatter
    "process luck 1 %": replace(BASE, process_sd=0.01),
    "process luck 1 %, 10 processes": replace(BASE, process_sd=0.01, processes=10),
    "normal tails": replace(BASE, tails=math.inf),
    "10 blocks": replace(BASE, blocks=10, processes=10),
}


@dataclass(frozen=True)
class Result:
    """Rates over simulated runs. half_width: median, of the log-ratio's interval."""

    protocol: str
    runs: int
    coverage: float  # how often the interval holds the true ratio
    aa_false_positive_rate: float  # two identical subjects called faster or slower
    power: float  # the effect called in its direction
    half_width: float


def simulate(scenario: Scenario, runs: int, seed: int = 0, protocol: str = "ours") -> Result:
    """Measure `runs` times with the scenario's effect and as often with none. protocol: ours or naive."""
    measure, rng = {"ours": ours, "naive": naive}[protocol], np.random.default_rng(seed)
    other = [measure(scenario, rng) for _ in range(runs)]
    same = [measure(replace(scenario, effect=0.0), rng) for _ in range(runs)]
    right = Verdict.FASTER if scenario.effect > 0 else Verdict.SLOWER
    return Result(
        protocol,
        runs,
        coverage=share(r.low <= scenario.true <= r.high for r in other),
        aa_false_positive_rate=share(r.verdict in DIFFERENT for r in same),
        power=share(r.verdict == right for r in other),
        half_width=float(np.median([math.log(r.high / r.low) / 2 for r in other])),
    )


def ours(scenario: Scenario, rng: np.random.Generator) -> Ratio:
    """One run as the harness measures it. The baseline's twin shares its process, and so its luck."""
    shape = (scenario.blocks, 3)
    order = rng.permuted(np.tile(np.arange(3), (scenario.blocks, 1)), axis=1)
    drifted = np.take_along_axis(drift(scenario, math.prod(shape), rng).reshape(shape), order, 1)
    process = np.arange(scenario.blocks) * scenario.processes // scenario.blocks
    luck = rng.normal(0, scenario.process_sd, (scenario.processes, 2))[process][:, [SUBJECT, BASELINE, BASELINE]]
    rates = np.exp(-(drifted + luck + noise(scenario, shape, rng))) * [scenario.true, 1, 1]
    subject, baseline, twin = rates.T
    control = statistics.ratio(twin, baseline, clusters=process, resamples=RESAMPLES, method=scenario.method)
    both = statistics.pair_baseline(baseline, twin)
    measured = statistics.ratio(subject, both, clusters=process, resamples=RESAMPLES, method=scenario.method)
    return statistics.with_floor(measured, control)


def naive(scenario: Scenario, rng: np.random.Generator) -> Ratio:
    """One run in the common way: one subject after the other, as many trials of each as there are blocks."""
    n = scenario.blocks
    luck = np.repeat(rng.normal(0, scenario.process_sd, 2), n)
    logs = -(drift(scenario, 2 * n, rng) + luck + noise(scenario, (2 * n,), rng))
    return statistics.welch(np.exp(logs[n:]) * scenario.true, np.exp(logs[:n]))


def noise(scenario: Scenario, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Independent, of the scenario's sd and tails."""
    df = scenario.tails
    if math.isinf(df):
        return rng.normal(0, scenario.noise, shape)
    return rng.standard_t(df, shape) * scenario.noise / math.sqrt(df / (df - 2))


def drift(scenario: Scenario, trials: int, rng: np.random.Generator) -> np.ndarray:
    """Log-time path [trials]: a trend up or down by `drift`, a wave of half its height, a random walk half as long."""
    at = np.linspace(0, 1, trials)
    wave = np.sin(2 * math.pi * (at + rng.random())) / 2
    walk = rng.normal(size=trials).cumsum() / math.sqrt(trials) / 2
    return scenario.drift * (rng.choice([-1, 1]) * at + wave + walk)


def share(answers) -> float:
    return float(np.mean(list(answers)))


def table(runs: int, seed: int = 0) -> list[dict]:
    """Every scenario measured both ways, one row each: its name, the rates, the settings."""
    return [
        {"scenario": name, **asdict(simulate(scenario, runs, seed, protocol)), **asdict(scenario)}
        for name, scenario in SCENARIOS.items()
        for protocol in ("ours", "naive")
    ]


def shortfalls(result: Result) -> list[str]:
    """The required rates of the base scenario that a result misses, one line each; empty if it meets them all."""
    held, different, seen = result.coverage, result.aa_false_positive_rate, result.power
    required = {
        f"coverage: {held:.1%} of intervals hold the true ratio, {COVERAGE:.0%} must": held >= COVERAGE,
        f"A/A: {different:.1%} of identical subjects are called different, {FALSE_POSITIVES:.0%} may be": (
            different <= FALSE_POSITIVES
        ),
        f"power: the effect is found in {seen:.1%} of runs, {POWER:.0%} are required": seen >= POWER,
    }
    return [line for line, met in required.items() if not met]
