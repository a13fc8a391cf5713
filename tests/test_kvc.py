import jax.numpy as jnp
import numpy as np

from llama_jax import config, kvc


def test_mask_of_a_padded_row():
    mask = kvc.causal_mask(jnp.arange(5), jnp.array([2, 0]), 5)
    drawn = ["".join(".x"[int(v)] for v in row) for row in mask[0]]
    assert drawn == [".....", ".....", "..x..", "..xx.", "..xxx"]
    np.testing.assert_array_equal(mask[1], np.tril(np.ones((5, 5), bool)))


def test_fixed_writes_in_place_and_growing_concatenates():
    cfg, pad = config.tiny(), jnp.zeros(1, jnp.int32)
    new = jnp.ones((1, cfg.num_key_value_heads, 3, cfg.head_dim))
    fixed = kvc.create(cfg, "fixed", pad, 8, jnp.float32).entries[0]
    keys, _, entry = kvc.append_fixed(fixed, new, new, jnp.int32(2))
    assert keys.shape[2] == entry[0].shape[2] == 8
    np.testing.assert_array_equal(np.asarray(keys[0, 0, :, 0]), [0, 0, 1, 1, 1, 0, 0, 0])
    growing = kvc.create(cfg, "growing", pad, 8, jnp.float32).entries[0]
    assert growing[0].shape[2] == 0
    assert kvc.append_growing(growing, new, new, 0)[0].shape[2] == 3


def test_no_cache_keeps_the_ids_and_reruns_them():
    cache = kvc.create(config.tiny(), "none", jnp.zeros(1, jnp.int32), 6, jnp.float32)
    ids, slot, last, opened = kvc.open_call(cache, jnp.array([[7, 8]]))
    assert (ids.tolist(), int(slot), int(last)) == ([[7, 8, 0, 0, 0, 0]], 0, 1)
    assert opened.entries is None


def test_bytes_of_the_cache_are_as_the_configuration_says():
    cfg = config.tiny()
    cache = kvc.create(cfg, "fixed", jnp.zeros(3, jnp.int32), 16, jnp.float32)
    assert sum(a.nbytes for entry in cache.entries for a in entry) == 3 * 16 * cfg.kv_bytes_per_position(4)
