"""Medians, ratios with intervals and verdicts, drift. See docs/statistics.md.

They are checked on simulated measurements whose truth is known, by the experiment on honest measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from llama_lab.bench.intervals import Labels, Values, gather, mean_interval, median_interval, processes
from llama_lab.bench.wording import within

NARROW = 0.02  # two subjects whose ratio lies this close to 1 are called equal
UNSTABLE = 0.10  # IQR over median, or of log-ratios
DRIFTED = 0.05  # change from the first to the last value of a run that is worth a warning


class Verdict(StrEnum):
    """Verdict about the first subject of a ratio, compared with the second."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal within 2%"
    UNDECIDED = "undecided"


DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


@dataclass(frozen=True)
class Summary:
    """Middle and spread of a sample; nothing dropped."""

    n: int
    median: float
    iqr: float
    low: float  # 95% bootstrap interval of the median
    high: float

    @property
    def unstable(self) -> bool:
        return self.n > 1 and self.iqr > UNSTABLE * self.median


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of ratios with its 95% interval, and its verdict, by interval, floor and n alone.

    Equal within 2%: the interval and the A/A control's ratio lie within a factor of 1.02. Faster or slower: the
    interval excludes 1, and the ratio is further from 1 than the control's, whether or not the control's interval
    holds 1. Anything else, or fewer than two pairs, is undecided. How far the pairs scatter is said beside a verdict.

    It is about the numerator's subject. A ratio is one of rates, where above 1 is faster, unless `times` is set.
    """

    value: float
    low: float
    high: float
    n: int  # pairs
    clusters: int = 1  # processes that were resampled as wholes; 1 if it was the pairs
    spread: float = 0.0  # IQR of the pairs' log-ratios
    floor: float = 0.0  # |log| of the A/A control's ratio, 0 if there is none
    times: bool = False  # a ratio of times: below 1 the subject is faster

    @property
    def excludes_one(self) -> bool:
        return self.low > 1 or self.high < 1

    @property
    def words(self) -> str:
        """`5.21x [4.83, 5.62]`, or without an interval where one pair is all there is."""
        return f"{self.value:.2f}x{within(self)}"

    @property
    def effect(self) -> float:
        return abs(math.log(self.value))

    @property
    def verdict(self) -> Verdict:
        if self.n < 2:
            return Verdict.UNDECIDED
        if self.low * (1 + NARROW) >= 1 and self.high <= 1 + NARROW and self.floor <= math.log1p(NARROW):
            return Verdict.EQUAL
        if self.excludes_one and self.effect > self.floor:
            return Verdict.FASTER if (self.value > 1) != self.times else Verdict.SLOWER
        return Verdict.UNDECIDED

    @property
    def scattered(self) -> bool:
        return self.spread > max(UNSTABLE, self.effect)  # the middle half of the pairs spans more than either

    @property
    def aside(self) -> str:
        """What is said after a verdict: ` (pairs scatter by 14%)`; "" where they do not."""
        return f" (pairs scatter by {100 * math.expm1(self.spread):.0f}%)" * self.scattered

    @property
    def judged(self) -> str:
        """`faster`, or `faster (pairs scatter by 14%)`."""
        return self.verdict + self.aside


@dataclass(frozen=True)
class Mean:
    """A mean with its 95% interval. n: values."""

    value: float
    low: float
    high: float
    n: int


NO_RATIO = Ratio(float("nan"), float("nan"), float("nan"), 0)


@dataclass(frozen=True)
class Drift:
    """Relative change from the first to the last value of a run, and whether it is more than noise and than 5%."""

    change: float
    significant: bool


def summarise(values: Values, seed: int = 0, clusters: Labels = None) -> Summary:
    """Median, IQR and the median's 95% interval: of whole processes where there are several, and where there are fewer
    than six of what counts, of either, Student's t. An empty sample is all NaN."""
    values = np.asarray(values, float)
    if not len(values):
        return Summary(0, *[float("nan")] * 4)
    return Summary(len(values), float(np.median(values)), iqr(values), *median_interval(values, clusters, seed))


def iqr(values: Values) -> float:
    """Interquartile range."""
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def mean(values: Values, seed: int = 0, clusters: Labels = None) -> Mean:
    """The mean of values, whole clusters resampled for its interval; NaN of none."""
    values = np.asarray(values, float)
    if not len(values):
        return Mean(*[float("nan")] * 3, 0)
    return Mean(float(values.mean()), *mean_interval([gather(values, clusters)], seed), len(values))


