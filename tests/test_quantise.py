"""Quantised matrices: the bytes and numbers of the `gguf` library, and the products on them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax import quantise
from llama_jax.block_types import LAYOUTS, ROWS, RUN
from llama_jax.linear import matmul
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import ROUNDED, Blocks, Joined
from tests.kernels import products
from tests.kernels.products import reference_product

KINDS = sorted(LAYOUTS)


def random_bytes(kind, n, columns, seed=0):
    """Rows of a GGUF tensor with random weights; scales small, some subnormal, zero or negative."""
    size = np.random.default_rng(seed).choice([0, 1e-7, 3e-5, 1e-2], (n, 1, 1))
    return products.random_bytes(kind, n, -(-columns // LAYOUTS[kind].columns), seed, size)


def expected(raw, kind):
    return dequantize(raw.reshape(len(raw), -1), GGMLQuantizationType[kind.upper()])


def bits(values):
    return np.asarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "columns"), [(16, 32), (48, 64), (11, 32), (33, 96)])
def test_dequantised_weights_are_the_librarys_bit_for_bit(kind, n, columns):
    raw = random_bytes(kind, n, columns)
    blocks = quantise.pack(raw, kind)
    assert blocks.shape == (n, raw.shape[1] * LAYOUTS[kind].columns)
    assert blocks.data.shape == (-(-n // ROWS), raw.shape[1], LAYOUTS[kind].group)
    assert not np.asarray(replace(blocks, shape=(len(blocks.data) * ROWS, blocks.shape[1])).dequantised())[n:].any()
    for values in (blocks.dequantised(), jax.jit(Blocks.dequantised)(blocks)):
        np.testing.assert_array_equal(bits(values), bits(expected(raw, kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_at_all_are_the_librarys_numbers(kind):
    """Scales that are infinite or no numbers included."""
    raw = np.random.default_rng(1).integers(0, 256, (64, 20, LAYOUTS[kind].row), np.uint8)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.asarray(quantise.pack(raw, kind).dequantised()), expected(raw, kind))


@pytest.mark.parametrize("kind", ROUNDED)
@pytest.mark.parametrize(("n", "columns"), [(37, 96), (20, 40)])
def test_products_and_rows_are_those_of_the_dequantised_matrix(kind, n, columns):
    rng = np.random.default_rng(3)
    blocks = quantise.from_float(rng.standard_normal((n, columns)), kind)
    dense = np.asarray(blocks.dequantised())
    assert dense.shape == blocks.shape == (n, columns)
    x = rng.standard_normal((2, 3, columns)).astype(np.float32)
    for product in (matmul, jax.jit(matmul)):
        np.testing.assert_allclose(product(jnp.asarray(x), blocks), x @ dense.T, rtol=1e-5, atol=1e-4)
    assert matmul(jnp.asarray(x, jnp.bfloat16), blocks).dtype == jnp.bfloat16
    ids = np.array([[0, n - 1, 3], [15, n // 2, 3]])
    for rows in (blocks[ids], jax.jit(lambda b, i: b[i])(blocks, ids)):
        np.testing.assert_array_equal(bits(rows), bits(dense[ids]))


@pytest.mark.parametrize(("kind", "steps"), [("q8_0", 127), ("q4_0", 8), ("q4_1", 15)])
def test_quantising_rounds_to_the_nearest_step_of_its_block(kind, steps):
    values = np.random.default_rng(4).standard_normal((19, 64)).astype(np.float32)
    values[3, :32] = 0
    kept = np.asarray(quantise.from_float(values, kind).dequantised())
    blocks = values.reshape(19, 2, 32)
    span = blocks.max(-1) - blocks.min(-1) if kind == "q4_1" else np.abs(blocks).max(-1)
    step = np.repeat(span / steps, 32, axis=-1)
    worst = 1.01 if kind == "q4_0" else 0.51  # q4_0 has no +8: the other end of its range is cut
    assert np.all(np.abs(kept - values) <= step * worst + np.abs(values) * 1e-3 + 1e-7)
    assert not kept[3, :32].any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_matrix_are_its_rows(kind):
    blocks = quantise.pack(random_bytes(kind, 37, 512), kind)
    dense, ids = np.asarray(blocks.dequantised()), np.array([[0, 36, 3], [15, 16, 3]])
    np.testing.assert_array_equal(bits(blocks[ids]), bits(dense[ids]))
    for part, rows in zip(blocks.split(16), (dense[:16], dense[16:]), strict=True):
        np.testing.assert_array_equal(bits(part.dequantised()), bits(rows))


def test_a_matrix_of_several_types_is_one_matrix():
    """Its product is that of its parts, with a kernel's product or without."""
    kinds = ("q4_k", "q6_k", "q5_0")
    whole = Joined(
        tuple(quantise.pack(random_bytes(kind, n, 256), kind) for kind, n in zip(kinds, (32, 16, 7), strict=True))
    )
    assert (whole.shape, whole.kinds, whole.nbytes) == ((55, 256), kinds, sum(p.nbytes for p in whole.pieces))
    x = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    dense = np.asarray(whole.dequantised())
    np.testing.assert_allclose(matmul(jnp.asarray(x), whole), x @ dense.T, rtol=1e-5, atol=1e-4)
    twice = whole.multiplied_by(lambda x, data, shape: 2 * jnp.ones((*x.shape[:-1], shape[0])))
    assert np.asarray(matmul(jnp.asarray(x), twice)).tolist() == [[2] * 55] * 3


