"""Products with quantised weights, for one row of activations or many."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float
from llama_jax.kernels.registry import registered


def product(x: Float[Array, "... K"], blocks) -> Float[Array, "... N"]:
    """x @ weight.T in float32 for a weight of `quantize.Blocks`, its activations rounded to int8 per 32 columns.

    One XLA operation, usable un-jitted, jitted, in loops and under `vmap`, which calls it once a member; it has no gradient.
    Raises UserError where the kernels cannot be compiled.
    """
    n, k = blocks.shape
    rows = x.astype(jnp.float32).reshape(-1, k)
    call = jax.ffi.ffi_call(registered("llama_jax_gemv"), jax.ShapeDtypeStruct((rows.shape[0], n), jnp.float32), vmap_method="sequential")
    return call(rows, blocks.data).reshape(*x.shape[:-1], n)
