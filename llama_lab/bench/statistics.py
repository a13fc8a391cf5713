"""Medians, ratios with intervals and verdicts, drift. See docs/statistics.md.

They are checked on simulated measurements whose truth is known, by the experiment on honest measurement.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_lab.bench.numbers import within

# scipy.stats is imported where it is used: it takes most of a second, and measured processes never need it.
RESAMPLES = 9999
NARROW = 0.02  # two subjects whose ratio lies this close to 1 are called equal
UNSTABLE = 0.10  # IQR over median
DRIFTED = 0.05  # change from the first to the last value of a run that is worth a warning
# how means are bootstrapped; BCa, at the same level, covers less, as those simulations say
MEANS = "percentile"
FEWEST = (
    6  # a bootstrap of n units spans their range, which holds the mean with at most 1 - 2^(1-n): below six never 95 %
)

Values = Sequence[float]
Labels = Sequence[Hashable] | None  # the process of each value


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
    """Geometric mean of ratios with its 95 % interval, and what may be said of it.

    Faster or slower: the interval excludes 1 and the effect is larger than what the A/A control shows between the
    baseline and itself; equal within 2 %: the interval lies there. Unstable, before any of these: the pairs spread by
    more than 10 % and by more than the effect, or the control itself is different by as much as the effect. Anything
    else is inconclusive.
    """

    value: float
    low: float
    high: float
    n: int  # pairs
    clusters: int = 1  # processes that were resampled as wholes; 1 if it was the pairs
    spread: float = 0.0  # IQR of the pairs' log-ratios
    floor: float = 0.0  # |log| of the A/A control's ratio, 0 where there is none
    control_differs: bool = False  # the control's interval excludes 1, and its ratio is not near 1

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
    def verdict(self) -> str:
        if self.n < 2:
            return "inconclusive"
        if max(UNSTABLE, self.effect) < self.spread or (self.control_differs and self.floor >= self.effect):
            return "unstable"
        if self.low >= 1 - NARROW and self.high <= 1 + NARROW:
            return "equal within 2 %"
        if self.excludes_one and self.effect > self.floor:
            return "faster" if self.value > 1 else "slower"
        return "inconclusive"


@dataclass(frozen=True)
class Drift:
    """Relative change from the first to the last value of a run, and whether it is more than noise and than 5 %."""

    change: float
    significant: bool


def summarise(values: Values, seed: int = 0, clusters: Labels = None) -> Summary:
    """Median, IQR and the median's 95 % interval: of whole processes where there are several, and where there are fewer
    than six of what counts, of either, Student's t. An empty sample is all NaN."""
    values = np.asarray(values, float)
    if not len(values):
        return Summary(0, *[float("nan")] * 4)
    several = processes(clusters) > 1
    low, high = median_interval(values, clusters, seed) if several else interval(values, np.median, seed)
    return Summary(len(values), float(np.median(values)), iqr(values), low, high)


def iqr(values: Values) -> float:
    """Interquartile range."""
    low, high = np.percentile(values, [25, 75])
    return float(high - low)


def ratio(
    subject: Values, baseline: Values, seed=0, clusters: Labels = None, resamples=RESAMPLES, method=MEANS
) -> Ratio:
    """subject over baseline of pairs measured in the same block: exp of the mean log-ratio, with its interval.

    clusters: the process of each pair. Pairs of one process share its luck, so whole processes are resampled where
    there are several, and the pairs where there is one: its luck is then not in the interval. Method: `mean_interval`.
    """
    logs = np.log(np.asarray(subject, float)) - np.log(np.asarray(baseline, float))
    if not len(logs):
        return Ratio(*[float("nan")] * 3, 0)
    low, high = mean_interval([gather(logs, clusters)], seed, resamples, method)
    return Ratio(*map(float, np.exp([logs.mean(), low, high])), len(logs), processes(clusters), iqr(logs))


