"""Products on quantised weights equal a float64 reference of the same arithmetic, whatever the shape, the numbers or
the caller."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax import quantise
from llama_jax.block_types import LAYOUTS
from llama_jax.kernels import gemv
from tests.conftest import relative_error
from tests.kernels.products import random_bytes, reference_product, weight, with_scales

KINDS = sorted(LAYOUTS)
EXACT = 1e-5  # relative; what is left is the order of float32 sums


def activations(m, k, seed=0):
    return np.random.default_rng(seed + 1000).standard_normal((m, k)).astype(np.float32)


def times(x, blocks):
    return gemv.product(x, blocks.data, blocks.shape)


def close(result, x, blocks, atol=0.0):
    expected = reference_product(x, blocks)
    assert np.shape(result) == expected.shape
    for a, b in zip(np.asarray(result, np.float64), expected, strict=True):
        assert np.linalg.norm(a - b) <= EXACT * np.linalg.norm(b) + atol


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 70),
    k=st.integers(1, 200),
    m=st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 11]),
    seed=st.integers(0, 99),
)
def test_any_shape_equals_the_reference(kind, n, k, m, seed):
    """Rows that 16 does not divide, columns that 32 does not, one row of activations, four together and what is left of
    fours."""
    blocks = weight(kind, n, k, seed)
    x = activations(m, blocks.shape[1], seed)
    terms = np.abs(np.asarray(x)) @ np.abs(np.asarray(blocks.dequantised())).T  # a sum near 0 may be of large ones
    close(times(x, blocks), x, blocks, 1e-6 * np.linalg.norm(terms, axis=-1).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [1, 6])
def test_large_enough_for_helpers_equals_the_reference_and_itself(kind, m):
    """Above the size from which threads help; a row of activations gives the same bits alone and among others, every
    time."""
    x, blocks = activations(m, 1024), weight(kind, 2057, 1024)
    assert blocks.data.nbytes > 1 << 19
    first = np.asarray(times(x, blocks))
    close(first, x, blocks)
    for _ in range(5):
        np.testing.assert_array_equal(np.asarray(times(x, blocks)), first)
    np.testing.assert_array_equal(np.asarray(times(x[-1:], blocks))[0], first[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_many_threads_give_the_same_bits_as_one(kind):
    """A product is cut by rows alone, so a part of the weight that one thread does by itself gives the same rows."""
    x, raw = activations(3, 1024), weight(kind, 2048, 1024)
    parts = [replace(raw, data=raw.data[i : i + 16], shape=(256, 1024)) for i in range(0, 128, 16)]
    assert parts[0].data.nbytes * 3 < 1 << 20
    alone = np.concatenate([np.asarray(times(x[:1], part)) for part in parts], axis=1)
    np.testing.assert_array_equal(np.asarray(times(x, raw))[:1], alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-32, 1.0, 1e30, 1e37])
def test_activations_of_any_size(kind, size):
    """Below 1e-30 they count as zeros; up to float32's end nothing overflows on the way."""
    scale = (1e-5 if LAYOUTS[kind].codes else 1e-3) if size > 1e35 else 1.0  # codes of scales are up to 127
    blocks = weight(kind, 33, 96, scale=scale)
    x = activations(5, blocks.shape[1]) * np.float32(size)
    result = np.asarray(times(x, blocks))
    assert np.isfinite(result).all()
    close(result, x, blocks)
    assert result.any() == (size > 1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_zeros_among_others(kind):
    blocks = weight(kind, 20, 128)
    x = activations(4, blocks.shape[1])
    x[:, 32:64] = 0
    x[1] = 0
    x[2, :32] = 1e-33
    result = np.asarray(times(x, blocks))
    close(result, x, blocks)
    assert not result[1].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [6e-8, 3e-6, 5e-5, 7e-5])
