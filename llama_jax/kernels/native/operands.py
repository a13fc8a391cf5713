"""The operands of the fused step, and their checks. Nothing is read before its type, rank and place are known.

Operands: tokens int32 [B, T], position int32 [B] of each sequence's first, below 0 for padding, its number in the cache
int32 [B], rising, cos and sin float32 [B T, h/2] of all positions, embedding and head as blocks (the embedding also as
rows of a file's, [V, blocks a row, bytes of a row]), final norm float32 [D], keys float16 [L, C K, S/16, h, 16] and
values float16 [L, C K, S, h] of C sequences, by position; then of all layers norms float32 [L, 2, D] (attention's,
feed-forward's), blocks uint8 [bytes], a table int32 [L, 7, 4] of what each layer's q, k, v, o, gate, up and down are
within them (where it begins in units of 64 bytes; its sizes [N/16, blocks a row, bytes of 16 rows]), and qkv biases
float32 [L, N].
Results: logits float32 [M, V], of every row (M = B T), of each sequence's last (M = B) or of none (M = 0), which mean
nothing for padding; the best of each int32 [M]; keys and values, the operands themselves.
Attributes, in order of their names: bias int64 0 or 1, eps float32, feed_forward int64 F, heads int64 H, key_heads
int64 K.
Families other than Llama and Qwen2 get more (`more`).
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.block_types import COLUMNS, Q6_K, ROWS, known, runs_of
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
from llama_jax.kernels.native.more import (
    ATTRIBUTES,
    OPERANDS,
    angles_fit,
    bad_more,
    more_attributes_fit,
    more_fits,
)
from llama_jax.kernels.native.vectors import MORE

FIXED = 13  # operands, biases apart
MATRICES, ENTRIES, UNIT = 7, 4, 64  # a layer's matrices; numbers of one in the table; bytes of its place's unit
MOST = 1 << 20  # heads, and rows: with more, products of sizes could overflow and fit by chance
TOKENS, POSITION, CACHED, COS, SIN, EMBEDDING, HEAD, NORM, KEYS, VALUES, NORMS, BLOCKS, TABLE = range(FIXED)
BIASES = FIXED  # where there are some
bad_counts = text("fused: wrong number of operands, results or attributes")
bad_attributes = text(
    "fused: the attributes must be bias int64 0 or 1, eps float32, and feed_forward, heads and key_heads int64"
)
bad_scalars = text(
    "fused: tokens must be int32 [B, T], position and number in the cache int32 [B]; cos and sin float32 [B T, h/2]"
)
bad_cache = text(
    "fused: keys must be float16 [L, C K, S/16, h, 16] and values float16 [L, C K, S, h], h a multiple of 16,"
    " overwritten in place"
)
bad_sizes = text(
    "fused: hidden size, feed-forward size and heads times head size must be multiples of 32, heads a"
    " multiple of key heads"
)
bad_table = text(
    "fused: embedding and head must be blocks [V/16, blocks a row, bytes of 16 rows] of a known type, the embedding"
    " these or [V, blocks a row, bytes of a row], and the norm float32 [D]"
)
bad_layers = text(
    "fused: the layers' weights must be norms float32 [L, 2, D], blocks uint8 [bytes], a table int32 [L,"
    " 7, 4] of matrices in them, and"
    " biases float32 [L, N] where there are some"
)
bad_matrix = text(
    "fused: a layer's matrix is not of the sizes that the other operands say, of no known kind, or not"
    " within the blocks"
)
bad_logits = text("fused: logits must be float32 [M, V] and the best of them int32 [M], M = B T, B or 0")
bad_token = text("fused: a token is outside the vocabulary")
bad_number = text("fused: the sequences' numbers in the cache must rise and be within it")
bad_position = text("fused: a position is outside the cache, or logits are wanted of padding")


@function
def problem(frame):
    """Address of what is wrong with the call; 0 if nothing is."""
    if argument_count(frame) < FIXED or not counts(frame, argument_count(frame), 4, ATTRIBUTES if MORE else 5):
        return bad_counts()
    if not attributes_fit(frame):
        return bad_attributes()
    if argument_count(frame) != (OPERANDS if MORE else FIXED + integer(frame, 0)):
        return bad_counts()
    if not fits(argument(frame, KEYS), F16, 5, 2):
        return bad_cache()
    if not rows_fit(frame):
        return bad_scalars()
    if not cache_fits(frame):
        return bad_cache()
    if not tables_fit(frame):
        return bad_table()
    if not logits_fit(frame):
        return bad_logits()
    d, dim, heads = size(argument(frame, NORM), 0), size(argument(frame, KEYS), 3), heads_of(frame)
    kv = key_heads_of(frame)
    if (
        d < COLUMNS
        or d % COLUMNS != 0
        or heads < 1
        or heads > MOST
        or sequences_of(frame) * tokens_of(frame) * heads > MOST
        or heads % kv != 0
        or (heads * dim) % COLUMNS != 0
    ):
        return bad_sizes()
    if feed_forward(frame) < COLUMNS or feed_forward(frame) % COLUMNS != 0:
        return bad_sizes()
    if not layers_fit(frame, d, (heads + 2 * kv) * dim):
        return bad_layers()
    if MORE and not more_fits(frame, size(argument(frame, KEYS), 0), size(argument(frame, COS), 0), d, dim):
        return bad_more()
    if not matrices_fit(frame, d, dim, heads, kv):
        return bad_matrix()
    return bad_values(frame)


@function
def attributes_fit(frame):
    for i in range(5):
        if not is_scalar(frame, i, F32 if i == 1 else S64):
            return False
    if MORE and not more_attributes_fit(frame):
        return False
    return 0 <= integer(frame, 0) <= 1


@function
def bias_of(frame):
    """Whether queries, keys and values have biases."""
    return integer(frame, 0) == 1


@function
def feed_forward(frame):
    return integer(frame, 2)


@function
def heads_of(frame):
    return integer(frame, 3)


@function
def key_heads_of(frame):
    return integer(frame, 4)


@function
def sequences_of(frame):
    return size(argument(frame, TOKENS), 0)


@function
def tokens_of(frame):
    """Tokens of each sequence."""
    return size(argument(frame, TOKENS), 1)


@function
def rows_fit(frame):
    if not fits(argument(frame, TOKENS), S32, 2, 4):
        return False
    sequences, tokens, half = sequences_of(frame), tokens_of(frame), size(argument(frame, KEYS), 3) // 2
    if not (1 <= sequences <= MOST and 1 <= tokens <= MOST and sequences * tokens <= MOST):
        return False
    for i in (COS, SIN):
        if MORE:
            if not angles_fit(argument(frame, i), argument(frame, COS), sequences * tokens, 2 * half):
                return False
            continue
        if not fits(argument(frame, i), F32, 2, 4) or size(argument(frame, i), 1) != half:
            return False
        if size(argument(frame, i), 0) != sequences * tokens:
            return False
    for i in (POSITION, CACHED):
        if not fits(argument(frame, i), S32, 1, 4) or size(argument(frame, i), 0) != sequences:
            return False
    return True


@function
def logits_fit(frame):
    logits, best = result(frame, 0), result(frame, 1)
    if not fits(logits, F32, 2, 4) or not fits(best, S32, 1, 4) or size(best, 0) != size(logits, 0):
        return False
    wanted, sequences = size(logits, 0), sequences_of(frame)
    if wanted != 0 and wanted != sequences and wanted != sequences * tokens_of(frame):
        return False
    if not known(size(argument(frame, EMBEDDING), 2)) and size(logits, 1) != size(argument(frame, EMBEDDING), 0):
        return False
    return size(logits, 1) >= 1 and (size(logits, 1) + ROWS - 1) // ROWS == size(argument(frame, HEAD), 0)


@function
def cache_fits(frame):
    keys, values = argument(frame, KEYS), argument(frame, VALUES)
    if (
        not fits(values, F16, 4, 2)
        or size(keys, 4) != ROWS
        or size(keys, 3) % ROWS != 0
        or size(keys, 3) < ROWS
        or size(keys, 1) < 1
        or key_heads_of(frame) < 1
        or size(keys, 1) % key_heads_of(frame) != 0
    ):
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
    return (
        size(buffer, 0) == (rows + ROWS - 1) // ROWS and size(buffer, 1) * runs_of(size(buffer, 2)) * COLUMNS == columns
    )


@function
def tables_fit(frame):
    table = argument(frame, EMBEDDING)
    if not fits(argument(frame, NORM), F32, 1, 4) or not fits(table, U8, 3, 1):
        return False
    d, rows, kind = size(argument(frame, NORM), 0), size(table, 0), size(table, 2)
    if known(kind):
        rows = rows * ROWS
        return blocks_fit(table, rows, d) and blocks_fit(argument(frame, HEAD), rows, d)
    # a file's rows; of a type whose group has 16 times as many bytes
    if not 1 <= kind <= Q6_K // ROWS or not known(ROWS * kind) or size(table, 1) * runs_of(ROWS * kind) * COLUMNS != d:
        return False
    return blocks_fit(argument(frame, HEAD), rows, d)


@function
def layers_fit(frame, d, qkv):
    """Whether norms, blocks, table and biases are arrays of the right shapes."""
    norms, table, layers = argument(frame, NORMS), argument(frame, TABLE), size(argument(frame, KEYS), 0)
    if not fits(norms, F32, 3, 4) or size(norms, 0) != layers or not norms_fit(norms) or size(norms, 2) != d:
        return False
    if (
        not fits(table, S32, 3, 4)
        or size(table, 0) != layers
        or size(table, 1) != MATRICES
        or size(table, 2) != ENTRIES
    ):
        return False
    if not fits(argument(frame, BLOCKS), U8, 1, 1) or layers < 1:
        return False
    if not bias_of(frame):
        return True
    biases = argument(frame, BIASES)
    return fits(biases, F32, 2, 4) and size(biases, 0) == layers and size(biases, 1) == qkv


@function
def norms_fit(norms):
    """Whether a layer has as many norms as it must."""
    if MORE:
        return size(norms, 1) == 2 or size(norms, 1) == 4
    return size(norms, 1) == 2


@function
def holds(size, place, groups, blocks, kind):
    """Whether an array of so many bytes has a weight at `place`; no product of sizes may overflow on the way."""
    room = size - place
    return 0 <= place < size and 1 <= blocks <= room and groups <= room // (blocks * kind)


@function
def matrices_fit(frame, d, dim, heads, kv):
    """Whether every matrix in the table has the sizes that it must have and lies within the blocks."""
    room, f = size(argument(frame, BLOCKS), 0), feed_forward(frame)
    if f > room:  # so no size below overflows
        return False
    for layer in range(size(argument(frame, TABLE), 0)):
        for i in range(MATRICES):
            rows = rows_of_matrix(i, d, f, heads * dim, kv * dim)
            columns = heads * dim if i == 3 else f if i == 6 else d
            groups, blocks, kind = matrix(frame, layer, i, 1), matrix(frame, layer, i, 2), matrix(frame, layer, i, 3)
            if groups * ROWS != rows or not known(kind) or blocks * runs_of(kind) * COLUMNS != columns:
                return False
            if not holds(room, UNIT * matrix(frame, layer, i, 0), groups, blocks, kind):
                return False
    return True


@function
def rows_of_matrix(i, d, f, queries, keys):
    """Rows of a layer's i-th matrix."""
    if i == 0:
        return queries
    if i <= 2:
        return keys
    return f if i == 4 or i == 5 else d


