"""The fused step equals a float64 reference of the same arithmetic, on every shape of model that it takes and refuses
the others."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import config, quantise
from llama_jax.block_types import LAYOUTS
from llama_jax.config import RopeScaling
from llama_jax.kernels import fused
from llama_jax.plumbing.errors import UserError
from tests.conftest import relative_error
from tests.kernels import products, reference
from tests.kernels.models import (
    LLAMA_3,
    mixed,
    packed,
    program,
    quantised,
    random_cache,
    small,
    unpacked,
)

EXACT = 1e-5  # relative; what is left is the order of float32 sums
FLIPPED = 0.06  # at most: a few activations of a hundred off by one in 127

MODELS = {
    "llama": small(),
    "qwen2": small("qwen2"),
    "one head each": small(num_key_value_heads=4),
    "ratio 3, head 32": small(num_attention_heads=3, num_key_value_heads=1, head_dim=32),
    "ratio 4, head 64": small(num_attention_heads=4, num_key_value_heads=1, head_dim=64),
    "ratio 7": small(num_attention_heads=14, num_key_value_heads=2, head_dim=16, family="qwen2"),
    "ratio 5, head 48": small(num_attention_heads=10, num_key_value_heads=2, head_dim=48),
    "untied head": small(tie_word_embeddings=False, vocab_size=100),
    "scaled like Llama 3": small(rope_scaling=LLAMA_3, head_dim=32),
    "scaled linearly": small(rope_scaling=RopeScaling("linear", 4.0), norm_eps=1e-2),
    "vocabulary of one group": small(vocab_size=16),
    "vocabulary of one more": small(vocab_size=33),
    "one layer, wide": small(num_hidden_layers=1, hidden_size=160, intermediate_size=512),
    "qwen3": small("qwen3", num_attention_heads=14, num_key_value_heads=2),
    "mistral": small("mistral", window=40),
    "a window of more than a piece": small("mistral", window=150, local_layers=(1,)),
    "smollm3": small("smollm3"),
    "phi3": small("phi3"),
    "phi3, head 64": small("phi3", num_attention_heads=4, num_key_value_heads=1, head_dim=64, rotary_dim=32),
    "scaled like LongRoPE": small("phi3", rotary_scale=1.2),
    "biases of attention": small(o_bias=True, qkv_bias=True),
    "gemma3": small("gemma3"),
    "gemma3, head 256": small("gemma3", num_attention_heads=4, num_key_value_heads=1, head_dim=256),
    "all features": small("gemma3", window=1, unrotated_layers=(1,), rotary_dim=8, o_bias=True, qkv_bias=True),
    "narrow": small(hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1),
}
# (slot, pad) of 320
PLACES = [(0, 0), (1, 0), (15, 3), (16, 16), (17, 0), (127, 100), (128, 0), (129, 128), (300, 5), (319, 130)]


def compared(cfg, model, run, token, slot, pad, seed, **wrong):
    """(relative error of the logits, the reference's margin) of one token, its stored key and value compared on the
    way."""
    slots = 320
    _, cache = random_cache(cfg, slots, slot, pad, seed)
    logits, best, after = run(model, jnp.array([token], jnp.int32), cache)
    keys, values = unpacked(after)
    expected, rounding = reference.step(model, cfg, token, slot, pad, keys, values, **wrong)
    logits = np.asarray(logits)[0]
    assert int(best[0]) == int(np.argmax(logits))
    assert int(after.length) == slot + 1
    if not wrong and rounding.margin > reference.CLEAR:
        for mine, stored in rounding.stored:
            np.testing.assert_allclose(stored.astype(np.float64), mine, rtol=2**-10.9, atol=1e-5)
    return relative_error(logits, expected), rounding.margin


def sweep(cfg, model, run):
    return [compared(cfg, model, run, (31 * i) % cfg.vocab_size, *place, seed=i) for i, place in enumerate(PLACES)]


def equals_the_reference(cfg, model):
    errors = sweep(cfg, model, program(cfg))
    clear = [error for error, margin in errors if margin > reference.CLEAR]
    assert len(clear) >= 2, "too few tokens whose activations are all clear of an edge"
    assert max(clear) <= EXACT
    assert max(error for error, _ in errors) <= FLIPPED


@pytest.mark.parametrize("name", MODELS)
def test_one_token_equals_the_reference(name):
    equals_the_reference(MODELS[name], quantised(MODELS[name]))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_kinds_of_four_bits_with_a_vocabulary_of_eight(kind, family):
    model = quantised(small(family), kind)
    assert {model.layers[0].attention.qkv.kind, model.embeddings.weight.kind} == {kind, "q8_0"}
    equals_the_reference(small(family), model)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_every_matrix_of_a_layer_of_another_type(family):
    """q, k, v, gate and up of different types in one layer, another order of them in the next; a table of 6 bits."""
    cfg = small(family, hidden_size=256, intermediate_size=256, num_attention_heads=8, head_dim=32)
    equals_the_reference(cfg, mixed(cfg))


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
def test_an_embedding_of_every_type(kind):
    """Its rows are looked up, and a head that has none of its own multiplies by it."""
    cfg = small(hidden_size=max(64, LAYOUTS[kind].columns))
    table = products.weight(kind, cfg.vocab_size, cfg.hidden_size, scale=0.05)
    equals_the_reference(cfg, replace(quantised(cfg), embeddings=replace(quantised(cfg).embeddings, weight=table)))


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
def test_an_embedding_that_stays_in_the_order_of_its_file(kind):
    cfg = small(hidden_size=max(64, LAYOUTS[kind].columns), tie_word_embeddings=False, vocab_size=100)
    raw = products.random_bytes(kind, cfg.vocab_size, cfg.hidden_size // LAYOUTS[kind].columns, scale=0.05)
    table = quantise.Table(jnp.asarray(raw), kind)
    equals_the_reference(cfg, replace(quantised(cfg), embeddings=replace(quantised(cfg).embeddings, weight=table)))


@pytest.mark.parametrize(
    "wrong",
    [
        *(dict(position=position) for position in (301, 294)),
        dict(eps=0.5),
        *(dict(order=np.array(order)) for order in ([1, 0, 2, 3], [2, 3, 0, 1])),
    ],
    ids=str,
)
def test_a_wrong_position_eps_or_head_fails_by_far(wrong):
    """The control: the comparison above would see it."""
    cfg = small()
    model, run = quantised(cfg), program(cfg)
    assert compared(cfg, model, run, 5, 300, 5, seed=3)[0] <= FLIPPED
    assert compared(cfg, model, run, 5, 300, 5, seed=3, **wrong)[0] > 3 * FLIPPED


def test_a_wrong_padding_fails_by_far():
    cfg = small()
    model, run, slot = quantised(cfg), program(cfg), 20
    _, cache = random_cache(cfg, 64, slot, 0, seed=1)
    logits, _, after = run(model, jnp.array([3], jnp.int32), cache)
    keys, values = unpacked(after)
    for pad, right in ((0, True), (10, False)):
        expected, _ = reference.step(model, cfg, 3, slot, pad, keys, values, position=slot)
        error = relative_error(logits[0], expected)
        assert error <= EXACT if right else error > 3 * FLIPPED


def test_nothing_but_the_new_position_is_written():
    cfg = small("qwen2")
    model, run = quantised(cfg), program(cfg)
    for slot, pad in PLACES:
        before, cache = random_cache(cfg, 320, slot, pad)
        after = unpacked(run(model, jnp.array([1], jnp.int32), cache)[2])
        assert np.isfinite(after[..., slot, :]).all()
        np.testing.assert_array_equal(np.delete(after, slot, axis=3), np.delete(before, slot, axis=3))


def test_what_is_outside_the_seen_positions_changes_no_bit():
    cfg = small()
    model, run, token = quantised(cfg), program(cfg), jnp.array([9], jnp.int32)
    both, cache = random_cache(cfg, 192, 140, 21)
    other = both.copy()
    other[..., :21, :], other[..., 140:, :] = 7.0, -3.0
    expected, logits = (np.asarray(run(model, token, c)[0]) for c in (cache, packed(other, 140, 21)))
    np.testing.assert_array_equal(logits, expected)
    other[..., 21, :] = 0.5
    assert relative_error(run(model, token, packed(other, 140, 21))[0], expected) > 1e-4


def test_the_best_is_the_first_of_equals():
    """Twin rows of the head give twin logits; jnp.argmax takes the first, and so does the kernel, across lanes and
    parts."""
    cfg = small(vocab_size=1000, tie_word_embeddings=False)
    model, run = quantised(cfg), program(cfg)
    rows = np.asarray(model.head.weight.dequantised()).copy()
    rows[:] = rows[7]
    for twins in ([0, 999], [3, 4], [15, 16], [998, 999], [500, 501, 502], range(1000)):
        table = rows * 0.5
        table[list(twins)] = rows[0]
        twinned = replace(model, head=replace(model.head, weight=quantise.from_float(table, "q8_0")))
        logits, best, _ = run(twinned, jnp.array([2], jnp.int32), random_cache(cfg, 16, 3, 0)[1])
        assert int(best[0]) == int(jnp.argmax(logits[0]))
        assert int(best[0]) in {min(twins), next((i for i in range(1000) if i not in twins), 0)}


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        (config.tiny("gpt2"), "runs Llama and models like it, not gpt2"),
        (small(hidden_size=48), "hidden_size to be a multiple of 32, it is 48"),
        (small(intermediate_size=80), "intermediate_size to be a multiple of 32, it is 80"),
        (small(head_dim=8), "head_dim to be a multiple of 16, it is 8"),
        (small(num_attention_heads=3, num_key_value_heads=1), "times head_dim to be a multiple of 32, it is 48"),
    ],
)
def test_other_models_are_refused_in_one_line(cfg, words):
    with pytest.raises(UserError, match=words + ".*use \\+gemv"):
        fused.check(cfg)


def test_vmap_is_refused_in_words():
    cfg = small()
    model, cache = quantised(cfg), random_cache(cfg, 16, 3, 0)[1]
    with pytest.raises(NotImplementedError, match="vmap"):
        jax.vmap(lambda token: program(cfg)(model, token, cache)[0])(jnp.array([[1], [2]], jnp.int32))
