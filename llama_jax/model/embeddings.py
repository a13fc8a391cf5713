"""Token embedding: ids in, vectors out; with learned positions where the model has them."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from llama_jax.model.axes import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Embedding:
    weight: jax.Array  # [V D]
    positions: jax.Array | None = None  # [P D]; None where rotary embedding carries the position


def embed(params: Embedding, ids: Int[Array, "B T"], positions: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Look the rows of the embedding table up, and add those of the position table."""
    with jax.named_scope("embed"):
        x = params.weight[ids]
        return x if params.positions is None else x + params.positions[positions]
