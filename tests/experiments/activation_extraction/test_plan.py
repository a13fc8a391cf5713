"""The plan of extraction: what cannot be measured is told before anything is, and every source is the same each
time."""

import pytest

from llama_jax import checkpoint, config
from llama_jax.plumbing.errors import UserError
from llama_lab.experiments.activation_extraction.plan import Plan, check_plan, examples_of
from tests.experiments.activation_extraction.test_measure import LENGTH, TINY, small


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(batch=0), "batch is 0"),
        (dict(length=1), "length is 1"),
        (dict(length=10**6), "is 1000000"),
        (dict(eager=50), "eager is 50"),
        (dict(dtype="int8"), "dtype is 'int8'"),
        (dict(blocks=0), "blocks is 0"),
        (dict(scaling=(1, 0)), "is 0"),
        (dict(probe=3), "probe is 3"),
        (dict(subjects=("packin",)), "Did you mean .*'packing'"),
    ],
)
def test_plans_that_cannot_be(changes, words):
    with pytest.raises(UserError, match=words):
        check_plan(Plan(**changes), checkpoint.load_config(TINY))
    check_plan(Plan(), checkpoint.load_config(TINY))


def test_a_model_of_one_layer_has_no_quarter():
    with pytest.raises(UserError, match="one layer"):
        check_plan(Plan(), config.tiny(num_hidden_layers=1))


def test_examples_are_seeded_and_fit(packaged):
    texts = examples_of(packaged, 30, 48)
    lengths = [len(packaged.tokenizer.encode(text)) for text in texts]
    assert 2 <= min(lengths) < max(lengths) <= 48
    assert texts == examples_of(packaged, 30, 48) != examples_of(packaged, 30, 48, seed=1)
    with pytest.raises(UserError, match="3000 examples are asked for"):
        examples_of(packaged, 3000, 48)
    setting = small()
    ids = examples_of(setting.loaded, 200, LENGTH)
    assert 2 == min(map(len, ids)) < max(map(len, ids)) == LENGTH
    assert max(map(max, ids)) < setting.loaded.config.vocab_size