def unpaired_ratio(
    subject: Values, baseline: Values, seed: int = 0, clusters: tuple[Labels, Labels] = (None, None)
) -> Ratio:
    """subject over baseline of two samples that were not measured together: ratio of geometric means, with its
    interval.

    clusters: the process of each value, of either sample. n, clusters and spread are those of the weaker sample.
    """
    logs = [np.log(np.asarray(values, float)) for values in (subject, baseline)]
    if not all(map(len, logs)):
        return Ratio(*[float("nan")] * 3, 0)
    low, high = mean_interval([gather(*pair) for pair in zip(logs, clusters, strict=True)], seed)
    point = logs[0].mean() - logs[1].mean()
    return Ratio(
        *map(float, np.exp([point, low, high])), min(map(len, logs)), min(map(processes, clusters)), max(map(iqr, logs))
    )


def welch(subject: Values, baseline: Values) -> Ratio:
    """subject over baseline as unpaired samples: Welch's 95 % interval of the difference of mean logs. What most claims
    rest on."""
    from scipy import stats

    a, b = np.log(subject), np.log(baseline)
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Ratio(*map(float, np.exp([a.mean() - b.mean(), low, high])), len(a))


def with_floor(found: Ratio, control: Ratio) -> Ratio:
    """The ratio, to be judged against its run's A/A control (the baseline's second run over its first)."""
    if control.n < 2:
        return found
    differs = control.excludes_one and abs(control.value - 1) > NARROW
    return replace(found, floor=control.effect, control_differs=differs)


def pair_baseline(first: Values, again: Values) -> np.ndarray:
    """The denominator of a block's pairs: the geometric mean of the baseline's two runs there [n].

    It halves the denominator's variance at no cost, as the control is run anyway. Where one is void (NaN), the other
    stands.
    """
    return np.exp(np.nanmean(np.log([first, again]), axis=0))


def more_blocks(found: Ratio) -> int | None:
    """Blocks still needed for a verdict, if half-width and floor shrink as 1/sqrt(n) and the ratio stays; 0 when it has
    one.

    The cheaper of two ends: an interval that excludes 1 (and a floor below the effect), or one within 2 % of 1. None
    for fewer than two pairs. For an unstable ratio it is the least: the noise or the control must calm down as well.
    """
    if found.n < 2 or not math.isfinite(found.high):
        return None
    if found.verdict not in ("inconclusive", "unstable"):
        return 0
    half = math.log(found.high / found.low) / 2
    ends = [(max(half, found.floor), found.effect), (half, math.log1p(NARROW) - found.effect)]
    needed = min(math.ceil(found.n * (bar / room) ** 2) for bar, room in ends if room > 0)
    return max(1, needed - found.n)


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


def processes(clusters: Labels) -> int:
    return len(set(clusters)) if clusters is not None else 1


def gather(logs: np.ndarray, clusters: Labels) -> np.ndarray:
    """What is resampled: sum and count [units 2] of each process, or of each value where there are not several
    processes."""
    labels = list(clusters) if processes(clusters) > 1 else range(len(logs))
    place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    units = np.zeros((len(place), 2))
    np.add.at(units, [place[label] for label in labels], np.stack([logs, np.ones(len(logs))], 1))
    return units


def mean_interval(samples: Sequence[np.ndarray], seed: int, resamples=RESAMPLES, method=MEANS) -> tuple[float, float]:
    """95 % interval of a mean, or of the first sample's mean less the second's, from what `gather` gives for each.

    Percentile bootstrap of whole units at the level that Student's t asks of so few (two samples count as the smaller
    one). Below six units Student's t itself, as no bootstrap reaches 95 % there.
    """
    fewest = min(map(len, samples))
    if fewest < 2:
        return float("nan"), float("nan")
    if fewest < FEWEST:
        return student(samples)

    def difference(*picked, axis=-1):  # takes unit numbers, so that sums and counts stay together
        means = [units[i, 0].sum(axis) / units[i, 1].sum(axis) for units, i in zip(samples, picked, strict=True)]
        return means[0] - sum(means[1:])

    return bootstrap(
        [np.arange(len(units)) for units in samples], difference, seed, expanded_level(fewest), resamples, method
    )


def expanded_level(n: int) -> float:
    """The nominal level at which a percentile bootstrap of n units is as wide as Student's t at 95 %.

    Hesterberg 2015, "What Teachers Should Know About the Bootstrap", https://doi.org/10.1080/00031305.2015.1089789.
    """
    from scipy import stats

    return float(1 - 2 * stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1)))


