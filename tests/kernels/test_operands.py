"""Wrong buffers, attributes or values are answered by an XLA error in words; the process goes on and the next good call
is right."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import rope
from llama_jax.kernels import fused
from llama_jax.kernels.registry import registered
from tests.kernels.models import quantised, random_cache, small, with_packed_layers
from tests.kernels.products import reference_product
from tests.kernels.test_gemv import weight

F32, U8 = np.float32, np.uint8


def shaped(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def gemv(operands, results, **attributes):
    return jax.ffi.ffi_call(registered("llama_jax_gemv"), results)(*operands, **attributes)


X, W = np.ones((2, 64), F32), np.zeros((2, 2, 288), U8)  # 17…32 rows of 64 columns
GOOD = shaped((2, 20))


@pytest.mark.parametrize(
    ("words", "operands", "results", "attributes"),
    [
        ("takes two operands", [X], GOOD, {}),
        ("takes two operands", [X, W, W], GOOD, {}),
        ("takes two operands", [], GOOD, {}),
        ("gives one result", [X, W], [GOOD, GOOD], {}),
        ("no attributes", [X, W], GOOD, dict(eps=F32(1))),
        ("weight must be uint8", [X, W.reshape(-1)], GOOD, {}),
        ("x must be float32", [X.astype(np.float16), W], GOOD, {}),
        ("x must be float32", [X.astype(np.int32), W], GOOD, {}),
        ("x must be float32", [X[0], W], GOOD, {}),
        ("x must be float32", [X[None], W], GOOD, {}),
        ("x must be float32", [F32(1), W], GOOD, {}),
        ("weight must be uint8", [X, W.astype(np.int8)], GOOD, {}),
        ("weight must be uint8", [X, W[0]], GOOD, {}),
        ("weight must be uint8", [X, W[..., :287]], GOOD, {}),
        ("weight must be uint8", [X, np.zeros((2, 2, 0), U8)], GOOD, {}),
        ("weight must be uint8", [X, np.zeros((2, 2, 576), U8)], GOOD, {}),
        ("result must be float32", [X, W], shaped((2, 20), np.float16), {}),
        ("result must be float32", [X, W], shaped((40,)), {}),
        ("result must be float32", [X, W], shaped((3, 20)), {}),
        ("result must be float32", [X, W], shaped((2, 16)), {}),
        ("result must be float32", [X, W], shaped((2, 33)), {}),
        ("different numbers of columns", [X[:, :32], W], GOOD, {}),
        ("different numbers of columns", [np.ones((2, 65), F32), W], GOOD, {}),
        ("different numbers of columns", [np.ones((2, 0), F32), W], GOOD, {}),
    ],
)
def test_gemv_refuses(words, operands, results, attributes):
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"gemv.*{words}"):
        jax.block_until_ready(gemv(operands, results, **attributes))
    x, blocks = np.ones((2, 64), F32), weight("q4_0", 20, 64)
    np.testing.assert_allclose(gemv([x, blocks.data], GOOD), reference_product(x, blocks), rtol=1e-4, atol=1e-4)


@dataclass
class Call:
    """A call of the fused step, to be spoilt: operands by number, results, attributes, which results overwrite which
    operands."""

    operands: list
    results: list
    attributes: dict
    aliases: dict

    def __call__(self):
        call = jax.ffi.ffi_call(registered("llama_jax_fused"), self.results, input_output_aliases=self.aliases)
        return jax.block_until_ready(jax.jit(lambda *operands: call(*operands, **self.attributes))(*self.operands))


SLOT, PAD, SLOTS = 20, 4, 32
TOKENS, POSITION, NUMBER, COS, SIN, EMBEDDING, HEAD, NORM, KEYS, VALUES = range(10)
NORMS, BLOCKS, TABLE, BIASES = range(10, 14)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def good(request):
    cfg = small(request.param)
    model, cache = quantised(cfg), random_cache(cfg, SLOTS, SLOT, PAD)[1]

    def make():
        first, number = cache.length - cache.pad, jnp.zeros(1, jnp.int32)
        ids = jnp.array([[7]], jnp.int32)
        operands = fused.operands(with_packed_layers(model), ids, first, number, cache.entries, rope.frequencies(cfg))
        results = [
            shaped((1, cfg.vocab_size)),
            shaped((1,), np.int32),
            *(shaped(e.shape, e.dtype) for e in cache.entries),
        ]
        attributes = dict(
            bias=np.int64(cfg.qkv_bias),
            eps=F32(cfg.norm_eps),
            feed_forward=np.int64(cfg.intermediate_size),
            heads=np.int64(cfg.num_attention_heads),
            key_heads=np.int64(cfg.num_key_value_heads),
        )
        return Call(operands, results, attributes, {8: 2, 9: 3})

    make.bias, make.expected = cfg.qkv_bias, np.asarray(make()()[0])
    return make


def resized(call, i, axis, by):
    """Operand i, a result with it where it is a cache, `by` longer along an axis."""
    array = np.asarray(call.operands[i])
    shape = list(array.shape)
    shape[axis] += by
    call.operands[i] = np.resize(array, shape)
    if i in call.aliases:
        call.results[call.aliases[i]] = shaped(tuple(shape), array.dtype)


def refused(good, call, words):
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"fused: {words}"):
        call()
    np.testing.assert_array_equal(np.asarray(good()()[0]), good.expected)


def test_fused_refuses_wrong_counts(good):
    call = good()
    call.operands.pop()
    refused(good, call, "wrong number of operands")
    call = good()
    call.operands.append(call.operands[-1])
    refused(good, call, "wrong number of operands")
    call = good()
    call.operands, call.results, call.aliases = call.operands[:5], call.results[:2], {}
    refused(good, call, "wrong number of operands")
    call = good()
    call.results.append(shaped((1,)))
    refused(good, call, "wrong number of operands, results")
    call = good()
    call.attributes["zeal"] = F32(1)
    refused(good, call, "wrong number of operands, results or attributes")
    call = good()
    del call.attributes["bias"]
    refused(good, call, "wrong number of operands, results or attributes")
    call = good()
    call.attributes["bias"] = np.int64(not good.bias)
    refused(good, call, "wrong number of operands")


@pytest.mark.parametrize(
    "change",
    [
        dict(bias=np.int64(2)),
        dict(bias=np.int64(-1)),
        dict(bias="yes"),
        dict(bias=np.int32(1)),
        dict(bias=F32(1)),
        dict(eps="small"),
        dict(eps=np.int64(1)),
        dict(eps=np.float64(1e-5)),
        dict(feed_forward=F32(96)),
        dict(feed_forward="wide"),
        dict(heads=F32(4)),
        dict(heads="four"),
        dict(heads=np.array([4, 4])),
        dict(key_heads=F32(2)),
        dict(key_heads="two"),
    ],
    ids=str,
)
def test_fused_refuses_attributes_of_another_type(good, change):
    """Text and arrays are other structures than numbers: read as numbers they would lead anywhere."""
    call = good()
    call.attributes.update(change)
    with jax.enable_x64(True):
        refused(good, call, "the attributes must be")


@pytest.mark.parametrize("heads", [0, -4, 3, 6, 8, 5, 1 << 40, (1 << 60) + 4, (1 << 63) - 4])
def test_fused_refuses_other_numbers_of_heads(good, heads):
    """(2^60 + 4) heads of 16 are, in 64 bits, as many rows as 4 heads of 16."""
    call = good()
    call.attributes["heads"] = np.int64(heads)
    refused(good, call, "(hidden size|a layer's matrix|the layers' weights)")


@pytest.mark.parametrize("heads", [0, -2, 3, 4, 1, 1 << 40, (1 << 63) - 2])
def test_fused_refuses_other_numbers_of_key_heads(good, heads):
    call = good()
    call.attributes["key_heads"] = np.int64(heads)
    refused(good, call, "(keys must be|hidden size|a layer's matrix|the layers' weights|the sequences' numbers)")


@pytest.mark.parametrize("number", [-1, 1, 2**31 - 1, -(2**31)])
def test_fused_refuses_a_sequence_that_the_cache_has_not(good, number):
    call = good()
    call.operands[NUMBER] = np.array([number], np.int32)
    refused(good, call, "the sequences' numbers in the cache")


@pytest.mark.parametrize("feed_forward", [0, -32, 16, 100, 128, 1 << 40, 1 << 62, (1 << 63) - 32])
def test_fused_refuses_another_feed_forward_size(good, feed_forward):
    call = good()
    call.attributes["feed_forward"] = np.int64(feed_forward)
    refused(good, call, "(hidden size|a layer's matrix)")


@pytest.mark.parametrize("i", [TOKENS, POSITION, NUMBER, COS, SIN])
def test_fused_refuses_other_rows_and_angles(good, i):
    for spoil in (lambda a: a.astype(np.float16), lambda a: a[None], lambda a: np.resize(a, 3) if a.ndim else a[None]):
        call = good()
        call.operands[i] = spoil(np.asarray(call.operands[i]))
        refused(good, call, "tokens must be")


@pytest.mark.parametrize("i", [KEYS, VALUES])
def test_fused_refuses_another_cache(good, i):
    for axis in range(np.ndim(good().operands[i])):
        call = good()
        resized(call, i, axis, 1)
        refused(good, call, "(keys must be|wrong number|token)")
    call = good()
    call.operands[i] = np.asarray(call.operands[i]).astype(np.float32)
    call.results[call.aliases[i]] = shaped(call.operands[i].shape)
    refused(good, call, "keys must be")
    call = good()
    call.operands[i] = call.operands[i][None]
    call.results[call.aliases[i]] = shaped(call.operands[i].shape, np.float16)
    refused(good, call, "keys must be")


def test_fused_refuses_a_cache_of_heads_of_no_size(good):
    call = good()
    for i in (KEYS, VALUES):
        resized(call, i, 3, -16)
    call.operands[COS] = call.operands[SIN] = np.zeros((1, 0), F32)
    refused(good, call, "keys must be")


@pytest.mark.parametrize("aliases", [{}, {8: 2}, {9: 3}])
def test_fused_refuses_a_cache_that_it_would_not_overwrite(good, aliases):
    call = good()
    call.aliases = aliases
    refused(good, call, "keys must be.*overwritten in place")


@pytest.mark.parametrize("i", [EMBEDDING, HEAD])
def test_fused_refuses_other_tables(good, i):
    for axis, by in ((0, 1), (0, -1), (1, 1), (1, -1), (2, 1), (2, 32)):
        call = good()
        resized(call, i, axis, by)
        refused(good, call, "(embedding and head must be|logits)")
    for spoil in (lambda a: a.astype(np.int8), lambda a: a[0], lambda a: a[None]):
        call = good()
        call.operands[i] = spoil(np.asarray(call.operands[i]))
        refused(good, call, "embedding and head must be")


def test_fused_refuses_another_final_norm(good):
    for spoil in (
        lambda a: a[:32],
        lambda a: a[None],
        lambda a: a.astype(np.float16),
        lambda a: np.resize(a, 65),
        lambda a: a[:0],
    ):
        call = good()
        call.operands[NORM] = spoil(np.asarray(call.operands[NORM]))
        refused(good, call, "embedding and head must be")


def test_fused_refuses_a_model_of_no_size(good):
    call = good()
    call.operands[NORM] = np.zeros(0, F32)
    for i in (EMBEDDING, HEAD):
        call.operands[i] = np.asarray(call.operands[i])[:, :0]
    refused(good, call, "hidden size")


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
            refused(good, call, "a layer's matrix is not of the sizes")
        else:
            np.testing.assert_array_equal(np.asarray(call()[0]), good.expected)


@pytest.mark.parametrize("place", [-1, -(2**31), 2**31 - 1, 10**6])
def test_fused_refuses_a_place_outside_the_blocks(good, place):
    for layer in range(2):
        for i in range(4):
            call = good()
            table = np.array(call.operands[TABLE])
            table[layer, i, 0] = place
            call.operands[TABLE] = table
            refused(good, call, "a layer's matrix is not of the sizes")


@pytest.mark.parametrize("kind", [0, -544, 287, 545, 2**31 - 1])
def test_fused_refuses_an_unknown_kind(good, kind):
    call = good()
    table = np.array(call.operands[TABLE])
    table[1, 2, 3] = kind
    call.operands[TABLE] = table
    refused(good, call, "a layer's matrix is not of the sizes")


@pytest.mark.parametrize("by", [1, -1, 2**30])
def test_fused_refuses_a_matrix_of_other_sizes(good, by):
    for layer in range(2):
        for i in range(4):
            for j in (1, 2):
                call = good()
                table = np.array(call.operands[TABLE])
                table[layer, i, j] += by
                call.operands[TABLE] = table
                refused(good, call, "a layer's matrix is not of the sizes")


@pytest.mark.parametrize(
    ("at", "result"),
    [
        (0, shaped((1, 97), np.float16)),
        (0, shaped((97,))),
        (0, shaped((2, 97))),
        (0, shaped((1, 96))),
        (0, shaped((1, 113))),
        (0, shaped((1, 0))),
        (0, shaped((0, 97))),
        (1, shaped((2,), np.int32)),
        (1, shaped((1,))),
        (1, shaped((), np.int32)),
        (1, shaped((0,), np.int32)),
    ],
)
def test_fused_refuses_other_results(good, at, result):
    call = good()
    call.results[at] = result
    refused(good, call, "logits must be")


@pytest.mark.parametrize("token", [-1, 97, 111, 2**31 - 1, -(2**31)])
def test_fused_refuses_a_token_outside_the_vocabulary(good, token):
    """97 … 111 would still be rows of the table's last group."""
    call = good()
    call.operands[TOKENS] = np.array([[token]], np.int32)
    refused(good, call, "a token is outside the vocabulary")


@pytest.mark.parametrize("position", [SLOTS, -1, 2**31 - 1, -(2**31)])
def test_fused_refuses_a_position_outside_the_cache_or_the_logits_of_padding(good, position):
    call = good()
    call.operands[POSITION] = np.array([position], np.int32)
    refused(good, call, "a position is outside the cache")


def test_the_first_and_the_last_position_are_right(good):
    for position in (SLOTS - 1, 0):
        call = good()
        call.operands[POSITION] = np.array([position], np.int32)
        call.operands[KEYS], call.operands[VALUES] = (jnp.zeros_like(call.operands[i]) for i in (KEYS, VALUES))
        assert np.isfinite(np.asarray(call()[0])).all()
