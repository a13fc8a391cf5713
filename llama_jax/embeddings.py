"""Token embedding: ids in, vectors out."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Embedding:
    weight: jax.Array  # [V D]


def embed(params: Embedding, ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Look the rows of the embedding table up."""
    with jax.named_scope("embed"):
        return params.weight[ids]
