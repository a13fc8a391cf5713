"""`llama_jax_pack`: rows of a file's blocks into groups of 16 rows (`llama_jax.block_types`).

It is called by address with the parameters below, eight consecutive int64, and returns whether a float16 number among
the blocks is infinite or NaN. Each type of block has a function that packs one row of one block: each of its words of
four bytes goes to the place of row r in a vector of 64 bytes.
"""

from __future__ import annotations

from numba import types

from llama_jax.kernels.native.block_types import Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, ROWS
from llama_jax.kernels.native.machine import I8, I16, I32, I64, entry, function, load_i64, pointer
from llama_jax.kernels.native.vectors import operation

SOURCE, TARGET = 0, 1  # addresses of the first row, and of the matrix's first group
FIRST, COUNT = 2, 3  # the first row's number in the matrix; rows
BLOCKS, ROW, GROUP = 4, 5, 6  # blocks a row; bytes of a row of a block, and of a group, by which types are told apart
HEAD = 7  # rows of an attention head whose rotary pairs lie interleaved and are taken apart; 0: rows stay in order
PARAMETERS = 8
TOGETHER = 16 << 10  # bytes of groups that stay in a core's nearest cache
LOW, HIGH, TWO, ONE = 0x0F0F0F0F, 0xF0F0F0F0, 0x03030303, 0x01010101  # bits of each byte of a word


def reader(kind):
    """A number of the file, which is aligned to a byte there, as int64."""
    return operation(types.int64, types.int64)(lambda b, at: b.zext(b.load(pointer(b, at, kind), align=1), I64))


def writer(kind, align):
    return operation(types.void, types.int64, types.int64)(
        lambda b, at, value: b.store(b.trunc(value, kind), pointer(b, at, kind), align=align) and None
    )


word, half, byte = reader(I32), reader(I16), reader(I8)
put_word, put_half, put_byte = writer(I32, 4), writer(I16, 2), writer(I8, 1)


@function
def put(group, r, vector, value):
    """A row's four bytes of a vector."""
    put_word(group + 4 * ROWS * vector + 4 * r, value)


@function
def put_codes(codes, r, first, four):
    """A row's next four codes of scales, the bytes of a word."""
    for i in range(4):
        put_byte(codes + ROWS * (first + i) + r, four >> (8 * i))


@function
def put_halves(source, halves, r, count):
    """A row's float16 numbers; 1 where one is infinite or none, else 0."""
    bad = 0
    for i in range(count):
        bits = half(source + 2 * i)
        put_half(halves + 2 * ROWS * i + 2 * r, bits)
        bad |= (bits & 0x7C00) == 0x7C00
    return bad


def plain(vectors, halves):
    """Blocks whose weights stand in the order of a group already: q4_0, q4_1, q8_0."""

    @function
    def row(source, group, r):
        for v in range(vectors):
            put(group, r, v, word(source + 2 * halves + 4 * v))
        return put_halves(source, group + 4 * ROWS * vectors, r, halves)

    return row


def fifth_bits(halves):
    """q5_0, q5_1: of 32 fifth bits, bit 4 p + i becomes bit p of byte i."""

    @function
    def row(source, group, r):
        bits, weights, above = word(source + 2 * halves), source + 2 * halves + 4, 0
        for v in range(4):
            put(group, r, v, word(weights + 4 * v))
        for i in range(4):
            x = (bits >> i) & 0x11111111
            x = (x | x >> 3) & 0x03030303
            x = (x | x >> 6) & 0x000F000F
            above |= ((x | x >> 12) & 0xFF) << (8 * i)
        put(group, r, 4, above)
        return put_halves(source, group + 4 * ROWS * 5, r, halves)

    return row


def runs_of_k(bits):
    """q4_k, q5_k: two float16 numbers, 12 bytes of scale codes, then of q5_k 32 bytes whose bit j is the fifth bit of
    run j, then 32 bytes for each two runs of 32 columns."""

    @function
    def row(source, group, r):
        weights = source + 16 if bits == 4 else source + 48
        for pair in range(4):
            for v in range(4):
                left, right = word(weights + 32 * pair + 4 * v), word(weights + 32 * pair + 16 + 4 * v)
                at = 2 * bits * pair + v
                put(group, r, at, (left & LOW) | (right & LOW) << 4)
                put(group, r, at + bits, (left & HIGH) >> 4 | (right & HIGH))
        if bits == 5:
            for run in range(8):
                above = 0
                for p in range(8):
                    above |= ((word(source + 16 + 4 * p) >> run) & ONE) << p
                put(group, r, 5 * run + 4, above)
        codes = group + 4 * ROWS * 8 * bits
        scales, minima, others = word(source + 4), word(source + 8), word(source + 12)
        put_codes(codes, r, 0, (scales & LOW) | (minima & LOW) << 4)
        put_codes(codes, r, 4, others)
        for part in range(2):  # the upper two bits, of two runs a byte
            shift = 4 + 2 * part
            above = ((scales >> shift) & TWO) | ((minima >> shift) & TWO) << 2
            above |= above >> 4
            put_byte(codes + ROWS * (8 + 2 * part) + r, above)
            put_byte(codes + ROWS * (9 + 2 * part) + r, above >> 16)
        return put_halves(source, codes + ROWS * 12, r, 2)

    return row


