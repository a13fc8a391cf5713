"""What a quantised product computes, in NumPy: the arithmetic of the kernels, summed in float64."""

from __future__ import annotations

import numpy as np

from llama_jax import quantise


def unpack(blocks: quantise.Blocks) -> np.ndarray:
    """The GGUF bytes [N, K/32, bytes a block] of blocks: the inverse of `quantise.pack`."""
    data, layout = np.asarray(blocks.data), quantise.LAYOUTS[blocks.kind]
    split = 4 * quantise.ROWS * layout.vectors
    groups, columns, _ = data.shape
    vectors = data[..., :split].reshape(groups, columns, layout.vectors, quantise.ROWS, 4).transpose(0, 3, 1, 2, 4)
    scales = data[..., split:].reshape(groups, columns, layout.scales, quantise.ROWS, 2).transpose(0, 3, 1, 2, 4)
    rows = [part.reshape(groups * quantise.ROWS, columns, -1) for part in (scales, vectors)]
    return np.concatenate(rows, axis=-1)[: blocks.shape[0]]


def quantise_activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 values [... K/32 32], float32 scales [... K/32]) of activations [... K]: each block over its largest over
    127, to nearest even. K is filled up with zeros."""
    x = np.asarray(x, np.float32)
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % quantise.COLUMNS)]).reshape(
        *x.shape[:-1], -1, quantise.COLUMNS
    )
    largest = np.max(np.abs(x), axis=-1)
    heard = largest >= quantise.FAINT
    inverse = np.where(heard, np.float32(127) / np.where(heard, largest, 1), 0).astype(np.float32)
    return np.rint(x * inverse[..., None]).astype(np.int8), np.where(heard, largest / np.float32(127), 0).astype(
        np.float32
    )


def reference_product(x: np.ndarray, blocks: quantise.Blocks) -> np.ndarray:
    """x @ blocks.T in the arithmetic of the kernels, float64 [... N]: integers within a block of quantised activations
    and weights, d_x d_w Σ q_x q_w (+ m d_x Σ q_x) summed over the blocks of a row in float64."""
    layout, raw = quantise.LAYOUTS[blocks.kind], unpack(blocks)
    scales = np.ascontiguousarray(raw[..., : 2 * layout.scales]).view(np.float16).astype(np.float64)
    qs = raw[..., 2 * layout.scales :]
    if blocks.kind == "q8_0":
        weights = qs.view(np.int8).astype(np.float64)
    else:
        weights = np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.float64) - (8 if blocks.kind == "q4_0" else 0)
    q, d = quantise_activations(x)
    q, d = q.astype(np.float64), d.astype(np.float64)
    result = np.einsum(
        "...bc,nbc,...b,nb->...n", q, weights, d, scales[..., 0], optimize=["einsum_path", (0, 2), (0, 1), (0, 1)]
    )
    if blocks.kind == "q4_1":
        result += (d * q.sum(-1)) @ scales[..., 1].T
    return result
