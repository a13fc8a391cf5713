"""Normalisation: by the root mean square (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467), as Llama and Qwen2
do, or LayerNorm (Ba et al. 2016, https://arxiv.org/abs/1607.06450), as GPT-2 does. Computed in float32, returned in x's
dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from llama_jax.axes import Array, Float
from llama_jax.config import ModelConfig


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Norm:
    weight: jax.Array  # [D]
    bias: jax.Array | None = None  # [D]; None for RMS


def rms_norm(params: Norm, x: Float[Array, "... D"], *, eps: float) -> Float[Array, "... D"]:
    """x / rms(x) * weight."""
    with jax.named_scope("norm"):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return (wide * scale * params.weight.astype(jnp.float32)).astype(x.dtype)


def layer_norm(params: Norm, x: Float[Array, "... D"], *, eps: float) -> Float[Array, "... D"]:
    """(x - mean(x)) / std(x) * weight + bias."""
    with jax.named_scope("norm"):
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return (wide * scale * params.weight.astype(jnp.float32) + params.bias.astype(jnp.float32)).astype(x.dtype)


NORMS = {"rms": rms_norm, "layer": layer_norm}


def normaliser(config: ModelConfig) -> Callable:
    """norm(params, x) → x of this model."""
    return partial(NORMS[config.norm], eps=config.norm_eps)