def student(samples: Sequence[np.ndarray]) -> tuple[float, float]:
    """Student's t interval of the same; variance between units, degrees of freedom of the smaller sample."""
    from scipy import stats

    means, variances = [], []
    for sums, counts in (units.T for units in samples):
        means.append(sums.sum() / counts.sum())
        variances.append(len(sums) / (len(sums) - 1) * ((sums - counts * means[-1]) ** 2).sum() / counts.sum() ** 2)
    point, half = means[0] - sum(means[1:]), stats.t.ppf(0.975, min(map(len, samples)) - 1) * math.sqrt(sum(variances))
    return float(point - half), float(point + half)


def interval(values: np.ndarray, statistic: Callable, seed: int) -> tuple[float, float]:
    """95 % BCa interval of any statistic of one sample, such as the median; the expanded level is derived for means
    only. Below six values Student's t, as no resampling of so few reaches 95 %."""
    if len(values) < 2:
        return float("nan"), float("nan")
    return bootstrap([values], statistic, seed) if len(values) >= FEWEST else centre(values)


def median_interval(values: np.ndarray, clusters: Labels, seed: int, resamples: int = 2000) -> tuple[float, float]:
    """95 % percentile interval of the median of all values when whole processes are resampled. With fewer than six no
    resampling reaches 95 %: then Student's t of the processes' own medians, and the median of all within it."""
    labels, rng = np.asarray(clusters), np.random.default_rng(seed)
    groups = [values[labels == label] for label in dict.fromkeys(clusters)]
    if len(groups) < FEWEST:
        low, high = centre([np.median(group) for group in groups])
        return min(low, float(np.median(values))), max(high, float(np.median(values)))
    picks = rng.integers(len(groups), size=(resamples, len(groups)))
    if len({*map(len, groups)}) == 1:  # all at once, the same numbers thirty times as fast
        found = np.median(np.stack(groups)[picks].reshape(resamples, -1), axis=1)
    else:
        found = [np.median(np.concatenate([groups[i] for i in pick])) for pick in picks]
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def centre(values: Values) -> tuple[float, float]:
    """Student's t interval of where few values lie, two at least: of their logarithms where all are above 0, as times
    and rates scatter by factors."""
    values = np.asarray(values, float)
    factors = (values > 0).all()
    each = np.log(values) if factors else values
    low, high = student([np.stack([each, np.ones_like(each)], axis=1)])
    return (math.exp(low), math.exp(high)) if factors else (low, high)


def bootstrap(
    samples: Sequence, statistic: Callable, seed: int, level=0.95, resamples=RESAMPLES, method="BCa"
) -> tuple[float, float]:
    """scipy.stats.bootstrap by `method`, or the percentile method where BCa is not defined (ties, very small samples).

    Efron 1987, https://doi.org/10.1080/01621459.1987.10478410.
    """
    from scipy import stats

    for how in (method, "percentile"):
        rng = np.random.default_rng(seed)
        with warnings.catch_warnings(action="ignore"):  # BCa warns where it is not defined; the result says so too
            found = stats.bootstrap(
                samples, statistic, n_resamples=resamples, method=how, confidence_level=level, rng=rng
            )
        low, high = map(float, found.confidence_interval)
        if np.isfinite([low, high]).all():
            break
    return low, high


def percentiles(values: Values, at: Sequence[int] = (50, 95, 99)) -> dict[str, float | None]:
    """Percentiles by name (`p95`); None where the sample is too small to hold ten values beyond one."""
    values = np.asarray(values, float)
    return {f"p{p}": float(np.percentile(values, p)) if len(values) >= enough(p) else None for p in at}


def percentile_note(n: int, at: Sequence[int] = (50, 95, 99)) -> str:
    """Why some of `percentiles` are None, such as "p99 needs 1,000 values, there are 245"; empty when none is."""
    missing = " and ".join(f"p{p} needs {enough(p):,}" for p in at if n < enough(p))
    return f"{missing} values, there are {n:,}" if missing else ""


def enough(p: int) -> int:
    """Values that hold ten beyond percentile p; the median is given from one on."""
    return 1 if p == 50 else -(-1000 // (100 - p))
