"""Token embedding: ids in, vectors out; with learned positions where the model has them."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from llama_jax.axes import Array, Float, Int
from llama_jax.linear import narrow


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Embedding:
    weight: jax.Array  # [V D]
    positions: jax.Array | None = None  # [P D]; None where rotary embedding carries the position


def embed(params: Embedding, ids: Int[Array, "B T"], positions: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Look the rows of the embedding table up, and add those of the position table.

    The barrier ties a narrow table to these ids: XLA:CPU would convert all of it to float32 before a loop over tokens.
    """
    with jax.named_scope("embed"):
        table = params.weight
        if isinstance(table, jax.Array) and narrow(table):
            table, ids = jax.lax.optimization_barrier((table, ids))
        x = table[ids]
        return x if params.positions is None else x + params.positions[positions]