@pytest.mark.parametrize("sign", [1, -1])
def test_subnormal_and_negative_scales(kind, scale, sign):
    """A float16 below 6.1e-5 is subnormal, which XLA's flushing of subnormal floats must not touch."""
    raw = with_scales(random_bytes(kind, 24, 2), kind, sign * scale)
    blocks = replace(quantise.pack(raw, kind), product=gemv.product)
    x = activations(5, blocks.shape[1])
    result = np.asarray(times(x, blocks))
    assert result.any()
    close(result, x, blocks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", [0, 127, 128, 129, 255])
@pytest.mark.parametrize("value", [1.0, -1.0])
def test_extreme_codes_meet_extreme_activations(kind, code, value):
    """All weights -128, 127 and so on times activations of ±127: the largest sums that the products of bytes can
    meet."""
    raw = np.full((16, 2, LAYOUTS[kind].row), code, np.uint8)
    raw = with_scales(raw, kind, np.random.default_rng(0).standard_normal((16, 2, LAYOUTS[kind].halves)))
    blocks = replace(quantise.pack(raw, kind), product=gemv.product)
    x = np.full((5, blocks.shape[1]), value, np.float32)
    result = np.asarray(times(x, blocks))
    if LAYOUTS[kind].halves == 2:  # the two terms may all but cancel
        terms = np.abs(reference_product(np.abs(x), blocks)).max() + 64 * 16
        np.testing.assert_allclose(result, reference_product(x, blocks), atol=EXACT * terms, rtol=EXACT)
    else:
        close(result, x, blocks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, 15, 16, 37, 63])
def test_a_nan_is_never_lost(kind, at):
    blocks = weight(kind, 40, 64)
    x = activations(6, blocks.shape[1])
    clean = np.asarray(times(x, blocks))
    x[2, at] = np.nan
    result = np.asarray(times(x, blocks))
    assert np.isnan(result[2]).all()
    np.testing.assert_array_equal(np.delete(result, 2, axis=0), np.delete(clean, 2, axis=0))


@pytest.mark.parametrize("kind", KINDS)
def test_under_every_transformation_of_control(kind):
    """Un-jitted, jitted, in a scan, in a while loop and under vmap: the same bits."""
    blocks = weight(kind, 33, 80)
    x = activations(3, blocks.shape[1])
    expected = np.asarray(times(x, blocks))
    close(expected, x, blocks)
    jitted = jax.jit(lambda x, data: gemv.product(x, data, blocks.shape))(x, blocks.data)
    _, scanned = jax.lax.scan(lambda c, row: (c, times(row, blocks)), 0, x)

    def body(state):
        i, out = state
        return i + 1, out.at[i].set(times(jnp.asarray(x)[i], blocks))

    _, looped = jax.jit(lambda: jax.lax.while_loop(lambda s: s[0] < 3, body, (0, jnp.zeros((3, 33)))))()
    mapped = jax.vmap(lambda row: times(row, blocks))(x)
    over_weights = jax.vmap(lambda data: gemv.product(x, data, blocks.shape))(jnp.stack([blocks.data, blocks.data]))
    for result in (jitted, scanned, looped, mapped, over_weights[0], over_weights[1]):
        np.testing.assert_array_equal(np.asarray(result), expected)
    batched = times(x.reshape(3, 1, 1, -1), blocks)
    assert batched.shape == (3, 1, 1, 33)
    np.testing.assert_array_equal(np.asarray(batched).reshape(3, 33), expected)


def test_no_rows_of_activations_at_all():
    empty = weight("q8_0", 20, 64)
    assert times(np.zeros((0, 64), np.float32), empty).shape == (0, 20)


def test_the_gradient_is_refused_in_words():
    blocks = weight("q4_0", 16, 32)
    with pytest.raises(ValueError, match="llama_jax_gemv` cannot be differentiated"):
        jax.grad(lambda x: times(x, blocks).sum())(jnp.ones((1, 32)))


def test_the_reference_tells_a_wrong_product_from_a_right_one():
    """The control of every test above: swapped rows, another kind, activations that were not rounded."""
    x, blocks = activations(2, 256), weight("q4_0", 32, 256)
    result, expected = np.asarray(times(x, blocks)), reference_product(x, blocks)
    assert relative_error(result, expected) < EXACT
    assert relative_error(result[:, ::-1], expected) > 0.1
    assert relative_error(x @ np.asarray(blocks.dequantised()).T, expected) > 100 * EXACT
