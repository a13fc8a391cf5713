"""How many drafts a pass has, of made-up histories whose best choice is known."""

from typing import NamedTuple

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from llama_jax.decoding import depth

DEPTHS, PRIORS, AVX2 = (0, 1, 3, 7), (0.2, 0.4, 0.7), (1, 1.1, 1.7, 3.15)


class Ends(NamedTuple):
    done: jnp.ndarray
    most: int
    costs: jnp.ndarray


def choice(learned, kind=(1,), costs=AVX2, done=(False,), most=99, room=99):
    ends = Ends(jnp.array(done), most, jnp.array(costs, jnp.float32))
    return DEPTHS[int(depth.chosen(learned, jnp.array(kind), ends, room, DEPTHS, PRIORS))]


def after(history, kind=1, rows=1):
    """What was learned of passes (right drafts, tried ones), or of right drafts of one that is not tried."""
    learned = depth.nothing(rows, PRIORS, DEPTHS)
    for right, tried in history:
        learned = depth.learn(learned, jnp.full(rows, kind), jnp.full(rows, right), tried, 0)
    return learned


def test_drafts_that_are_right_get_more_of_them_and_wrong_ones_none():
    assert choice(after([])) in (1, 3)  # a try, of few rows
    assert choice(after([(0, 1)] * 20)) == 0
    assert choice(after([(7, 7)] * 3)) == 7
    assert choice(after([(7, 7)] * 3 + [(0, 7)])) < 7  # the run is over
    assert choice(after([(1, 1)] * 9)) >= 3  # plain steps saw that they would have been right
    assert choice(after([(7, 7)] * 3), kind=(-1,)) == 0  # nothing is found


def test_what_was_long_ago_counts_less():
    before, now = [(0, 1)] * 40, [(1, 1), (0, 1)] * 8
    assert choice(after(before)) == 0
    assert choice(after(before + now)) > 0


def test_drafts_that_nobody_sees_are_tried_again_in_time():
    """Costs of a model's drafts, of which a plain step says nothing."""
    learned, costs, waited = after([(0, 1)] * 20), (1, 1.3, 2, 3.4), 0
    while choice(learned, costs=costs) == 0 and waited < 200:
        learned, waited = depth.learn(learned, jnp.array([1]), jnp.array([0]), 0, 0), waited + 1
    assert 20 < waited < 200


def test_costs_decide():
    right = after([(3, 3)] * 9)
    assert choice(right, costs=(1, 9, 9, 9)) == 0
    assert choice(right, costs=(1, 1, 1, 1)) == 7
    assert choice(right, costs=(1, 1, 9, 9)) == 1
    assert choice(after([(0, 1)] * 40), costs=(1, 1, 1, 1)) == 7  # for nothing even a bad draft is worth it


def test_no_pass_is_longer_than_what_is_left_of_answer_and_cache():
    right = after([(7, 7)] * 9)
    assert choice(right, most=1) == 0
    assert choice(right, most=2) == 1
    assert choice(right, room=6) == 3
    assert choice(right, room=0) == 0


def test_of_a_batch_all_rows_that_go_on_must_be_right():
    right = after([(7, 7)] * 9, rows=2)
    both = dict(kind=(1, 1), done=(False, False))
    assert choice(right, **both) == 7
    assert choice(right, **both | dict(kind=(1, -1))) == 0
    assert choice(right, kind=(1, -1), done=(False, True)) == 7
    wrong = right.trials.at[1].set(20.0), right.right.at[1].set(0.0)
    assert choice(depth.Learned(*wrong, right.running, right.passes), **both) == 0


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_rates_stay_probabilities_whatever_comes(history):
    learned = depth.nothing(1, PRIORS, DEPTHS)
    for kind, right, tried in history:
        learned = depth.learn(learned, jnp.array([kind]), jnp.array([min(right, tried)]), tried, 1)
    rates = np.asarray(depth.rates(learned, PRIORS))
    assert (rates > 0).all()
    assert (rates < 1).all()
    assert int(learned.passes[1]) == len(history)


def test_a_run_is_learned_apart_from_its_beginning():
    learned = after([(0, 7)] * 5 + [(7, 7)])
    first, run = np.asarray(depth.rates(learned, PRIORS))[0, 1:]
    assert run > 0.9 > 0.5 > first
    assert bool(learned.running[0])
    assert not bool(after([(7, 7), (3, 7)]).running[0])


@pytest.mark.parametrize("tried", [0, 1])
def test_what_was_not_tried_teaches_nothing(tried):
    learned = after([(0, tried)] * 3)
    assert float(learned.trials.sum()) == pytest.approx(tried * (1 + 0.85 + 0.85**2))
