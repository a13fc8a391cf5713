"""The model's matrix product, with or without a bias. A weight is an array, or any pytree with its own `matmul`."""

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
    if narrow(weight) and single_row(x):
        return row_product(x, weight).astype(out_dtype or x.dtype)
    dims = (((x.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, weight, dims, preferred_element_type=jnp.dtype(out_dtype or x.dtype))


def narrow(weight) -> bool:
    """Whether a weight's numbers are narrower than the float32 that a CPU multiplies."""
    return weight.dtype.itemsize < 4 and jax.default_backend() == "cpu"


def single_row(x) -> bool:
    """Whether x is one row that XLA:CPU multiplies as a vector: below 16 KiB (docs/xla-cpu.md)."""
    return x.size == x.shape[-1] < 4096


def row_product(x: Float[Array, "... K"], weight) -> Float[Array, "... N"]:
    """x @ weight.T in float32 for one row and a weight of bfloat16, float16 or int8.

    XLA:CPU converts the whole weight before it multiplies a matrix by it, but converts while reading if the other
    operand is a vector. The barrier ties the weight to this token. Without it, XLA would move the conversion out of a
    loop over tokens and keep the whole weight as float32.
    """
    x, weight = jax.lax.optimization_barrier((x, weight))
    return (x.reshape(-1).astype(jnp.float32) @ weight.astype(jnp.float32).T).reshape(*x.shape[:-1], -1)
