"""Wrong buffers, attributes or values are answered by an XLA error in words; the process goes on and the next good call
is right."""

import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax.kernels import fused
from llama_jax.kernels.build import registered
from tests.kernels.models import quantised, random_cache, small, with_packed_layers
from tests.kernels.products import reference_product
from tests.kernels.test_gemv import weight

F32, U8 = np.float32, np.uint8


# near rows of a file [97, 2, 18]
NO_TABLES = [(97, 2, 17), (97, 2, 19), (97, 1, 18), (97, 3, 18), (97, 2, 0), (113, 2, 18), (80, 2, 18), (97, 1, 144)]


def shaped(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def gemv(operands, results, **attributes):
    return jax.ffi.ffi_call(registered("llama_jax_gemv"), results)(*operands, **attributes)


X, W = np.ones((2, 64), F32), np.zeros((2, 2, 288), U8)  # 17…32 rows of 64 columns
GOOD = shaped((2, 20))


GEMV = {  # what is wrong: operands, results, attributes
    "takes two operands": [([X], GOOD, {}), ([X, W, W], GOOD, {}), ([], GOOD, {})],
    "gives one result": [([X, W], [GOOD, GOOD], {})],
    "no attributes": [([X, W], GOOD, dict(eps=F32(1)))],
    "x must be float32": [
        ([x, W], GOOD, {}) for x in (X.astype(np.float16), X.astype(np.int32), X[0], X[None], F32(1))
    ],
    "weight must be uint8": [
        ([X, w], GOOD, {})
        for w in (
            W.reshape(-1),
            W.astype(np.int8),
            W[0],
            W[..., :287],
            *(np.zeros((2, 2, n), U8) for n in (0, 576, 1152)),
        )
    ],
    "result must be float32": [
        ([X, W], result, {})
        for result in (shaped((2, 20), np.float16), *map(shaped, ((40,), (3, 20), (2, 16), (2, 33))))
    ],
    "different numbers of columns": [([x, W], GOOD, {}) for x in (X[:, :32], *(np.ones((2, n), F32) for n in (65, 0)))],
}


@pytest.mark.parametrize("words", GEMV)
def test_gemv_refuses(words):
    """After each error a good call is right."""
    x, blocks = np.ones((2, 64), F32), weight("q4_0", 20, 64)
    for operands, results, attributes in GEMV[words]:
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"gemv.*{words}"):
            jax.block_until_ready(gemv(operands, results, **attributes))
        np.testing.assert_allclose(gemv([x, blocks.data], GOOD), reference_product(x, blocks), rtol=1e-4, atol=1e-4)


@dataclass
class Call:
    """A call of the fused step, to be spoilt: operands by number, results, attributes, which results overwrite which
    operands."""

    operands: list
    results: list
    attributes: dict
    aliases: dict
    name: str = "llama_jax_fused"

    def program(self):
        """What names its program but for the operands' shapes."""
        return repr((self.results, self.attributes, self.aliases))

    def compiled(self):
        call = jax.ffi.ffi_call(registered(self.name), self.results, input_output_aliases=self.aliases)
        return jax.jit(lambda *operands: call(*operands, **self.attributes))

    def __call__(self):
        return jax.block_until_ready(self.compiled()(*self.operands))


SLOT, PAD, SLOTS = 20, 4, 32
TOKENS, POSITION, NUMBER, COS, SIN, EMBEDDING, HEAD, NORM, KEYS, VALUES = range(10)
NORMS, BLOCKS, TABLE, BIASES = range(10, 14)


