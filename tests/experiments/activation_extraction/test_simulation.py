"""The simulated extraction: nothing lost, equal to the closed form where there is one, worse with more failures."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_lab.experiments.activation_extraction.simulation import Fleet, simulate, useful

STEADY = Fleet(workers=4, units=10, durations=(2.0,), starts=(5.0,), overhead=0.5)
UNEVEN = Fleet(workers=20, units=200, durations=(1.0, 1.5, 4.0), starts=(3.0, 6.0), overhead=0.1)


def closed_form(fleet):
    """Seconds without failures where all times are the same: as many rounds as the busiest worker has units."""
    (start,), (duration,) = set(fleet.starts), set(fleet.durations)
    return start + math.ceil(fleet.units / fleet.workers) * (duration + fleet.overhead)


@given(st.integers(1, 40), st.integers(0, 120), st.floats(0.1, 50), st.floats(0, 20), st.floats(0, 5))
def test_without_failures_and_with_constant_times_it_is_the_closed_form(workers, units, duration, start, overhead):
    fleet = Fleet(workers, units, (duration,), (start,), overhead)
    outcome = simulate(fleet)
    assert outcome.seconds == pytest.approx(closed_form(fleet) if units else 0.0)
    assert outcome.failures == outcome.lost == 0
    assert useful(fleet, outcome) <= 1 + 1e-9 if units else True


@given(
    workers=st.integers(1, 30),
    units=st.integers(0, 60),
    rate=st.floats(0, 0.2),
    seed=st.integers(0, 2**32),
)
def test_every_unit_is_committed_once_whoever_fails(workers, units, rate, seed):
    fleet = replace(UNEVEN, workers=workers, units=units, rate=rate)
    outcome = simulate(fleet, seed)
    assert outcome.commits == units
    assert outcome == simulate(fleet, seed)
    least = units * (min(fleet.durations) + fleet.overhead) / workers
    assert outcome.seconds >= least
    assert outcome.lost <= outcome.failures * (max(fleet.durations + fleet.starts) + fleet.overhead)


def mean_seconds(fleet, seeds=30):
    return sum(simulate(fleet, seed).seconds for seed in range(seeds)) / seeds


def test_more_failures_take_longer_on_average():
    taken = [mean_seconds(replace(UNEVEN, rate=rate)) for rate in (0.0, 0.01, 0.05, 0.2)]
    assert taken == sorted(taken)
    assert taken[0] < taken[-1] / 1.5


def test_more_workers_take_less_until_each_has_a_unit():
    taken = [mean_seconds(replace(UNEVEN, workers=workers)) for workers in (1, 5, 20, 200)]
    assert taken == sorted(taken, reverse=True)
    assert mean_seconds(replace(UNEVEN, workers=400)) == pytest.approx(taken[-1], rel=0.3)


def test_a_straggler_is_overtaken():
    """One duration in two hundred is a hundred times as long: the others do not wait for it."""
    fleet = Fleet(workers=10, units=400, durations=(1.0,) * 199 + (100.0,), starts=(0.0,))
    assert mean_seconds(fleet, 10) < 100.0 + 400 / 10


def test_what_is_lost_shows_in_the_useful_share():
    steady = useful(STEADY, simulate(STEADY))
    assert steady == pytest.approx(10 * 2.0 / (4 * closed_form(STEADY)))
    failing = replace(STEADY, rate=0.05, units=400)
    assert useful(failing, simulate(failing)) < useful(replace(failing, rate=0.0), simulate(replace(failing, rate=0.0)))
