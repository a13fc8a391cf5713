"""Output head: final norm and the product with the (often tied) vocabulary matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float
from llama_jax.linear import matmul
from llama_jax.norm import Norm


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Head:
    norm: Norm
    weight: jax.Array | None  # [V D]; None when tied to the embedding


def head(
    params: Head, vocabulary: Float[Array, "V D"], x: Float[Array, "B T D"], *, norm: Callable
) -> Float[Array, "B T V"]:
    """Logits in float32. `vocabulary` is the head's own matrix or, when tied, the embedding table."""
    with jax.named_scope("head"):
        return matmul(norm(params.norm, x), vocabulary, out_dtype=jnp.float32)
