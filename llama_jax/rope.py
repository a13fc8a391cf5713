"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864), rotate-half layout, float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.axes import Array, Float, Int
from llama_jax.config import ModelConfig, RopeScaling


@jax.tree_util.register_static
@dataclass(frozen=True)
class Rope:
    """Angular frequencies in radians a position, [h/2], scaling applied; None for a model with learned positions. Part
    of the program, as the configuration is."""

    inverse: tuple[float, ...] | None


def create(config: ModelConfig) -> Rope:
    """What `layer.forward` rotates by."""
    return Rope(tuple(frequencies(config).tolist()) if config.positions == "rope" else None)


def frequencies(config: ModelConfig) -> np.ndarray:
    """Angular frequencies in radians a position, float32 [h/2], scaling applied."""
    half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    inverse = 1.0 / (config.rope_theta**half)
    if config.rope_scaling is not None:
        inverse = scale(inverse, config.rope_scaling)
    return inverse.astype(np.float32)


def scale(inverse: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Stretch frequencies for a longer context. Llama 3: long waves are divided, short ones kept, the band between
    blended."""
    if scaling.kind == "linear":
        return inverse / scaling.factor
    if scaling.kind == "factors":
        return inverse / np.asarray(scaling.factors)
    wavelength = 2 * math.pi / inverse
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = np.clip((scaling.original_max_position_embeddings / wavelength - low) / (high - low), 0.0, 1.0)
    return (1 - blend) * inverse / scaling.factor + blend * inverse


def angles(positions: Int[Array, "B T"], inverse: Float[np.ndarray, " h2"]) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines [B 1 T h/2] of each position, computed once a step and shared by all layers."""
    theta = positions[:, None, :, None].astype(jnp.float32) * inverse
    return jnp.cos(theta), jnp.sin(theta)


def unrotated(x: Float[Array, "B N T h"], cos: None, sin: None) -> Float[Array, "B N T h"]:
    """In the place of `rotate` for a model whose positions are learned: queries and keys stay as they are."""
    return x


def rotate(
    x: Float[Array, "B N T h"], cos: Float[Array, "B 1 T h2"], sin: Float[Array, "B 1 T h2"]
) -> Float[Array, "B N T h"]:
    """Rotate the pairs (x[i], x[i + h/2]) by their position's angle."""
    with jax.named_scope("rope"):
        left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)
