"""Products with quantised weights, for one row of activations or many."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float
from llama_jax.kernels.build import registered


def product(x: Float[Array, "... K"], data: jax.Array, shape: tuple[int, int]) -> Float[Array, "... N"]:
    """x @ blocks.T in float32, the activations rounded to int8 per 32 columns; data and shape are those of a
    `quantise.Blocks`.

    One XLA operation, usable un-jitted, jitted, in loops and under `vmap`, which calls it once per member; it has no
    gradient.
    Raises UserError if the kernels cannot be compiled.
    """
    n, k = shape
    rows = x.astype(jnp.float32).reshape(-1, k)
    call = jax.ffi.ffi_call(
        registered("llama_jax_gemv"), jax.ShapeDtypeStruct((rows.shape[0], n), jnp.float32), vmap_method="sequential"
    )
    result = call(rows, data)
    return result.reshape(*x.shape[:-1], n)
