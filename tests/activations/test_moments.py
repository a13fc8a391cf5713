"""Moments merged piece by piece are those of all values at once, however they are cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from llama_lab.activations import moments
from llama_lab.activations.moments import Moments, merge

VALUES = hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.just(3)), elements=st.floats(-1e3, 1e3))


def merged(values, cuts, axes=0):
    nothing = np.zeros(() if axes is None else values.shape[1:])
    found = Moments(0, nothing, nothing)
    for part in np.split(values, sorted(cuts)):
        found = merge(found, moments.of(part, axes))
    return found


@settings(deadline=None)
@given(VALUES, st.lists(st.integers(0, 40), max_size=6), st.sampled_from([0, None]))
def test_any_split_merges_to_the_mean_and_variance_of_all(values, cuts, axes):
    found = merged(values, [min(cut, len(values)) for cut in cuts], axes)
    count = len(values) if axes == 0 else values.size
    assert (found.count, found.mean.shape) == (count, values.mean(axes).shape)
    np.testing.assert_allclose(found.mean, values.mean(axes), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found.m2, values.var(axes) * count, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(found.std, values.std(axes), rtol=1e-6, atol=1e-5)


def test_no_digits_are_lost_far_from_zero():
    """Where the sum of squares less the square of the sum has no digit left."""
    values = 1e9 + np.random.default_rng(0).normal(0, 1, (10_000, 2))
    found = merged(values, range(100, 10_000, 100))
    np.testing.assert_allclose(found.std, values.std(0), rtol=1e-6)
    naive = (values**2).mean(0) - values.mean(0) ** 2
    assert (np.abs(naive - values.var(0)) > 0.1).any()


def test_nothing_changes_nothing():
    some, none = moments.of(np.arange(6.0).reshape(3, 2)), moments.of(np.empty((0, 2)))
    assert merge(none, some) is some
    assert merge(some, none) is some
    assert merge(none, none).count == 0
    assert np.isnan(none.std).all()


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_stays_so_without_a_warning():
    found = merge(moments.of(np.array([[1.0, np.nan], [2, 3]])), Moments(2, np.array([np.inf, 1]), np.array([0.0, 1])))
    assert not np.isfinite(found.mean).any()
    assert not np.isfinite(found.m2).any()
