"""Count, mean and sum of squared deviations of a stream of values, merged piece by piece without losing digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Summary of `count` values per feature: their mean, and M2 = the sum of (value - mean)²; float64, one shape."""

    count: int
    mean: np.ndarray
    m2: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviation (divided by `count`), NaN of nothing."""
        return np.sqrt(self.m2 / self.count) if self.count else np.full_like(self.m2, np.nan)


def of(values: np.ndarray, axes: int | tuple[int, ...] | None = 0) -> Moments:
    """Moments over the given axes, by two passes in float64: over the rows, or over everything (None)."""
    wide = np.asarray(values).astype(np.float64)
    count = wide.size if axes is None else int(np.prod([wide.shape[a] for a in np.atleast_1d(axes)]))
    mean = wide.sum(axis=axes, keepdims=True) / max(count, 1)
    m2 = ((wide - mean) ** 2).sum(axis=axes)
    return Moments(count, mean.reshape(np.shape(m2)), m2)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of two sets of values together. Nothing (count 0) changes nothing.

    Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", Stanford
    STAN-CS-79-773, 1979, eq. 2.1, with M2 in place of S. Not associative to the last bit: what must be reproducible is
    merged in one order.
    """
    if not a.count or not b.count:
        return a if a.count else b
    count = a.count + b.count
    share = b.count / count
    # inf and NaN give nothing but NaN; numpy need not warn of it
    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.asarray(b.mean, np.float64) - a.mean
        return Moments(count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * (a.count * share))


def joined(total: Mapping[str, Moments], more: Mapping[str, Moments]) -> dict[str, Moments]:
    """Moments by site, those of `more` merged onto those of `total` where it has the site."""
    return {**total, **{site: merge(total[site], more[site]) if site in total else more[site] for site in more}}
