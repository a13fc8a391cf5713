"""Feed-forward network: gated, SwiGLU or GeGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202), or GPT-2's plain one
with GELU by its tanh formula (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float
from llama_jax.linear import linear


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FFN:
    gate_up: jax.Array  # [2F D]: gate rows, then up rows; [F D] up rows alone if there is no gate
    down: jax.Array  # [D F]
    gate_up_bias: jax.Array | None = None  # [2F] or [F]
    down_bias: jax.Array | None = None  # [D]


def gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def gated(params: FFN, x: Float[Array, "B T D"], *, act: Callable = jax.nn.silu) -> Float[Array, "B T D"]:
    """down(act(gate x) * up x)."""
    with jax.named_scope("ffn"):
        gate, up = jnp.split(linear(x, params.gate_up, params.gate_up_bias), 2, axis=-1)
        return linear(act(gate) * up, params.down, params.down_bias)


def plain(params: FFN, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """down(gelu(up x))."""
    with jax.named_scope("ffn"):
        up = linear(x, params.gate_up, params.gate_up_bias)
        return linear(gelu(up), params.down, params.down_bias)


FFNS = {"silu": gated, "gelu_tanh": partial(gated, act=gelu), "gelu_new": plain}
