"""Root-mean-square normalisation (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def rms_norm(weight: Float[Array, " D"], x: Float[Array, "... D"], *, eps: float) -> Float[Array, "... D"]:
    """x / rms(x) * weight. Computed in float32, returned in x's dtype."""
    with jax.named_scope("norm"):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return (wide * scale * weight.astype(jnp.float32)).astype(x.dtype)
