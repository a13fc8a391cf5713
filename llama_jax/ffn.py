"""Gated feed-forward network, SwiGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float

from llama_jax.linear import matmul


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FFN:
    gate: jax.Array  # [F D]
    up: jax.Array  # [F D]
    down: jax.Array  # [D F]


def ffn(params: FFN, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """down(silu(gate x) * up x)."""
    with jax.named_scope("ffn"):
        return matmul(jax.nn.silu(matmul(x, params.gate)) * matmul(x, params.up), params.down)
