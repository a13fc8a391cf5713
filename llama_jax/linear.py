"""The model's one matrix product. A weight is an array or any pytree that brings its own `matmul`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def matmul(x: Float[Array, "... I"], weight, out_dtype=None) -> Float[Array, "... O"]:
    """x @ weight.T for a weight stored [O, I] (Hugging Face's layout): each output reads one contiguous row."""
    if hasattr(weight, "matmul"):
        return weight.matmul(x, out_dtype or x.dtype)
    dims = (((x.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.dtype(out_dtype or x.dtype))
