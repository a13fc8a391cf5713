"""The weights of all layers in a few arrays, as the fused kernel takes them.

A call costs its host some time for each array, and more after the previous token's weights have swept the caches: 180
separate arrays for thirty layers cost a fifth of a token
(`data/performance-changes.csv`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from llama_jax.block_types import groups_of
from llama_jax.layer import Layer
from llama_jax.plumbing import memory
from llama_jax.quantise import Blocks, Joined

UNIT = 64  # bytes: a matrix begins at a multiple of this


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """L layers, instead of a tuple of them (`model.Model.layers`).

    blocks: bytes [N], the groups of each layer's q, k, v, o, gate, up and down, one matrix after the other. table:
    int32 [L, 7, 4], where each begins in units of 64 bytes, and the sizes of its `Blocks.data`. norms: float32 [L, 2,
    D], attention's and the feed-forward's; [L, 4, D] where what they give has norms too, which are last. None for a
    model that has none: biases float32 [L, (H+2K)*h], those of qkv; o_biases [L, D]; head_norms [L, 2, h], of queries
    and keys.
    """

    blocks: jax.Array
    table: jax.Array
    norms: jax.Array
    biases: jax.Array | None
    o_biases: jax.Array | None
    head_norms: jax.Array | None
    kinds: tuple[tuple[str, ...], ...] = field(metadata=dict(static=True))  # each layer's seven matrices'
    shapes: tuple[tuple[int, int], ...] = field(metadata=dict(static=True))  # the seven matrices', in every layer alike


def matrices(layer: Layer) -> list[Blocks]:
    """A layer's seven matrices. Each has a multiple of 16 rows, so no two share a group."""
    mix, net = layer.attention, layer.ffn
    queries = mix.o.shape[1]
    keys = (mix.qkv.shape[0] - queries) // 2
    gate = net.gate_up.shape[0] // 2
    return [*split(mix.qkv, (queries, keys, keys)), mix.o, *split(net.gate_up, (gate, gate)), net.down]


def split(weight: Blocks | Joined, heights: Sequence[int]) -> list[Blocks]:
    """The matrices of these heights that stand one below the other in a weight."""
    pieces, parts = list(weight.pieces if isinstance(weight, Joined) else (weight,)), []
    for height in heights:
        first, pieces[0] = pieces[0].split(height)
        parts.append(first)
        pieces = pieces[pieces[0].shape[0] == 0 :]
    return parts


def table_of(kinds: Sequence[Sequence[str]], shapes: Sequence[tuple[int, int]]) -> np.ndarray:
    """`Packed.table` of matrices that stand side by side."""
    sizes = [[groups_of(kind, *shape) for kind, shape in zip(each, shapes, strict=True)] for each in kinds]
    units = -(-np.prod(sizes, axis=-1) // UNIT)
    return np.concatenate([(np.cumsum(units).reshape(units.shape) - units)[..., None], sizes], axis=-1).astype(np.int32)


def pack(layers: tuple[Layer, ...]) -> Packed:
    """Layers with quantised matrices, their bytes adjacent: in place, as `checkpoint` has them, or copied."""
    all_matrices = [matrices(layer) for layer in layers]
    kinds = tuple(tuple(matrix.kind for matrix in of_layer) for of_layer in all_matrices)
    shapes = tuple(matrix.shape for matrix in all_matrices[0])
    table = table_of(kinds, shapes)
    parts = [np.asarray(matrix.data).reshape(-1) for of_layer in all_matrices for matrix in of_layer]
    places = (UNIT * table[..., 0].astype(np.int64)).reshape(-1).tolist()
    blocks = in_one_piece(parts, places)
    if blocks is None:
        blocks = aligned(places[-1] + parts[-1].nbytes)
        for part, place in zip(parts, places, strict=True):
            blocks[place : place + part.nbytes] = part
    mixes = [layer.attention for layer in layers]
    small = (
        of_all([norms_of(layer) for layer in layers]),
        of_all([mix.qkv_bias for mix in mixes]),
        of_all([mix.o_bias for mix in mixes]),
        of_all([mix.q_norm and stacked([mix.q_norm.weight, mix.k_norm.weight]) for mix in mixes]),
    )
    arrays = [None if each is None else jax.device_put(each) for each in (blocks, table, *small)]
    return Packed(*arrays, kinds, shapes)


def norms_of(layer: Layer) -> np.ndarray:
    """A layer's norms in the order of `Packed.norms`."""
    norms = layer.attention_norm, layer.ffn_norm, layer.attention_post_norm, layer.ffn_post_norm
    return stacked([norm.weight for norm in norms if norm is not None])


def of_all(arrays: list[jax.Array | np.ndarray | None]) -> np.ndarray | None:
    """A small array of every layer, joined into one; None if the layers have none."""
    return None if arrays[0] is None else stacked(arrays)


def stacked(arrays: Sequence[jax.Array | np.ndarray]) -> np.ndarray:
    """Small arrays of one shape joined into one by NumPy; JAX would compile a program for it."""
    return np.stack([np.asarray(array) for array in arrays])


def in_one_piece(parts: list[np.ndarray], places: list[int]) -> np.ndarray | None:
    """The bytes from the first part to the end of the last, if the parts already have these offsets in memory; None if
    not."""
    start = parts[0].ctypes.data
    if start % UNIT or any(part.ctypes.data != start + place for part, place in zip(parts, places, strict=True)):
        return None
    return np.asarray(Memory(start, places[-1] + parts[-1].nbytes, parts))


class Memory:
    """Bytes for NumPy in the memory of others, which stay alive as long as the bytes are used."""

    def __init__(self, start: int, size: int, owners: list[np.ndarray]):
        self.owners = owners
        self.__array_interface__ = dict(shape=(size,), typestr="|u1", data=(start, True), version=3)


def aligned(size: int) -> np.ndarray:
    """This many zero bytes at an address that `jax.device_put` on a CPU can use without a copy."""
    room = memory.taken(np.zeros(size + UNIT, np.uint8))
    start = -room.ctypes.data % UNIT
    return room[start : start + size]