def call_of(cfg, model, ids, first, numbers, entries, rows):
    """A call for the tokens ids [B T] of some sequences of a cache that wants `rows` logits."""
    operands = fused.operands(with_packed_layers(model), ids, first, numbers, entries, cfg)
    caches = (shaped(entry.shape, entry.dtype) for entry in entries)
    results = [shaped((rows, cfg.vocab_size)), shaped((rows,), np.int32), *caches]
    return Call(operands, results, fused.attributes(cfg), {8: 2, 9: 3}, fused.entry(cfg))


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def good(request):
    cfg = small(request.param)
    model, cache = quantised(cfg), random_cache(cfg, SLOTS, SLOT, PAD)[1]

    ids, number = jnp.array([[7]], jnp.int32), jnp.zeros(1, jnp.int32)
    call = call_of(cfg, model, ids, cache.length - cache.pad, number, cache.entries, 1)

    def make():
        return Call([*call.operands], [*call.results], {**call.attributes}, {**call.aliases}, call.name)

    make.bias, make.expected = cfg.qkv_bias, np.asarray(make()()[0])
    return make


# What is done to a good call, each a function of the call -------------------------------------------------------------


def operand(i, change):
    """Operand i put through a function of NumPy arrays."""

    def spoil(call):
        call.operands[i] = change(np.array(call.operands[i]))
        if i in call.aliases:
            call.results[call.aliases[i]] = shaped(call.operands[i].shape, call.operands[i].dtype)

    return spoil


def resized(i, axis, by):
    """Operand i, and the result that takes its place, `by` longer along an axis."""
    return operand(i, lambda array: np.resize(array, [n + by * (k == axis) for k, n in enumerate(array.shape)]))


def value(i, *numbers):
    return operand(i, lambda array: np.array(numbers, array.dtype).reshape(array.shape))


def in_table(layer, matrix, column, change):
    """A number of the table of matrices put through a function."""

    def changed(table):
        table[layer, matrix, column] = change(int(table[layer, matrix, column]))
        return table

    return operand(TABLE, changed)


def attributes(**changes):
    return lambda call: call.attributes.update(changes)


def result(i, shape):
    return lambda call: call.results.__setitem__(i, shape)


def several(*spoils):
    return lambda call: [spoil(call) for spoil in spoils]


def cut_short(call):
    call.operands, call.results, call.aliases = call.operands[:5], call.results[:2], {}


def half(array):
    return array.astype(np.float16)


def inner(array):
    return array[None]


