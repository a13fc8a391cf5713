"""What is written after a cache's length is nobody's, and several tokens verified at once are those of steps."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import generate, sampling, transforms
from llama_jax.placement import parse
from tests.conftest import among_the_fast
from tests.kernels.models import random_model, small

PROMPT = [5, 9, 33, 60, 2, 7, 1]
NAMES = ["step+kvint8", "step", "step+kvbf16", "step+scan", "step+gemv+q8_0", "step+fused"]


def made(name):
    """(engine, its `Steps`) of a small model."""
    engine = generate.bind(small(), random_model(small()), parse(name))
    transform, logits = transforms.tree(engine.config, engine.placement, lambda name, function: function)
    module = transforms.steps_module(engine.placement)
    return engine, module.steps(engine.config, engine.placement, transform, sampling.next_token, logits)


def stepped(steps, params, token, carry, n):
    """(n greedy tokens int32 [n B], the carry after them), one step a token."""
    tokens = []
    for _ in range(n):
        token, carry = steps.step(params, token, carry, generate.GREEDY)
        tokens.append(token)
    return jnp.stack(tokens), carry


@pytest.mark.parametrize("name", among_the_fast(("step+kvint8", "step+fused"), NAMES))
def test_tokens_verified_at_once_are_those_of_steps_also_where_others_were_rejected(name):
    engine, steps = made(name)
    batch = generate.request(engine.config, [PROMPT], 12)
    token, carry = generate.prefill(engine, batch)
    expected, _ = stepped(steps, engine.params, token, carry, 8)
    right = jnp.concatenate([token[:, None], expected[:4].T], axis=1)
    wrong = right.at[:, 1:].set((right[:, 1:] + 1) % engine.config.vocab_size)
    length = carry.cache.length

    best, cache = steps.verify(engine.params, wrong, carry.cache)
    assert int(cache.length) == int(length) + 5
    assert best[0, 0] == expected[0, 0]
    assert not np.array_equal(best[0], expected[:5, 0])

    best, cache = steps.verify(engine.params, right, replace(cache, length=length))  # over the rejected rows
    assert (best.dtype, best.shape, int(cache.length)) == (jnp.int32, (1, 5), int(length) + 5)
    np.testing.assert_array_equal(best[0], expected[:5, 0])

    cache = replace(cache, length=length + 2)  # and steps over rows that were right but not taken
    after, _ = stepped(steps, engine.params, expected[1], replace(carry, cache=cache), 5)
    np.testing.assert_array_equal(after, expected[2:7])
