"""Medians, spreads, and ratios with intervals. See the README's "How to read the statistics"."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

RESAMPLES = 9999
NARROW = 0.02  # two subjects whose ratio lies this close to 1 are called equal
UNSTABLE = 0.10  # IQR over median


@dataclass(frozen=True)
class Summary:
    """Middle and spread of a sample; nothing dropped."""

    n: int
    median: float
    iqr: float
    low: float  # 95 % bootstrap interval of the median
    high: float

    @property
    def unstable(self) -> bool:
        return self.n > 1 and self.iqr > UNSTABLE * self.median


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of paired ratios with its 95 % interval, and what may be said of it."""

    value: float
    low: float
    high: float
    n: int

    @property
    def verdict(self) -> str:
        """faster, slower: the interval excludes 1. equal within 2 %: it lies there. inconclusive: anything else."""
        if self.n < 2:
            return "inconclusive"
        if self.low >= 1 - NARROW and self.high <= 1 + NARROW:
            return "equal within 2 %"
        if self.low <= 1 <= self.high:
            return "inconclusive"
        return "faster" if self.value > 1 else "slower"


def summarise(values: Sequence[float], seed: int = 0) -> Summary:
    """Median, IQR and the median's 95 % interval. An empty sample is all NaN."""
    values = np.asarray(values, float)
    if not len(values):
        return Summary(0, *[float("nan")] * 4)
    low, high = interval(values, np.median, seed)
    q1, q3 = np.percentile(values, [25, 75])
    return Summary(len(values), float(np.median(values)), float(q3 - q1), low, high)


def ratio(subject: Sequence[float], baseline: Sequence[float], seed: int = 0) -> Ratio:
    """subject over baseline of pairs measured in the same block: exp of the mean log-ratio, BCa interval.

    Efron 1987, https://doi.org/10.1080/01621459.1987.10478410, as scipy.stats.bootstrap implements it.
    """
    logs = np.log(np.asarray(subject, float)) - np.log(np.asarray(baseline, float))
    if not len(logs):
        return Ratio(*[float("nan")] * 3, 0)
    low, high = interval(logs, np.mean, seed)
    return Ratio(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)), len(logs))


def interval(values: np.ndarray, statistic, seed: int) -> tuple[float, float]:
    """95 % bootstrap interval: BCa, or the percentile method where BCa is not defined (ties, very small samples)."""
    if len(values) < 2:
        return float("nan"), float("nan")
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # BCa warns where it is not defined; the result says so too
            found = stats.bootstrap((values,), statistic, n_resamples=RESAMPLES, method=method, rng=np.random.default_rng(seed))
        low, high = map(float, found.confidence_interval)
        if np.isfinite([low, high]).all():
            return low, high
    return low, high


def percentiles(values: Sequence[float], at: Sequence[int] = (50, 95, 99)) -> dict[str, float | None]:
    """Percentiles by name (`p95`); None where the sample is too small to hold ten values beyond one."""
    values = np.asarray(values, float)
    return {f"p{p}": float(np.percentile(values, p)) if len(values) * (100 - p) / 100 >= 10 or (p == 50 and len(values)) else None
            for p in at}  # fmt: skip
