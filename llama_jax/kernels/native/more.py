"""Additional operands of the fused step for families with features beyond Llama and Qwen2, and their checks.

Operands, after those that `operands` names, the biases of qkv among them (float32 [0, N] if there are none): of each
layer its rope and its window int32 [L, 2], 0 for no window; norms of heads float32 [L, 2, h] (queries', keys'), or [0,
2, h]; biases of attention's output float32 [L, D], or [0, D]. cos and sin are float32 [ropes, B T, r/2], of the first r
numbers of a head. norms may be float32 [L, 4, D]: then the last two are of what attention and feed-forward give.
Attributes, after the others: scale float32, of scores; scale_embedding float32; tanh int64, 1 for GELU by its tanh
formula in the place of SiLU.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.ffi import F32, S32, S64, argument, data, fits, integer, is_scalar, size
from llama_jax.kernels.native.machine import function, load_i32, text

BIASES, PLACES, HEAD_NORMS, O_BIASES = range(13, 17)  # operands
OPERANDS = 17
SCALE, SCALE_EMBEDDING, TANH = range(5, 8)  # attributes
ATTRIBUTES = 8
bad_more = text(
    "fused: a layer's rope and window must be int32 [L, 2] and within what there is, norms of heads float32 [L, 2, h]"
    " or [0, 2, h], biases of the output float32 [L, D] or [0, D]"
)


@function
def more_attributes_fit(frame):
    if not is_scalar(frame, SCALE, F32) or not is_scalar(frame, SCALE_EMBEDDING, F32):
        return False
    return is_scalar(frame, TANH, S64) and 0 <= integer(frame, TANH) <= 1


@function
def angles_fit(angles, cosines, rows, dim):
    """Whether cosines or sines are those of so many rows, and as many as the cosines."""
    if not fits(angles, F32, 3, 4) or size(angles, 0) < 1 or size(angles, 1) != rows:
        return False
    if size(angles, 0) != size(cosines, 0) or size(angles, 2) != size(cosines, 2):
        return False
    return 1 <= size(angles, 2) <= dim // 2


@function
def more_fits(frame, layers, ropes, d, dim):
    places, norms, biases = argument(frame, PLACES), argument(frame, HEAD_NORMS), argument(frame, O_BIASES)
    if not fits(places, S32, 2, 4) or size(places, 0) != layers or size(places, 1) != 2:
        return False
    if not fits(norms, F32, 3, 4) or size(norms, 1) != 2 or size(norms, 2) != dim:
        return False
    if not fits(biases, F32, 2, 4) or size(biases, 1) != d:
        return False
    for array in (norms, biases):
        if size(array, 0) != layers and size(array, 0) != 0:
            return False
    outside = 0
    for layer in range(layers):
        outside += not 0 <= rope_of(frame, layer) < ropes or window_of(frame, layer) < 0
    return outside == 0


@function
def rope_of(frame, layer):
    return types.int64(load_i32(data(argument(frame, PLACES)) + 8 * layer))


@function
def window_of(frame, layer):
    """How many positions a row of a layer sees, its own among them; 0: all."""
    return types.int64(load_i32(data(argument(frame, PLACES)) + 8 * layer + 4))
