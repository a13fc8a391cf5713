"""What is asked and when follows from the seed, and is the same for all."""

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_lab.experiments.what_serving_needs import load
from tests.experiments.fewer_bits.test_measure import TINY


def test_lengths_are_those_of_the_manual_with_many_short_and_a_few_long():
    for found, (least, most) in zip(load.lengths(), (load.PROMPTS, load.ANSWERS), strict=True):
        assert len(found) > 1000
        assert (min(found), max(found)) == (least, most)
        assert np.median(found) < np.mean(found) < most / 2


def test_arrivals_are_a_poisson_process_that_follows_from_seed_and_rate():
    due = load.arrivals(4.0, 4000, 0)
    gaps = np.diff([0, *due])
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.08)  # of an exponential: as wide as its mean
    assert due == load.arrivals(4.0, 4000, 0)
    assert due[:3] != load.arrivals(4.0, 3, 1)
    assert due[0] != load.arrivals(2.0, 1, 0)[0] / 2


def test_prompts_are_as_long_as_drawn_and_no_two_begin_alike(packaged):
    asked = load.asks(packaged, [2.0, 1.0, 2.0], 5, 0)
    assert {rate: len(asks) for rate, asks in asked.items()} == {1.0: 5, 2.0: 10}
    every = [ask for asks in asked.values() for ask in asks]
    ids = [packaged.tokenizer.encode(ask.text, special=False) for ask in every]
    assert [len(i) for i in ids] == [ask.prompt_tokens for ask in every]
    assert len({i[0] for i in ids}) == len(ids)
    assert all(load.ANSWERS[0] <= ask.new_tokens <= load.ANSWERS[1] for ask in every)
    assert asked == load.asks(packaged, [1.0, 2.0], 5, 0) != load.asks(packaged, [1.0, 2.0], 5, 1)


def test_a_model_without_a_tokenizer_is_asked_numbers():
    (ask,) = load.asks(checkpoint.load(TINY), [0.1], 5, 0)[0.1]  # one request at least
    assert len(ask.text.split()) == ask.prompt_tokens
    assert all(word.isdigit() for word in ask.text.split())