SIZES = "a layer's matrix is not of the sizes"
HEADS = "(keys must be|hidden size|a layer's matrix|the layers' weights|the sequences' numbers)"
SPOILT = {
    "wrong number of operands": [
        lambda call: call.operands.pop(),
        lambda call: call.operands.append(call.operands[-1]),
        cut_short,
        lambda call: call.results.append(shaped((1,))),
        attributes(zeal=F32(1)),
        lambda call: call.attributes.pop("bias"),
        lambda call: call.attributes.update(bias=1 - call.attributes["bias"]),
    ],
    # Text and arrays are other structures than numbers: read as numbers they would lead anywhere.
    "the attributes must be": [
        *(attributes(bias=bad) for bad in (np.int64(2), np.int64(-1), "yes", np.int32(1), F32(1))),
        *(attributes(eps=bad) for bad in ("small", np.int64(1), np.float64(1e-5))),
        *(attributes(feed_forward=bad) for bad in (F32(96), "wide")),
        *(attributes(heads=bad) for bad in (F32(4), "four", np.array([4, 4]))),
        *(attributes(key_heads=bad) for bad in (F32(2), "two")),
    ],
    # (2^60 + 4) heads of 16 are, in 64 bits, as many rows as 4 heads of 16.
    "(hidden size|a layer's matrix|the layers' weights)": [
        attributes(heads=np.int64(n)) for n in (0, -4, 3, 6, 8, 5, 1 << 40, (1 << 60) + 4, (1 << 63) - 4)
    ],
    HEADS: [attributes(key_heads=np.int64(n)) for n in (0, -2, 3, 4, 1, 1 << 40, (1 << 63) - 2)],
    "(hidden size|a layer's matrix)": [
        attributes(feed_forward=np.int64(n)) for n in (0, -32, 16, 100, 128, 1 << 40, 1 << 62, (1 << 63) - 32)
    ],
    "the sequences' numbers in the cache": [value(NUMBER, n) for n in (-1, 1, 2**31 - 1, -(2**31))],
    "tokens must be": [
        operand(i, change)
        for i in (TOKENS, POSITION, NUMBER, COS, SIN)
        for change in (half, inner, lambda array: np.resize(array, 3) if array.ndim else array[None])
    ],
    "(keys must be|wrong number|token)": [
        resized(i, axis, 1) for i, axes in ((KEYS, 5), (VALUES, 4)) for axis in range(axes)
    ],
    "keys must be": [
        *(operand(i, change) for i in (KEYS, VALUES) for change in (lambda array: array.astype(F32), inner)),
        several(  # heads of no size
            *(resized(i, 3, -16) for i in (KEYS, VALUES)),
            *(operand(i, lambda array: np.zeros((1, 0), F32)) for i in (COS, SIN)),
        ),
    ],
    "keys must be.*overwritten in place": [
        lambda call, kept=kept: setattr(call, "aliases", kept) for kept in ({}, {8: 2}, {9: 3})
    ],
    "(embedding and head must be|logits)": [
        *(operand(EMBEDDING, lambda array, rows=rows: np.zeros((rows, 2, 18), U8)) for rows in (96, 98, 112)),
        *(
            resized(i, axis, by)
            for i in (EMBEDDING, HEAD)
            for axis, by in ((0, 1), (0, -1), (1, 1), (1, -1), (2, 1), (2, 32))
        ),
    ],
    "embedding and head must be": [
        *(operand(EMBEDDING, lambda array, shape=shape: np.zeros(shape, U8)) for shape in NO_TABLES),
        *(
            operand(i, change)
            for i in (EMBEDDING, HEAD)
            for change in (lambda array: array.astype(np.int8), lambda array: array[0], inner)
        ),
        *(
            operand(NORM, change)
            for change in (
                lambda array: array[:32],
                inner,
                half,
                lambda array: np.resize(array, 65),
                lambda array: array[:0],
            )
        ),
    ],
    "hidden size": [  # a model of no size
        several(
            operand(NORM, lambda array: array[:0]), *(operand(i, lambda array: array[:, :0]) for i in (EMBEDDING, HEAD))
        )
    ],
    SIZES: [
        *(
            in_table(layer, matrix, 0, lambda _, place=place: place)
            for place in (-1, -(2**31), 2**31 - 1, 10**6)
            for layer in range(2)
            for matrix in range(7)
        ),
        *(in_table(1, 2, 3, lambda _, kind=kind: kind) for kind in (0, -544, 287, 545, 2**31 - 1)),
        *(
            in_table(layer, matrix, column, lambda size, by=by: size + by)
            for by in (1, -1, 2**30)
            for layer in range(2)
            for matrix in range(7)
            for column in (1, 2)
        ),
    ],
    "logits must be": [
        *(result(0, shaped(shape)) for shape in ((97,), (2, 97), (1, 96), (1, 113), (1, 0), (0, 97))),
        result(0, shaped((1, 97), np.float16)),
        *(result(1, shaped(shape, np.int32)) for shape in ((2,), (), (0,))),
        result(1, shaped((1,))),
    ],
    # 97 … 111 would still be rows of the table's last group.
    "a token is outside the vocabulary": [value(TOKENS, token) for token in (-1, 97, 111, 2**31 - 1, -(2**31))],
    "a position is outside the cache": [value(POSITION, place) for place in (SLOTS, -1, 2**31 - 1, -(2**31))],
}


@pytest.mark.parametrize("words", SPOILT)
def test_fused_refuses_a_call_that_is_spoilt(good, words):
    """After each error a good call is right."""
    unspoilt = good()
    step = unspoilt.compiled()
    for spoil in SPOILT[words]:
        call = good()
        spoil(call)
        # spoilt in its operands alone: compiled anew only for other shapes
        program = step if call.program() == unspoilt.program() else call.compiled()
        with jax.enable_x64(words == "the attributes must be"), pytest.raises(jax.errors.JaxRuntimeError) as error:
            jax.block_until_ready(program(*call.operands))
        assert re.search(f"fused: {words}", str(error.value)), error.value
        np.testing.assert_array_equal(np.asarray(step(*unspoilt.operands)[0]), good.expected)


