"""Families with more than Llama and Qwen2 have: whole answers, and calls of their kernel that are spoilt."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llama_jax as ll
from llama_jax import generate, rope
from llama_jax.kernels import build, fused
from llama_jax.plumbing.errors import UserError
from tests.kernels.models import quantised, random_cache, random_model, rows_program, small
from tests.kernels.test_generation import divergence
from tests.kernels.test_operands import call_of

WINDOWED = small("gemma3", window=40, o_bias=True, unrotated_layers=(1,), tie_word_embeddings=False)


@pytest.fixture(scope="module")
def engines():
    checkpoint = ll.Checkpoint("small", WINDOWED, random_model(WINDOWED), None, "", "random:", "float32")
    names = "step+fused", "loop+fused", "loop+fused+lookup", "step+gemv+kvf16"
    return {name: ll.build(checkpoint, name) for name in names}


def test_logits_of_the_fused_step_are_those_of_products_alone(engines):
    """A prompt of several pieces, beyond the window: rows of one call against XLA's own layers."""
    ids = [int(t) for t in np.random.default_rng(1).integers(0, 97, 150)]
    one, other = (np.asarray(generate.logits(engines[name], ids)) for name in ("step+fused", "step+gemv+kvf16"))
    assert divergence(one, other).mean() < 2e-4
    assert divergence(one, np.roll(other, 1, axis=0)).mean() > 0.1  # the control: another position's


@pytest.mark.parametrize("prompt", [[5, 9, 33], [5, 9, 33] * 15], ids=len)
def test_steps_loop_and_drafts_give_the_same_tokens(engines, prompt):
    step, *others = (
        ll.answer(engines[name], [prompt], 50)[0] for name in ("step+fused", "loop+fused", "loop+fused+lookup")
    )
    assert [other.token_ids for other in others] == [step.token_ids] * 2
    assert len(set(step.token_ids)) > 3


def test_only_a_model_with_a_feature_has_a_kernel_of_its_own():
    assert {fused.entry(small(family)) for family in ("llama", "qwen2")} == {"llama_jax_fused"}
    assert {fused.entry(small(family)) for family in ("qwen3", "gemma3", "phi3", "mistral")} == {build.MORE}


def test_a_feature_that_the_kernel_lacks_is_refused_by_name(monkeypatch):
    assert {*WINDOWED.features} < {*fused.FEATURES}
    monkeypatch.setattr(fused, "FEATURES", [name for name in fused.FEATURES if name not in ("window", "o_bias")])
    with pytest.raises(UserError, match=r"not gemma3 with o_bias, window; use \+gemv"):
        fused.check(WINDOWED)


# Calls that are spoilt ------------------------------------------------------------------------------------------------

COS, SIN, NORMS, PLACES, HEAD_NORMS, O_BIASES = 3, 4, 10, 14, 15, 16


def call():
    model, cache = quantised(WINDOWED), random_cache(WINDOWED, 32, 20, 0)[1]
    ids, number = jnp.array([[7]], jnp.int32), jnp.zeros(1, jnp.int32)
    first = cache.length - cache.pad
    return call_of(WINDOWED, model, ids, first, number, cache.entries, 1)


def changed(i, change):
    return lambda call: call.operands.__setitem__(i, change(np.array(call.operands[i])))


def longer(axis, by):
    return lambda array: np.resize(array, [n + by * (k == axis) for k, n in enumerate(array.shape)])


def place(layer, column, value):
    def change(array):
        array[layer, column] = value
        return array

    return changed(PLACES, change)


ROPES = len(rope.of_layers(WINDOWED)[0])
SPOILT = {
    "tokens must be": [
        changed(i, change)
        for i in (COS, SIN)
        for change in (longer(0, 1), longer(1, 1), longer(2, 1), longer(2, -8), lambda array: array[0])
    ],
    "the layers' weights must be": [changed(NORMS, longer(1, by)) for by in (-1, 1, -4)],
    "a layer's rope and window": [
        *(
            changed(i, longer(axis, 1))
            for i, axes in ((PLACES, 2), (HEAD_NORMS, 3), (O_BIASES, 2))
            for axis in range(axes)
        ),
        *(changed(i, lambda array: array.astype(np.float16)) for i in (PLACES, HEAD_NORMS, O_BIASES)),
        *(place(1, 0, bad) for bad in (-1, ROPES, 2**31 - 1)),
        *(place(0, 1, bad) for bad in (-1, -(2**31))),
    ],
    "wrong number": [lambda call: call.operands.pop(), lambda call: call.attributes.pop("tanh")],
    "the attributes must be": [
        *(lambda call, bad=bad: call.attributes.update(tanh=bad) for bad in (np.int64(2), np.float32(1))),
        *(lambda call, name=name: call.attributes.update({name: np.int64(1)}) for name in ("scale", "scale_embedding")),
    ],
}


@pytest.mark.parametrize("words", SPOILT)
def test_a_call_that_is_spoilt_is_refused(words):
    for spoil in SPOILT[words]:
        spoilt = call()
        spoil(spoilt)
        with jax.enable_x64(words == "the attributes must be"), pytest.raises(jax.errors.JaxRuntimeError, match=words):
            spoilt()
    assert np.isfinite(np.asarray(call()()[0])).all()


def test_a_wrong_window_or_rope_fails_by_far():
    """The control: the comparisons with the reference would see it."""
    logits, cache = rows_program(WINDOWED), random_cache(WINDOWED, 64, 50, 0)[1]
    model, ids = quantised(WINDOWED), jnp.array([[7]], jnp.int32)
    right = np.asarray(logits(model, ids, cache)[0])
    for changes in (dict(window=41), dict(unrotated_layers=()), dict(local_rope_theta=2e3), dict(attention_scale=0.32)):
        wrong = np.asarray(rows_program(replace(WINDOWED, **changes))(model, ids, cache)[0])
        assert np.abs(wrong - right).max() > 1e-3 * np.abs(right).max()
