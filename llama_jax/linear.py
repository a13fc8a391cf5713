"""The model's one matrix product, with or without a bias. A weight is an array or any pytree that brings its own `matmul`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float


def linear(x: Float[Array, "... I"], weight, bias: Float[Array, " O"] | None = None) -> Float[Array, "... O"]:
    """x @ weight + bias, for layers that have a bias and those that have none."""
    y = matmul(x, weight)
    return y if bias is None else y + bias


def matmul(x: Float[Array, "... I"], weight, out_dtype=None, axis: int = 0) -> Float[Array, "... O"]:
    """x @ weight for a weight stored [I, O]; with axis=1 x @ weight.T for a table of rows [O, I].

    [I, O] is not Hugging Face's layout: XLA's CPU products of 1 to 50 rows take a tenth to a third less time in it
    (data/performance-changes.csv).
    """
    if hasattr(weight, "matmul"):
        return weight.matmul(x, out_dtype or x.dtype)
    dims = (((x.ndim - 1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.dtype(out_dtype or x.dtype))