def test_fused_refuses_other_arrays_of_layers(good):
    assert len(good().operands) == BIASES + good.bias
    for i in range(NORMS, BIASES + good.bias):
        array = np.asarray(good().operands[i])
        spoilt = [array.astype(np.float16), array[None]]
        if i != BLOCKS:
            spoilt += [
                np.resize(array, [n + by * (k == axis) for k, n in enumerate(array.shape)])
                for axis in range(array.ndim)
                for by in (1, -1)
            ]
        for wrong in spoilt:
            call = good()
            call.operands[i] = wrong
            with pytest.raises(jax.errors.JaxRuntimeError, match="fused: the layers' weights must be"):
                call()
    np.testing.assert_array_equal(np.asarray(good()()[0]), good.expected)


def test_fused_refuses_blocks_that_end_before_the_last_matrix(good):
    for short in (0, 1, 64):
        call = good()
        blocks = np.asarray(call.operands[BLOCKS])
        end = 64 * int(np.asarray(call.operands[TABLE])[-1, -1, 0]) + 64 // 16 * 3 * 544  # 64 rows of 96 columns
        assert end <= len(blocks) < end + 64
        call.operands[BLOCKS] = blocks[: end - short]
        if short:
            with pytest.raises(jax.errors.JaxRuntimeError, match=f"fused: {SIZES}"):
                call()
        else:
            np.testing.assert_array_equal(np.asarray(call()[0]), good.expected)


def test_the_first_and_the_last_position_are_right(good):
    for position in (SLOTS - 1, 0):
        call = good()
        call.operands[POSITION] = np.array([position], np.int32)
        call.operands[KEYS], call.operands[VALUES] = (jnp.zeros_like(call.operands[i]) for i in (KEYS, VALUES))
        assert np.isfinite(np.asarray(call()[0])).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(ids=(2, 3), position=[0, 62]), "a position is outside the cache"),
        (dict(ids=(1, 3), position=[-3], rows=1), "a position is outside the cache, or logits are wanted of padding"),
        (dict(ids=(2, 3), position=[0, 0], rows=3), "logits must be"),
        (dict(ids=(2, 3), position=[0, 0], rows=1), "logits must be"),
        (dict(ids=(2, 3), position=[0]), "tokens must be"),
        (dict(ids=(2, 3), position=[0, 0], angles=5), "tokens must be"),
        (dict(ids=(3, 2), position=[0, 0, 0]), "the sequences' numbers"),
        *(
            (dict(ids=(2, 1), position=[0, 0], numbers=numbers), "the sequences' numbers")
            for numbers in ([1, 0], [1, 1], [0, 2], [-1, 0])
        ),
        (dict(ids=(2, 1), position=[0, 0], numbers=[0]), "the sequences' numbers|tokens must be"),
        (dict(ids=(0, 2), position=[]), "tokens must be"),
        (dict(ids=(2, 0), position=[0, 0]), "tokens must be"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused(change, words):
    cfg, ids = small(), jnp.zeros(change["ids"], jnp.int32)
    entries = fused.create(cfg, jnp.zeros(2, jnp.int32), 64).entries
    numbers = jnp.asarray(change.get("numbers", range(len(ids))), jnp.int32)
    first = jnp.zeros(len(ids), jnp.int32)
    call = call_of(cfg, quantised(cfg), ids, first, numbers, entries, change.get("rows", ids.size))
    call.operands[POSITION] = jnp.asarray(change["position"], jnp.int32)
    if "angles" in change:
        call.operands[COS] = jnp.zeros((change["angles"], call.operands[COS].shape[1]), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"fused: {words}"):
        call()