def ratio(subject: Values, baseline: Values, seed: int = 0, clusters: Labels = None, **how) -> Ratio:
    """subject over baseline of pairs measured in the same block: exp of the mean log-ratio, with its interval.

    clusters: the process of each pair. Pairs of one process share its luck, so whole processes are resampled where
    there are several, and the pairs where there is one: its luck is then not in the interval. how: resamples and
    method, as `mean_interval` takes them.
    """
    logs = np.log(np.asarray(subject, float)) - np.log(np.asarray(baseline, float))
    if not len(logs):
        return NO_RATIO
    low, high = mean_interval([gather(logs, clusters)], seed, **how)
    return Ratio(*map(float, np.exp([logs.mean(), low, high])), len(logs), processes(clusters), iqr(logs))


def unpaired_ratio(
    subject: Values, baseline: Values, seed: int = 0, clusters: tuple[Labels, Labels] = (None, None)
) -> Ratio:
    """subject over baseline of two samples that were not measured together: ratio of geometric means, with its
    interval.

    clusters: the process of each value, of either sample. n and clusters are those of the weaker sample.
    """
    logs = [np.log(np.asarray(values, float)) for values in (subject, baseline)]
    if not all(map(len, logs)):
        return NO_RATIO
    low, high = mean_interval([gather(*pair) for pair in zip(logs, clusters, strict=True)], seed)
    point = logs[0].mean() - logs[1].mean()
    return Ratio(*map(float, np.exp([point, low, high])), min(map(len, logs)), min(map(processes, clusters)))


def welch(subject: Values, baseline: Values) -> Ratio:
    """The same of unpaired samples by Welch's interval of the difference of mean logs, which most claims rest on."""
    from scipy import stats

    a, b = np.log(subject), np.log(baseline)
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Ratio(*map(float, np.exp([a.mean() - b.mean(), low, high])), len(a))


def of_times(ratio: Ratio) -> Ratio:
    """The same ratio, said to be one of times."""
    return replace(ratio, times=True)


def with_floor(measured: Ratio, control: Ratio) -> Ratio:
    """The ratio, to be judged against its run's A/A control (the baseline's second run over its first)."""
    return replace(measured, floor=control.effect) if control.n > 1 else measured


def pair_baseline(first: Values, again: Values) -> np.ndarray:
    """The denominator of a block's pairs: the geometric mean of the baseline's two runs [n], or of the one not NaN."""
    return np.exp(np.nanmean(np.log([first, again]), axis=0))


def more_blocks(measured: Ratio) -> int | None:
    """Blocks still needed for a verdict, if half-width and floor shrink as 1/sqrt(n) and the ratio stays; 0 when it has
    one. None for fewer than two pairs.

    The cheaper of two ends: an interval that excludes 1 and a floor below the effect, or both within 2% of 1.
    """
    if measured.n < 2 or not math.isfinite(measured.high):
        return None
    if measured.verdict != Verdict.UNDECIDED:
        return 0
    half, narrow = math.log(measured.high / measured.low) / 2, math.log1p(NARROW)
    ends = [(half, narrow - measured.effect, narrow), (half, measured.effect, measured.effect)]
    shrink = min(max(half / room, measured.floor / bar) for half, room, bar in ends if room > 0)
    return max(1, math.ceil(measured.n * shrink**2) - measured.n)


def drift(values: Values) -> Drift:
    """Theil–Sen slope of the log values, in the order they were measured, over the whole run; NaN for fewer than four
    values.

    Sen 1968, https://doi.org/10.1080/01621459.1968.10480934, as scipy.stats.theilslopes implements it.
    """
    from scipy import stats

    if len(values) < 4:
        return Drift(float("nan"), False)
    slope, _, low, high = stats.theilslopes(np.log(np.asarray(values, float)), alpha=0.95)
    change = float(np.expm1(slope * (len(values) - 1)))
    return Drift(change, bool((low > 0 or high < 0) and abs(change) > DRIFTED))


def percentiles(values: Values, at: Sequence[int] = (50, 95, 99)) -> dict[str, float | None]:
    """Percentiles by name (`p95`); None if the sample is too small to hold ten values beyond one."""
    values = np.asarray(values, float)
    return {f"p{p}": float(np.percentile(values, p)) if len(values) >= enough(p) else None for p in at}


def percentile_note(n: int, at: Sequence[int] = (50, 95, 99)) -> str:
    """Why some of `percentiles` are None, such as "p99 needs 1,000 values, there are 245"; empty when none is."""
    missing = " and ".join(f"p{p} needs {enough(p):,}" for p in at if n < enough(p))
    return f"{missing} values, there are {n:,}" if missing else ""


def enough(p: int) -> int:
    """Values that hold ten beyond percentile p; the median is given from one on."""
    return 1 if p == 50 else -(-1000 // (100 - p))
