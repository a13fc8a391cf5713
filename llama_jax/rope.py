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
    """How a layer rotates queries and keys, and how far back it looks. Part of the program, like the configuration.

    inverse: angular frequencies in radians per position, [r/2] for the first r numbers of a head, scaling applied; None
    if nothing is rotated. scale: factor of rotated numbers. window: number of positions that a token sees, its own
    included; None: all earlier ones.
    """

    inverse: tuple[float, ...] | None
    scale: float = 1.0
    window: int | None = None


def create(config: ModelConfig, layer: int = 0) -> Rope:
    """The rotation that `layer.forward` applies to a layer."""
    local = layer in config.local_layers
    rotated = config.positions == "rope" and layer not in config.unrotated_layers
    inverse = tuple(frequencies(config, local).tolist()) if rotated else None
    return Rope(inverse, config.rotary_scale, config.window if local else None)


def of_layers(config: ModelConfig) -> tuple[tuple[Rope, ...], tuple[int, ...]]:
    """The ropes that differ, and which of them each layer has."""
    each = [create(config, layer) for layer in range(config.num_hidden_layers)]
    ropes = tuple(dict.fromkeys(each))
    return ropes, tuple(map(ropes.index, each))


def frequencies(config: ModelConfig, local: bool = False) -> np.ndarray:
    """Angular frequencies in radians per position, float32 [r/2], scaling applied; those of local layers."""
    size = config.rotary_dim or config.head_dim
    half = np.arange(0, size, 2, dtype=np.float64) / size
    own = config.local_rope_theta if local else None
    inverse = 1.0 / ((own or config.rope_theta) ** half)
    if config.rope_scaling is not None and not own:
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
    """Cosines and sines [B 1 T h/2] of each position, computed once per step and shared by all layers."""
    theta = positions[:, None, :, None].astype(jnp.float32) * inverse
    return jnp.cos(theta), jnp.sin(theta)


def turned(rope: Rope, positions: Int[Array, "B T"]) -> tuple[jax.Array | None, jax.Array | None]:
    """As `angles`, for a layer's rope, scale applied; (None, None) if nothing is rotated."""
    if rope.inverse is None:
        return None, None
    cos, sin = angles(positions, np.asarray(rope.inverse, np.float32))
    return (cos, sin) if rope.scale == 1 else (cos * rope.scale, sin * rope.scale)


def rotate(
    x: Float[Array, "B N T h"], cos: Float[Array, "B 1 T r2"], sin: Float[Array, "B 1 T r2"]
) -> Float[Array, "B N T h"]:
    """Rotate the pairs (x[i], x[i + r/2]) by their position's angle; numbers after the first r stay as they are."""
    with jax.named_scope("rope"):
        rest = [x[..., 2 * cos.shape[-1] :]] if 2 * cos.shape[-1] < x.shape[-1] else []
        turning = x[..., : 2 * cos.shape[-1]] if rest else x
        left, right = jnp.split(turning.astype(jnp.float32), 2, axis=-1)
        pair = [left * cos - right * sin, right * cos + left * sin]
        return jnp.concatenate([*pair, *rest], axis=-1).astype(x.dtype)
