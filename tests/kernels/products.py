"""What a quantised product computes, in NumPy: the arithmetic of the kernels, summed in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llama_jax import quantise
from llama_jax.block_types import HALVES, LAYOUTS, RUN
from llama_jax.kernels import gemv


def random_bytes(kind: str, n: int, blocks: int, seed: int = 0, scale=1.0) -> np.ndarray:
    """The bytes [N, B, bytes a block] of a GGUF tensor: every code, and scales of both signs."""
    rng, layout = np.random.default_rng(seed), LAYOUTS[kind]
    raw = rng.integers(0, 256, (n, blocks, layout.row), np.uint8)
    return with_scales(raw, kind, rng.standard_normal((n, blocks, layout.halves)) * scale)


def with_scales(raw: np.ndarray, kind: str, scales) -> np.ndarray:
    """The same bytes with other float16 scales [N, B, 1-or-2]."""
    raw, count = raw.copy(), LAYOUTS[kind].halves
    spread = np.ascontiguousarray(np.broadcast_to(scales, (*raw.shape[:2], count)), np.float16)
    raw[..., HALVES[kind]] = spread.view(np.uint8)
    return raw


def weight(kind: str, n: int, k: int, seed: int = 0, scale: float = 1.0) -> quantise.Blocks:
    """A matrix of random bytes that the kernel multiplies. Missing columns of a block of 32 are quantised zeros, as
    `pack` wants them; K is rounded up to whole blocks of 256."""
    columns = LAYOUTS[kind].columns
    raw = random_bytes(kind, n, -(-k // columns), seed, scale)
    return replace(quantise.pack(raw, kind, k if columns == 32 else None), product=gemv.product)


def quantise_activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 values [... K/32 32], float32 scales [... K/32]) of activations [... K]: each block over its largest over
    127, to nearest even. K is filled up with zeros."""
    x = np.asarray(x, np.float32)
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % RUN)]).reshape(*x.shape[:-1], -1, RUN)
    largest = np.max(np.abs(x), axis=-1)
    heard = largest >= quantise.FAINT
    inverse = np.where(heard, np.float32(127) / np.where(heard, largest, 1), 0).astype(np.float32)
    return np.rint(x * inverse[..., None]).astype(np.int8), np.where(heard, largest / np.float32(127), 0).astype(
        np.float32
    )


def reference_product(x: np.ndarray, blocks: quantise.Blocks | quantise.Joined) -> np.ndarray:
    """x @ blocks.T in the arithmetic of the kernels, float64 [... N]: rounded activations times the weights."""
    q, d = quantise_activations(x)
    rounded = (q.astype(np.float64) * d[..., None].astype(np.float64)).reshape(*q.shape[:-2], -1)
    return rounded[..., : blocks.shape[1]] @ np.asarray(blocks.dequantised(), np.float64).T
