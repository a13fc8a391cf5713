"""What the fused step is given, and whether it is what it must be. Nothing is read before its type, rank and place are known.

Operands: token int32 [1], slot int32 [] it is written to, pad int32 [1] empty leading slots, cos and sin float32 [h/2] of its
position, embedding and head as blocks, final norm float32 [D], keys float16 [L, K, S/16, h, 16] and values float16 [L, K, S, h]; then
for each layer attention norm [D], qkv blocks, (qkv bias,) o blocks, feed-forward norm [D], gate_up blocks, down blocks.
Results: logits float32 [V], the best of them int32 [1], keys and values, the operands themselves.
Attributes, in order of their names: bias int64 0 or 1, eps float32, heads int64 H.
"""

from __future__ import annotations

from llama_jax.kernels.native.ffi import (
    F16,
    F32,
    S32,
    S64,
    U8,
    argument,
    argument_count,
    counts,
    data,
    fits,
    integer,
    is_scalar,
    result,
    size,
)
from llama_jax.kernels.native.machine import function, load_i32, text
from llama_jax.kernels.native.products import COLUMNS, ROWS, known

FIXED, PER_LAYER = 10, 6  # operands of the model and of a layer, its bias apart
MOST = 1 << 20  # heads: with more, products of sizes could overflow and fit by chance
TOKEN, SLOT, PAD, COS, SIN, EMBEDDING, HEAD, NORM, KEYS, VALUES = range(FIXED)
bad_counts = text("fused: wrong number of operands, results or attributes for this number of layers")
bad_attributes = text("fused: the attributes must be bias int64 0 or 1, eps float32 and heads int64")
bad_scalars = text("fused: token, slot and pad must be int32 [1], [] and [1]; cos and sin float32 [h/2]")
bad_cache = text(
    "fused: keys must be float16 [L, K, S/16, h, 16] and values float16 [L, K, S, h], h a multiple of 16, overwritten in place"
)
bad_sizes = text("fused: hidden size, feed-forward size and heads times head size must be multiples of 32, heads a multiple of key heads")
bad_table = text("fused: embedding and head must be blocks [V/16, D/32, bytes] of Q4_0, Q4_1 or Q8_0, and the norm float32 [D]")
bad_layer = text("fused: a layer's weights do not have the shapes that the other operands say")
bad_logits = text("fused: logits must be float32 [V] and the best of them int32 [1]")
bad_token = text("fused: the token is outside the vocabulary")
bad_slot = text("fused: the slot is outside the cache, or before the padding's end")


@function
def problem(frame):
    """Address of what is wrong with the call; 0 where nothing is."""
    if argument_count(frame) < FIXED or not counts(frame, argument_count(frame), 4, 3):
        return bad_counts()
    if not attributes_fit(frame):
        return bad_attributes()
    if not fits(argument(frame, KEYS), F16, 5, 2):
        return bad_cache()
    layers = size(argument(frame, KEYS), 0)
    if layers < 1 or argument_count(frame) != FIXED + (PER_LAYER + integer(frame, 0)) * layers:
        return bad_counts()
    if not scalars_fit(frame):
        return bad_scalars()
    if not cache_fits(frame):
        return bad_cache()
    if not tables_fit(frame):
        return bad_table()
    if not fits(result(frame, 0), F32, 1, 4) or not fits(result(frame, 1), S32, 1, 4) or size(result(frame, 1), 0) != 1:
        return bad_logits()
    if (size(result(frame, 0), 0) + ROWS - 1) // ROWS != size(argument(frame, EMBEDDING), 0):
        return bad_logits()
    d, dim, heads, kv = size(argument(frame, NORM), 0), size(argument(frame, KEYS), 3), integer(frame, 2), size(argument(frame, KEYS), 1)
    if d < COLUMNS or d % COLUMNS != 0 or heads < 1 or heads > MOST or heads % kv != 0 or (heads * dim) % COLUMNS != 0:
        return bad_sizes()
    for layer in range(layers):
        if not layer_fits(frame, layer, d, dim, heads, kv):
            return bad_layer()
    return bad_values(frame)