@function
def matrix(frame, layer, i, j):
    """The j-th number of a layer's i-th matrix (q, k, v, o, gate, up, down): its place in units, then groups of rows,
    blocks a row, bytes of both."""
    return types.int64(load_i32(data(argument(frame, TABLE)) + 4 * (ENTRIES * (MATRICES * layer + i) + j)))


@function
def number_of(frame, sequence):
    """Which of the cache's sequences one of the call's is."""
    return types.int64(load_i32(data(argument(frame, CACHED)) + 4 * sequence))


@function
def bad_values(frame):
    sequences, tokens, v = sequences_of(frame), tokens_of(frame), size(result(frame, 0), 1)
    for row in range(sequences * tokens):
        token = load_i32(data(argument(frame, TOKENS)) + 4 * row)
        if token < 0 or token >= v:
            return bad_token()
    room, wanted = size(argument(frame, VALUES), 2), size(result(frame, 0), 0)
    before, held = types.int64(-1), size(argument(frame, KEYS), 1) // key_heads_of(frame)
    for sequence in range(sequences):
        number = number_of(frame, sequence)
        if number <= before or number >= held:
            return bad_number()
        before = number
    for sequence in range(sequences):
        end = types.int64(load_i32(data(argument(frame, POSITION)) + 4 * sequence)) + tokens
        if end > room or (wanted > 0 and end < 1 and sequences == 1):
            return bad_position()
    return 0
