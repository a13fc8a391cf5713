"""Intervals in words, from every kind of thing that has one."""

import pytest

from llama_jax.bench import wording
from llama_jax.bench.statistics import Ratio, Summary

NAN = float("nan")


@pytest.mark.parametrize(
    ("found", "form", "name", "expected"),
    [
        (Ratio(1.5, 1.25, 1.756, 6), ".2f", "", "[1.25, 1.76]"),
        (Summary(3, 40.0, 2.0, 38.04, 41.0), ".1f", "", "[38.0, 41.0]"),
        (dict(value=1.5, low=1.25, high=1.756), ".1%", "", "[125.0%, 175.6%]"),
        (dict(kl=0.2, kl_low=0.1234, kl_high=0.3), ".2g", "kl_", "[0.12, 0.3]"),
        (dict(low=0.04, high=0.05), lambda s: f"{1e3 * s:.0f} ms", "", "[40 ms, 50 ms]"),
    ],
)
def test_an_interval_is_said_in_the_form_asked_for(found, form, name, expected):
    assert wording.interval(found, form, name) == expected
    assert wording.within(found, form, name) == f" {expected}"


def test_what_has_no_interval_says_none():
    assert wording.within(Ratio(1.5, NAN, NAN, 1)) == wording.within(dict(low=NAN, high=NAN)) == ""
    assert Ratio(1.5, NAN, NAN, 1).words == "1.50x"
    assert wording.with_n(Ratio(1.5, 1.4, 1.6, 2)) == "1.50x [1.40, 1.60] (n = 2)"
    assert wording.times(dict(value=1.5, low=1.4, high=1.6)) == "1.50x [1.40, 1.60]"