@function
def attributes_fit(frame):
    whole = is_scalar(frame, 0, S64) and is_scalar(frame, 1, F32) and is_scalar(frame, 2, S64)
    return whole and 0 <= integer(frame, 0) <= 1


@function
def bias_of(frame):
    """Whether queries, keys and values have biases."""
    return integer(frame, 0) == 1


@function
def scalars_fit(frame):
    half = size(argument(frame, KEYS), 3) // 2
    for i in (COS, SIN):
        if not fits(argument(frame, i), F32, 1, 4) or size(argument(frame, i), 0) != half:
            return False
    for i in (TOKEN, PAD):
        if not fits(argument(frame, i), S32, 1, 4) or size(argument(frame, i), 0) != 1:
            return False
    return fits(argument(frame, SLOT), S32, 0, 4)


@function
def cache_fits(frame):
    keys, values = argument(frame, KEYS), argument(frame, VALUES)
    if not fits(values, F16, 4, 2) or size(keys, 4) != ROWS or size(keys, 3) % ROWS != 0 or size(keys, 3) < ROWS or size(keys, 1) < 1:
        return False
    for i in range(2):
        if size(keys, i) != size(values, i):
            return False
    if size(keys, 2) * ROWS != size(values, 2) or size(keys, 3) != size(values, 3):
        return False
    return data(keys) == data(result(frame, 2)) and data(values) == data(result(frame, 3))


@function
def blocks_fit(buffer, rows, columns):
    """Whether this is a quantised weight [rows, columns]; its rows up to a group's end."""
    if not fits(buffer, U8, 3, 1) or not known(size(buffer, 2)):
        return False
    return size(buffer, 0) == (rows + ROWS - 1) // ROWS and size(buffer, 1) * COLUMNS == columns


@function
def floats_fit(buffer, n):
    return fits(buffer, F32, 1, 4) and size(buffer, 0) == n


@function
def tables_fit(frame):
    if not fits(argument(frame, NORM), F32, 1, 4) or not fits(argument(frame, EMBEDDING), U8, 3, 1):
        return False
    d, rows = size(argument(frame, NORM), 0), size(argument(frame, EMBEDDING), 0) * ROWS
    return blocks_fit(argument(frame, EMBEDDING), rows, d) and blocks_fit(argument(frame, HEAD), rows, d)


@function
def layer_fits(frame, layer, d, dim, heads, kv):
    bias = 1 if bias_of(frame) else 0
    at, rows = FIXED + (PER_LAYER + bias) * layer, (heads + 2 * kv) * dim
    if not floats_fit(argument(frame, at), d) or not blocks_fit(argument(frame, at + 1), rows, d):
        return False
    if bias == 1 and not floats_fit(argument(frame, at + 2), rows):
        return False
    at += bias
    if not blocks_fit(argument(frame, at + 2), d, heads * dim) or not floats_fit(argument(frame, at + 3), d):
        return False
    up, down = argument(frame, at + 4), argument(frame, at + 5)
    ff = feed_forward(frame)
    return ff >= COLUMNS and blocks_fit(up, 2 * ff, d) and blocks_fit(down, d, ff)


@function
def feed_forward(frame):
    """Columns of the first layer's down projection; 0 where that is no weight."""
    down = argument(frame, FIXED + PER_LAYER + (1 if bias_of(frame) else 0) - 1)
    return size(down, 1) * COLUMNS if fits(down, U8, 3, 1) else 0


@function
def bad_values(frame):
    token, slot = load_i32(data(argument(frame, TOKEN))), load_i32(data(argument(frame, SLOT)))
    pad = load_i32(data(argument(frame, PAD)))
    if token < 0 or token >= size(result(frame, 0), 0):
        return bad_token()
    if pad < 0 or slot < pad or slot >= size(argument(frame, VALUES), 2):
        return bad_slot()
    return 0
