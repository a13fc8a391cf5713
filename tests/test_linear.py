"""One row times a narrow weight: the same product, without a float32 copy of the weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import linear, quantise


def parts(k=64, n=48):
    rng = np.random.default_rng(0)
    return rng.normal(size=(1, 1, k)).astype(np.float32), rng.normal(size=(n, k)).astype(np.float32)


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16])
def test_a_row_times_a_narrow_weight(kind):
    x, w = parts()
    weight = jnp.asarray(w, kind)
    expected = x @ np.asarray(weight, np.float32).T
    np.testing.assert_allclose(linear.matmul(jnp.asarray(x), weight), expected, rtol=1e-5, atol=1e-5)
    several = jnp.asarray(np.repeat(x, 3, axis=1))
    np.testing.assert_allclose(linear.matmul(several, weight), np.repeat(expected, 3, axis=1), rtol=1e-5, atol=1e-5)
    narrow = linear.matmul(jnp.asarray(x, kind), weight)
    assert (narrow.dtype, narrow.shape) == (kind, (1, 1, 48))
    assert linear.matmul(jnp.asarray(x, kind), weight, jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize("rows", [1, 2])
def test_only_a_single_row_reads_the_weight_as_it_is(rows):
    """In a loop over tokens too: there XLA would move the conversion out and keep the whole weight as float32."""
    n, k = 2048, 512
    weight = quantise.quantise_int8(np.random.default_rng(0).normal(size=(n, k)).astype(np.float32))

    def loop(x, weight):
        return jax.lax.scan(lambda x, _: (weight.matmul(x, jnp.float32)[..., :k] * 1e-3, None), x, None, length=8)[0]

    program = jax.jit(loop).lower(jnp.ones((rows, 1, k)), weight).compile()
    assert (program.memory_analysis().temp_size_in_bytes < 4 * n * k / 2) == (rows == 1)
