import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llama_jax.bench import statistics


def test_summary_equals_numpy():
    values = np.random.default_rng(0).lognormal(4, 0.1, 31)
    s = statistics.summarise(values)
    assert (s.n, s.median) == (31, np.median(values))
    assert s.iqr == pytest.approx(stats.iqr(values))
    assert s.low <= s.median <= s.high


def test_ratio_is_the_geometric_mean_of_pairs():
    base = np.array([10.0, 20.0, 40.0, 15.0])
    r = statistics.ratio(base * [2, 0.5, 2, 2], base)
    assert r.value == pytest.approx(2**0.5)
    assert r.low <= r.value <= r.high


def test_interval_is_scipys_bca():
    logs = np.random.default_rng(1).normal(0.05, 0.03, 20)
    expected = stats.bootstrap((logs,), np.mean, n_resamples=statistics.RESAMPLES, method="BCa", rng=np.random.default_rng(0))
    assert statistics.interval(logs, np.mean, 0) == pytest.approx(tuple(expected.confidence_interval))


@settings(max_examples=15, deadline=None)
@given(st.floats(0.2, 5), st.integers(3, 12), st.integers(0, 9))
def test_a_ratio_turned_round_is_its_inverse(factor, n, seed):
    base = np.random.default_rng(seed).uniform(10, 20, n)
    noisy = base * factor * np.random.default_rng(seed + 1).lognormal(0, 0.01, n)
    there, back = statistics.ratio(noisy, base), statistics.ratio(base, noisy)
    assert there.value == pytest.approx(1 / back.value)


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [(1.05, 1.1, 1.2, "faster"), (0.7, 0.8, 0.9, "slower"), (0.99, 1.0, 1.01, "equal within 2 %"), (0.9, 1.0, 1.1, "inconclusive"),
     (0.97, 1.01, 1.05, "inconclusive")],
)  # fmt: skip
def test_verdicts(low, value, high, verdict):
    assert statistics.Ratio(value, low, high, 10).verdict == verdict


def test_one_pair_decides_nothing():
    assert statistics.ratio([3.0], [1.0]).verdict == "inconclusive"


def test_percentiles_need_enough_values():
    few, many = statistics.percentiles(range(999)), statistics.percentiles(range(1000))
    assert few["p99"] is None
    assert many["p99"] == pytest.approx(np.percentile(range(1000), 99))
    assert statistics.percentiles([]) == {"p50": None, "p95": None, "p99": None}


def test_an_unstable_sample_says_so():
    assert statistics.summarise([10, 20, 30, 40]).unstable
    assert not statistics.summarise([10, 10.1, 10.2, 10.1]).unstable
