"""95% intervals: of means by a bootstrap of whole units, of medians, and Student's t for few units."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Sequence

import numpy as np

# scipy.stats is imported where it is used: it takes most of a second, and measured processes never need it.
RESAMPLES, MEDIANS = 9999, 2000  # of means, and of medians of whole processes
# how means are bootstrapped; BCa, at the same level, covers less, as those simulations say
MEANS = "percentile"
# a bootstrap of n units spans their range, which holds the mean with at most 1 - 2^(1-n): below six never 95%
FEWEST = 6

Values = Sequence[float]
Labels = Sequence[Hashable] | None  # the process of each value


def processes(clusters: Labels) -> int:
    return len(set(clusters)) if clusters is not None else 1


def gather(logs: np.ndarray, clusters: Labels) -> np.ndarray:
    """What is resampled: sum and count [units 2] of each process, or of each value where there is one process."""
    labels = list(clusters) if processes(clusters) > 1 else range(len(logs))
    place = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    units = np.zeros((len(place), 2))
    np.add.at(units, [place[label] for label in labels], np.stack([logs, np.ones(len(logs))], 1))
    return units


def mean_interval(samples: Sequence[np.ndarray], seed: int, resamples=RESAMPLES, method=MEANS) -> tuple[float, float]:
    """95% interval of a mean, or of the first sample's mean less the second's, from what `gather` gives for each.

    Percentile bootstrap of whole units, at the level that makes it as wide as Student's t (two samples count as the
    smaller one). Below six units Student's t itself, because no bootstrap reaches 95% there.
    """
    fewest = min(map(len, samples))
    if fewest < 2:
        return float("nan"), float("nan")
    if fewest < FEWEST:
        return student(samples)

    def difference(*picked, axis=-1):  # takes unit numbers, so that sums and counts stay together
        means = [units[i, 0].sum(axis) / units[i, 1].sum(axis) for units, i in zip(samples, picked, strict=True)]
        return means[0] - sum(means[1:])

    numbers = [np.arange(len(units)) for units in samples]
    return bootstrap(numbers, difference, seed, expanded_level(fewest), resamples, method)


def expanded_level(n: int) -> float:
    """The nominal level at which a percentile bootstrap of n units is as wide as Student's t at 95%.

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


def median_interval(values: np.ndarray, clusters: Labels, seed: int) -> tuple[float, float]:
    """95% interval of the median: BCa of the values of one process, else by percentiles when whole processes are
    resampled. With fewer than six of either no resampling reaches 95%: then Student's t, for several processes that of
    their medians, extended to hold the overall median. NaN for one value."""
    if len(values) < 2:
        return float("nan"), float("nan")
    if processes(clusters) == 1:
        return bootstrap([values], np.median, seed) if len(values) >= FEWEST else centre(values)
    labels, rng = np.asarray(clusters), np.random.default_rng(seed)
    groups = [values[labels == label] for label in dict.fromkeys(clusters)]
    if len(groups) < FEWEST:
        low, high = centre([np.median(group) for group in groups])
        return min(low, float(np.median(values))), max(high, float(np.median(values)))
    picks = rng.integers(len(groups), size=(MEDIANS, len(groups)))
    if len({*map(len, groups)}) == 1:  # all at once, the same numbers thirty times as fast
        medians = np.median(np.stack(groups)[picks].reshape(MEDIANS, -1), axis=1)
    else:
        medians = [np.median(np.concatenate([groups[i] for i in pick])) for pick in picks]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def centre(values: Values) -> tuple[float, float]:
    """Student's t interval of few values, two at least: of their logarithms where all are above 0."""
    values = np.asarray(values, float)
    factors = (values > 0).all()
    scaled = np.log(values) if factors else values
    low, high = student([np.stack([scaled, np.ones_like(scaled)], axis=1)])
    return (math.exp(low), math.exp(high)) if factors else (low, high)


def bootstrap(
    samples: Sequence, statistic: Callable, seed: int, level=0.95, resamples=RESAMPLES, method="BCa"
) -> tuple[float, float]:
    """scipy.stats.bootstrap by `method`, or the percentile method where BCa is not defined (ties, very small samples).

    Efron 1987, https://doi.org/10.1080/01621459.1987.10478410.
    """
    from scipy import stats

    for how in (method, "percentile"):
        given = dict(n_resamples=resamples, method=how, confidence_level=level, rng=np.random.default_rng(seed))
        with warnings.catch_warnings(action="ignore"):  # BCa warns where it is not defined; the result says so too
            low, high = map(float, stats.bootstrap(samples, statistic, **given).confidence_interval)
        if np.isfinite([low, high]).all():
            break
    return low, high
