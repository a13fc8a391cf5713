"""Output head: final norm and the product with the (often tied) vocabulary matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float, Int
from llama_jax.config import ModelConfig
from llama_jax.linear import matmul
from llama_jax.norm import Norm, normaliser
from llama_jax.plumbing.errors import UserError


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


def forward(
    config: ModelConfig, params: Head, x: Float[Array, "B T D"], position_mask: Int[Array, "B W"]
) -> Float[Array, "B V"]:
    """The last part of a step that you compose yourself: float32 logits of each row's last token.

    position_mask: its first T columns say which tokens of x are padding; it may have more. A later piece of a prompt
    needs its own columns. With T = 1 the mask is not read.
    Raises UserError for a mask with fewer rows or columns, and for a head without its own matrix.
    """
    rows, t = x.shape[:2]
    if params.weight is None:
        raise UserError("This head shares the embedding's matrix; model.create(config) puts it into .head.")
    if jnp.ndim(position_mask) != 2 or position_mask.shape[0] != rows or (t > 1 and position_mask.shape[1] < t):
        raise UserError(f"The position mask is {list(jnp.shape(position_mask))}, and x has {rows} rows of {t} tokens.")
    if t > 1:
        last = t - 1 - jnp.argmax(jnp.flip(jnp.asarray(position_mask[:, :t], bool), axis=1), axis=1)
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)
    return head(params, params.weight, x, norm=normaliser(config))[:, 0]
