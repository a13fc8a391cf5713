import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError, jaxtyped

from llama_jax import attention, ffn, kvc, norm


@settings(max_examples=8, deadline=None)
@given(*(st.integers(1, n) for n in (3, 3, 3, 5)), st.integers(0, 6), st.integers(0, 99))
def test_equals_torch_attention(b, k, groups, t, extra, seed):
    rng, h, s = np.random.default_rng(seed), 4, t + extra
    q, keys, values = (
        rng.standard_normal((b, n, m, h)).astype(np.float32) for n, m in ((k * groups, t), (k, s), (k, s))
    )
    mask = np.arange(s)[None, None] <= (extra + np.arange(t))[None, :, None]
    mask = np.broadcast_to(mask, (b, t, s))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.tensor, (q, keys, values)), attn_mask=torch.tensor(mask.copy())[:, None], enable_gqa=True
    )
    mixed = jax.jit(attention.scaled_dot_product)(q, keys.reshape(-1, s, h), values.reshape(-1, s, h), mask)
    np.testing.assert_allclose(mixed, expected, atol=2e-6)


def test_a_query_that_sees_nothing_gets_zeros():
    ones = jnp.ones((1, 1, 2, 4))
    mixed = attention.scaled_dot_product(ones, ones[0], ones[0], jnp.array([[[False, False], [True, False]]]))
    np.testing.assert_array_equal(mixed[0, 0], [[0] * 4, [1] * 4])


def test_masked_keys_do_not_count():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((1, 2, 3, 4)), jnp.float32) for _ in "qkv")
    mask = kvc.causal_mask(jnp.arange(3), jnp.array([0]), 3)
    k, v = k[0], v[0]
    spoilt = k.at[:, 2].set(1e6), v.at[:, 2].set(1e6)
    a, b = (attention.scaled_dot_product(q, *kv, mask) for kv in ((k, v), spoilt))
    np.testing.assert_array_equal(a[:, :, :2], b[:, :, :2])
    assert not np.array_equal(a[:, :, 2], b[:, :, 2])


def test_shapes_are_checked():
    attend = jaxtyped(typechecker=beartype)(attention.scaled_dot_product)
    q, k, mask = jnp.ones((1, 4, 2, 8)), jnp.ones((2, 3, 8)), jnp.ones((1, 2, 3), bool)
    assert attend(q, k, k, mask).shape == q.shape
    with pytest.raises(TypeCheckError):
        attend(q, k, jnp.ones((2, 4, 8)), mask)


def test_norm_is_float32_inside_and_keeps_its_dtype():
    x = jnp.full((1, 1, 64), 300.0, jnp.bfloat16)  # its square overflows nothing, its mean is exact only in float32
    y = norm.rms_norm(norm.Norm(jnp.ones(64, jnp.bfloat16)), x, eps=1e-5)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float32), 1.0, rtol=1e-2)


def test_ffn_equals_torch():
    rng = np.random.default_rng(0)
    x, gate, up, down = (rng.standard_normal(s).astype(np.float32) for s in ((1, 2, 8), (16, 8), (16, 8), (8, 16)))
    t = [torch.tensor(a) for a in (x, gate, up, down)]
    expected = (torch.nn.functional.silu(t[0] @ t[1].T) * (t[0] @ t[2].T)) @ t[3].T
    params = ffn.FFN(jnp.concatenate([gate, up]), jnp.asarray(down))
    np.testing.assert_allclose(ffn.gated(params, jnp.asarray(x)), expected, rtol=1e-4, atol=1e-4)
