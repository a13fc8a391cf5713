"""A token's account: variants run, and leave out what they say."""

import jax
import jax.numpy as jnp
import pytest

from llama_jax import checkpoint, transforms
from llama_jax.placement import LADDER
from llama_lab.experiments.xla_cpu import account

SIZES = "num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=4,num_key_value_heads=2"
TINY = f"random:smollm2-135m,{SIZES},head_dim=8,vocab_size=64"


@pytest.fixture(scope="module")
def tiny_model():
    return checkpoint.load(TINY)


def dots(loaded, name):
    """Products that a variant's token has."""
    cache = transforms.new_cache(loaded.params, jnp.zeros(1, jnp.int32), 8, loaded.config, LADDER["loop"])
    run = account.tokens_loop(loaded.config, account.PARTS[name])
    return str(jax.make_jaxpr(run)(loaded.params, jnp.zeros(1, jnp.int32), cache, 2)).count("dot_general[")


def test_each_variant_leaves_out_what_it_says(tiny_model):
    whole = dots(tiny_model, account.WHOLE)
    assert whole == 7  # qkv, scores, mix, o, gate and up, down, head
    expected = {"no head": 6, "no feed-forward": 5, "no attention between its products": 5, "no norms": 7}
    assert {name: dots(tiny_model, name) for name in expected} == expected
    assert (dots(tiny_model, account.PRODUCTS), dots(tiny_model, account.NOTHING)) == (5, 0)


def test_every_variant_has_a_time_for_each_round(tiny_model):
    found = account.measured(tiny_model, "loop", rounds=2, tokens=2)
    assert list(found) == list(account.PARTS)
    assert all(len(ms) == 2 and min(ms) > 0 for ms in found.values())
