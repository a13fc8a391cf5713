"""Gated feed-forward network, SwiGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llama_jax.linear import matmul


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FFN:
    gate_up: jax.Array  # [2F D]: gate rows, then up rows
    down: jax.Array  # [D F]


def ffn(params: FFN, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """down(silu(gate x) * up x)."""
    with jax.named_scope("ffn"):
        gate, up = jnp.split(matmul(x, params.gate_up), 2, axis=-1)
        return matmul(jax.nn.silu(gate) * up, params.down)