def test_int8_is_within_half_a_step_of_its_row():
    rng, sizes = np.random.default_rng(5), np.logspace(-30, 3, 9, dtype=np.float32)
    values = rng.standard_normal((9, 40)).astype(np.float32) * sizes[:, None]
    values[4] = 0
    weight = quantise.quantise_int8(values)
    assert (weight.shape, weight.ndim, weight.dtype, weight.values.dtype) == ((9, 40), 2, np.float32, np.int8)
    bound = np.abs(values).max(1, keepdims=True) / 254 * 1.0001
    dense = np.asarray(weight.dequantised())
    assert np.all(np.abs(dense - values) <= bound)
    x = rng.standard_normal((2, 40)).astype(np.float32)
    np.testing.assert_allclose(matmul(jnp.asarray(x), weight)[:, 5:], x @ dense[5:].T, rtol=1e-4)
    np.testing.assert_array_equal(weight[np.array([8, 0])], dense[[8, 0]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_weights_that_no_scale_can_hold_are_refused(bad):
    values = np.ones((4, 32), np.float32)
    values[2, 7] = bad
    for kind in ROUNDED:
        with pytest.raises(UserError, match="not finite, or too large"):
            quantise.quantise(values, kind)
    if bad != 3e38:
        with pytest.raises(UserError, match="not finite"):
            quantise.quantise_int8(values)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(ROUNDED),
    n=st.sampled_from([1, 16, 17]),
    columns=st.sampled_from([1, 31, 32, 130]),
    seed=st.integers(0, 99),
)
def test_reference_arithmetic_is_integer_within_a_block(kind, n, columns, seed):
    """Against the slowest possible way of writing it, and near the exact product. Few sizes: each is a compilation."""
    rng = np.random.default_rng(seed)
    weights, x = rng.standard_normal((n, columns)), rng.standard_normal((2, columns)).astype(np.float32)
    x[1, :32] = 0
    blocks = quantise.from_float(weights, kind)
    product, dense = reference_product(x, blocks), np.asarray(blocks.dequantised(), np.float64)
    assert (product.shape, product.dtype) == ((2, n), np.float64)
    slow = np.zeros((2, n))
    for row, values in enumerate(x):
        for start in range(0, columns, RUN):
            piece = values[start : start + RUN]
            if top := np.abs(piece).max():
                q = np.rint(piece * (np.float32(127) / top)).astype(np.float64)
                slow[row] += np.float64(top / np.float32(127)) * (dense[:, start : start + RUN] @ q)
    np.testing.assert_allclose(product, slow, rtol=1e-5, atol=1e-5)  # dense is rounded to float32 in q4_1
    exact = x.astype(np.float64) @ dense.T
    bound = sum(
        np.abs(x[:, i : i + 32]).max(1)[:, None] / 254 * np.abs(dense[:, i : i + 32]).sum(1)
        for i in range(0, columns, 32)
    )
    assert np.all(np.abs(product - exact) <= bound * 1.001 + 1e-6)


def test_faint_activations_count_as_zeros():
    x = np.full((1, 64), 1e-38, np.float32)
    x[0, 32:] = 1
    blocks = quantise.from_float(np.ones((1, 64)), "q8_0")
    np.testing.assert_allclose(reference_product(x, blocks), [[32]], rtol=1e-3)


def test_blocks_are_a_pytree_that_scans():
    kind, rng = "q4_1", np.random.default_rng(7)
    each = [quantise.pack(random_bytes(kind, 32, 32, i), kind) for i in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    x = jnp.asarray(rng.standard_normal(32), jnp.float32)
    last, _ = jax.lax.scan(lambda x, w: (w.matmul(x, x.dtype), None), x, stacked)
    for weight in each:
        x = weight.matmul(x, x.dtype)
    np.testing.assert_allclose(last, x, rtol=1e-5, atol=1e-9)


def test_a_product_of_its_own_is_given_float32_and_the_blocks_parts():
    asked = []

    def product(x, data, shape):
        asked.append((x.dtype.name, shape))
        return jnp.zeros((*x.shape[:-1], 3))

    blocks = Blocks(quantise.pack(random_bytes("q8_0", 3, 32), "q8_0").data, "q8_0", (3, 32), product)
    values = matmul(jnp.zeros((2, 32), jnp.bfloat16), blocks)
    assert (asked, values.dtype, values.shape) == ([("float32", (3, 32))], jnp.bfloat16, (2, 3))
