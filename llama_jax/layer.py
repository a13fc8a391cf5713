"""One transformer layer: attention and feed-forward, each after a norm and around a residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax

from llama_jax.attention import Attention, CallPositions
from llama_jax.axes import Array, Float
from llama_jax.ffn import FFN
from llama_jax.norm import Norm
from llama_jax.taps import untapped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    attention_norm: Norm
    attention: Attention
    ffn_norm: Norm
    ffn: FFN


def layer(
    params: Layer,
    x: Float[Array, "B T D"],
    where: CallPositions,
    entry,
    *,
    norm: Callable,
    attend: Callable,
    ffn: Callable,
    tap: Callable = untapped,
):
    """x → ([B T D], this layer's cache entry with T more positions). `tap` sees the points named in `taps`."""
    with jax.named_scope("layer"):
        x = tap("resid_pre", x)
        mixed, entry = attend(params.attention, norm(params.attention_norm, x), where, entry)
        x = tap("resid_mid", x + tap("attn_out", mixed))
        return tap("resid_post", x + tap("mlp_out", ffn(params.ffn, norm(params.ffn_norm, x)))), entry