@function
def row_of_q6_k(source, group, r):
    """128 bytes of low halves, 64 of upper bits, 16 scales, a float16 number."""
    for h in range(2):
        low, upper = source + 64 * h, source + 128 + 32 * h
        for j in range(4):
            run, at = 4 * h + j, low + 32 * (j % 2)
            for v in range(4):
                left, right = word(at + 4 * v) >> (4 * (j // 2)), word(at + 16 + 4 * v) >> (4 * (j // 2))
                put(group, r, 6 * run + v, (left & LOW) | (right & LOW) << 4)
            for part in range(2):
                above = 0
                for v in range(4):
                    above |= ((word(upper + 16 * part + 4 * v) >> (2 * j)) & TWO) << (2 * v)
                put(group, r, 6 * run + 4 + part, above)
    codes = group + 4 * ROWS * 48
    for i in range(4):
        put_codes(codes, r, 4 * i, word(source + 192 + 4 * i))
    return put_halves(source + 208, codes + ROWS * 16, r, 1)


rows = plain(4, 1), plain(4, 2), plain(8, 1), fifth_bits(1), fifth_bits(2), runs_of_k(4), runs_of_k(5), row_of_q6_k
row_of_q4_0, row_of_q4_1, row_of_q8_0, row_of_q5_0, row_of_q5_1, row_of_q4_k, row_of_q5_k, _ = rows


@function
def alone(source, kind, group):
    """A row of a block into the first row of a group of this type."""
    if kind == Q4_0:
        row_of_q4_0(source, group, 0)
    elif kind == Q4_1:
        row_of_q4_1(source, group, 0)
    elif kind == Q5_0:
        row_of_q5_0(source, group, 0)
    elif kind == Q5_1:
        row_of_q5_1(source, group, 0)
    elif kind == Q8_0:
        row_of_q8_0(source, group, 0)
    elif kind == Q4_K:
        row_of_q4_k(source, group, 0)
    elif kind == Q5_K:
        row_of_q5_k(source, group, 0)
    elif kind == Q6_K:
        row_of_q6_k(source, group, 0)


def of_type(row):
    """All rows of a type. A group's rows are written together, some blocks at a time: each writes into every line of
    the cache that its group has."""

    @function
    def pack(state):
        source, target, first, count = p(state, SOURCE), p(state, TARGET), p(state, FIRST), p(state, COUNT)
        blocks, size, group, head = p(state, BLOCKS), p(state, ROW), p(state, GROUP), p(state, HEAD)
        bad, pairs, many = 0, head // 2, max(TOGETHER // group, 1)
        for number in range(first // ROWS, (first + count + ROWS - 1) // ROWS):
            to = target + number * blocks * group
            for block in range(0, blocks, many):
                for at in range(max(ROWS * number, first), min(ROWS * (number + 1), first + count)):
                    n, r = at - first, at % ROWS
                    taken = n
                    if head > 0:
                        within = n % head
                        taken = n - within + 2 * (within % pairs) + within // pairs
                    of_row = source + taken * blocks * size
                    for b in range(block, min(block + many, blocks)):
                        bad |= row(of_row + size * b, to + group * b, r)
        return bad

    return pack


@function
def p(state, number):
    return load_i64(state + 8 * number)


q4_0, q4_1, q8_0, q5_0, q5_1, q4_k, q5_k, q6_k = map(of_type, rows)


@entry
def packer(state):
    """0; 1 where a float16 number is infinite or none; 2 for a type that is not known."""
    kind = p(state, GROUP)
    if kind == Q4_0:
        return q4_0(state)
    if kind == Q4_1:
        return q4_1(state)
    if kind == Q5_0:
        return q5_0(state)
    if kind == Q5_1:
        return q5_1(state)
    if kind == Q8_0:
        return q8_0(state)
    if kind == Q4_K:
        return q4_k(state)
    if kind == Q5_K:
        return q5_k(state)
    if kind == Q6_K:
        return q6_k(state)
    return 2


ENTRIES = {"llama_jax_pack": packer}
