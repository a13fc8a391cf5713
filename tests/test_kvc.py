import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax import config, generate, kvc, prompts, transforms
from llama_jax.placement import Placement
from tests.conftest import relative_error


def test_mask_of_a_padded_row():
    mask = kvc.causal_mask(jnp.arange(5), jnp.array([2, 0]), 5)
    drawn = ["".join(".x"[int(v)] for v in row) for row in mask[0]]
    assert drawn == [".....", ".....", "..x..", "..xx.", "..xxx"]
    np.testing.assert_array_equal(mask[1], np.tril(np.ones((5, 5), bool)))


def test_fixed_writes_in_place_and_growing_concatenates():
    cfg, pad = config.tiny(), jnp.zeros(1, jnp.int32)
    new = jnp.ones((cfg.num_key_value_heads, 3, cfg.head_dim))
    fixed = kvc.create(cfg, "fixed", pad, 8, jnp.float32).entries[0]
    keys, _, entry = kvc.append_fixed(fixed, new, new, jnp.int32(2))
    assert keys.shape[1] == entry[0].shape[1] == 8
    np.testing.assert_array_equal(np.asarray(keys[0, :, 0]), [0, 0, 1, 1, 1, 0, 0, 0])
    growing = kvc.create(cfg, "growing", pad, 8, jnp.float32).entries[0]
    assert growing[0].shape[1] == 0
    assert kvc.append_growing(growing, new, new, 0)[0].shape[1] == 3


def test_no_cache_keeps_the_ids_and_reruns_them():
    cache = kvc.create(config.tiny(), "none", jnp.zeros(1, jnp.int32), 6, jnp.float32)
    ids, slot, last, opened = kvc.open_call(cache, jnp.array([[7, 8]]))
    assert (ids.tolist(), int(slot), int(last)) == ([[7, 8, 0, 0, 0, 0]], 0, 1)
    assert opened.entries is None


@pytest.mark.parametrize("kv", kvc.DTYPES)
def test_bytes_of_the_cache_are_as_the_configuration_says(kv):
    cfg, dtype = config.tiny(), kvc.DTYPES[kv]
    position = cfg.kv_bytes_per_position(kvc.itemsize(dtype, cfg.head_dim))
    for stacked in (False, True):
        cache = kvc.create(cfg, "fixed", jnp.zeros(3, jnp.int32), 16, dtype, stacked)
        assert sum(a.nbytes for a in jax.tree.leaves(cache.entries)) == 3 * 16 * position


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), exponent=st.integers(-30, 30), t=st.sampled_from([1, 4]))
def test_what_is_kept_is_within_the_stated_bounds(seed, exponent, t):
    rng = np.random.default_rng(seed)
    k, v = (jnp.asarray(rng.standard_normal((6, t, 8)) * 2.0**exponent, jnp.float32).at[0, 0].set(0) for _ in "kv")
    half = lambda x: np.maximum(np.abs(x) / 2048, 2.0**-25) if np.abs(x).max() < 65504 else np.inf  # noqa: E731
    for kv, bound in (
        ("bf16", lambda x: np.abs(x) / 256),
        ("f16", half),
        ("int8", lambda x: np.abs(x).max(-1, keepdims=True) / 254),
    ):
        entry = kvc.create(
            config.tiny(num_key_value_heads=3), "growing", jnp.zeros(2, jnp.int32), 0, kvc.DTYPES[kv]
        ).entries[0]
        keys, values, _ = kvc.append_growing(entry, k, v, 0)
        for kept, true in ((keys, k), (values, v)):
            assert kept.dtype == jnp.float32
            assert np.all(np.abs(np.asarray(kept) - np.asarray(true)) <= bound(np.asarray(true)) * (1 + 1e-5))


@pytest.mark.slow
@pytest.mark.parametrize(("kv", "bound"), [("bf16", 0.01), ("f16", 0.002), ("int8", 0.05)])
def test_logits_over_a_smaller_cache_are_within_the_stated_bound(packaged, kv, bound):
    """The first 64 tokens go through the cache; the logits of the next 8 are compared with those of a float32 cache."""
    ids = packaged.tokenizer.encode(" ".join(prompts.load(20)))[:72]
    logits = {}
    for kind in ("f32", kv):
        engine = generate.build(packaged, Placement("p", jit=("transform",), kv=kind))
        cache = transforms.new_cache(engine.params, jnp.zeros(1, jnp.int32), 80, engine.config, engine.placement)
        for part in (ids[:64], ids[64:]):
            logits[kind], cache = engine.programs.logits(engine.params, jnp.asarray([part]), cache)
    error = relative_error(logits[kv], logits["f32"])
    assert 1e-5 < error <= bound
