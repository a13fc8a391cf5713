"""Token embedding: ids in, vectors out; with learned positions if the model has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Bool, Float, Int
from llama_jax.config import ModelConfig
from llama_jax.linear import narrow
from llama_jax.plumbing.errors import UserError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Embedding:
    weight: jax.Array  # [V D]
    positions: jax.Array | None = None  # [P D]; None if rotary embedding carries the position


def embed(
    params: Embedding, ids: Int[Array, "B T"], positions: Int[Array, "B T"], *, scale: float = 1.0
) -> Float[Array, "B T D"]:
    """Look the rows of the embedding table up, times `scale` in their dtype, and add those of the position table.

    The barrier ties a narrow table to these ids: XLA:CPU would convert all of it to float32 before a loop over tokens.
    """
    with jax.named_scope("embed"):
        table = params.weight
        if isinstance(table, jax.Array) and narrow(table):
            table, ids = jax.lax.optimization_barrier((table, ids))
        x = table[ids]
        x = x if scale == 1 else x * jnp.asarray(scale, x.dtype)
        return x if params.positions is None else x + params.positions[positions]


def forward(
    config: ModelConfig, embeddings: Embedding, ids: Int[Array, "B T"], positions: Int[Array, "B T"] | None = None
) -> Float[Array, "B T D"]:
    """The first part of a step that you compose yourself. positions: of the ids, for a model with learned positions.

    Raises UserError for ids of another shape or kind, for ids or positions outside the tables, and if such a model gets
    no positions. Inside `jax.jit` the numbers cannot be checked: there the result is NaN instead.
    """
    check_ids(ids)
    if config.positions == "learned" and positions is None:
        raise UserError(f"A {config.model_type} model adds learned positions; give embeddings.forward its positions=.")
    words = f"A token id is not in the vocabulary, 0 to {config.vocab_size - 1}; take the tokenizer of this model."
    known = jnp.all((ids >= 0) & (ids < config.vocab_size))
    x = demanded(embed(embeddings, ids, positions, scale=config.embedding_scale), known, lambda: words)
    if config.positions != "learned":
        return x
    last = config.max_position_embeddings - 1
    learned = jnp.all(jnp.asarray(positions) <= last)  # below 0 is padding, which is masked
    return demanded(x, learned, lambda: f"The model learned the positions 0 to {last}; give none past them.")


def demanded(x: jax.Array, holds: Bool[Array, ""], otherwise: Callable[[], str]) -> jax.Array:
    """x if `holds`. Otherwise NaN inside `jax.jit`, and outside it a UserError with the text of `otherwise`."""
    if isinstance(holds, jax.core.Tracer):
        return jnp.where(holds, x, jnp.nan)
    if not holds:
        raise UserError(otherwise())
    return x


def check_ids(ids: Int[Array, "B T"]) -> None:
    """Raises UserError for anything but an array of whole numbers [B T]."""
    shape, dtype = getattr(ids, "shape", None), getattr(ids, "dtype", None)
    if shape is None or len(shape) != 2 or not jnp.issubdtype(dtype, jnp.integer):
        given = f"{dtype}{list(shape)}" if shape is not None else f"a {type(ids).__name__}"
        raise UserError(f"The token ids are {given}; they must be whole numbers [B T], as tokenizer.encode gives them.")
