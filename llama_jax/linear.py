"""The model's one matrix product, with or without a bias. A weight is an array or any pytree that brings its own `matmul`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float


def linear(x: Float[Array, "... I"], weight, bias: Float[Array, " O"] | None = None) -> Float[Array, "... O"]:
    """x @ weight.T + bias, for layers that have a bias and those that have none."""
    y = matmul(x, weight)
    return y if bias is None else y + bias


def matmul(x: Float[Array, "... I"], weight, out_dtype=None) -> Float[Array, "... O"]:
    """x @ weight.T for a weight stored [O, I] (Hugging Face's layout): each output reads one contiguous row."""
    if hasattr(weight, "matmul"):
        return weight.matmul(x, out_dtype or x.dtype)
    dims = (((x.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.dtype(out_dtype or x.dtype))
