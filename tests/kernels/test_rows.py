"""Several rows in one call of the fused step: each gets the bits that it would get alone, whatever stands beside it."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax.config import FAMILIES
from llama_jax.kernels import fused
from tests.kernels.models import (
    mixed,
    packed,
    quantised,
    random_cache,
    rows_program,
    small,
    unpacked,
    with_packed_layers,
)

MODELS = {
    "llama": (small(), "q4_1"),
    "qwen2": (small("qwen2"), "q4_0"),
    "ratio 3, head 32": (small(num_attention_heads=3, num_key_value_heads=1, head_dim=32), "q8_0"),
    "gemma3": (small("gemma3", window=40, o_bias=True, unrotated_layers=(1,)), "q8_0"),
    "ratio 5, head 80": (small(num_attention_heads=10, num_key_value_heads=2, head_dim=80), "q4_1"),
}
ROOM = 320


@pytest.fixture(scope="module", params=MODELS)
def subject(request):
    """(config, model, run(ids, cache, logits))."""
    cfg, kind = MODELS[request.param]
    model, programs = quantised(cfg, kind), {kept: rows_program(cfg, kept) for kept in ("all", "last", "none")}
    return cfg, model, lambda ids, cache, kept="all": programs[kept](model, jnp.asarray(ids, jnp.int32), cache)


def one_by_one(run, ids, cache):
    """Logits [T, V], best [T] and the cache after tokens [T] of one sequence that came in calls of their own."""
    logits, best = [], []
    for token in ids:
        values, chosen, cache = run([[token]], cache)
        logits.append(np.asarray(values)[0])
        best.append(int(chosen[0]))
    return np.array(logits), np.array(best), cache


def tokens(cfg, *shape, seed=0):
    return np.random.default_rng([seed, 5]).integers(0, cfg.vocab_size, shape)


def equal_caches(one, other):
    assert int(one.length) == int(other.length)
    np.testing.assert_array_equal(unpacked(one), unpacked(other))


@pytest.mark.parametrize("many", [2, 3, 4, 5, 7, 8, 9, 16, 23])
def test_rows_of_a_sequence_equal_its_tokens_one_by_one(subject, many):
    """Across the ends of tiles of 16 and of pieces of 128 positions."""
    cfg, _, run = subject
    ids = tokens(cfg, many)
    for slot in (0, 15, 120, 250):
        cache = random_cache(cfg, ROOM, slot, 0, seed=many)[1]
        logits, best, after = run(ids[None], cache)
        expected, chosen, expected_after = one_by_one(run, ids, cache)
        np.testing.assert_array_equal(logits, expected)
        np.testing.assert_array_equal(best, chosen)
        equal_caches(after, expected_after)


def test_another_order_of_rows_fails_by_far(subject):
    """The control: equality above is no accident of rows that are all alike."""
    cfg, _, run = subject
    cache, ids = random_cache(cfg, ROOM, 20, 0)[1], tokens(cfg, 4)
    first, second = (np.asarray(run(order[None], cache)[0]) for order in (ids, ids[::-1]))
    assert np.abs(first - second).max() > 1e-2 * np.abs(first).max()


@settings(max_examples=25, deadline=None)
@given(
    pads=st.lists(st.integers(0, 140), min_size=2, max_size=5),
    many=st.integers(1, 5),
    more=st.integers(0, 140),
    seed=st.integers(0, 9),
)
def test_each_sequence_of_a_batch_is_as_alone(pads, many, more, seed):
    """And a sequence is the same whatever its padding: alone it has none."""
    cfg, kind = MODELS["llama"]
    model, run = SHARED.setdefault(kind, (quantised(cfg, kind), rows_program(cfg, "all")))
    slot = max(pads) + more
    alone = [random_cache(cfg, 400, slot - pad, 0, seed=seed + i) for i, pad in enumerate(pads)]
    by_slot = [np.roll(both, pad, axis=3) for (both, _), pad in zip(alone, pads, strict=True)]
    cache = packed(np.concatenate(by_slot, axis=2), slot, pads)
    ids = tokens(cfg, len(pads), many, seed=seed)
    logits, best, after = run(model, jnp.asarray(ids, jnp.int32), cache)
    logits = np.asarray(logits).reshape(len(pads), many, -1)
    heads = cfg.num_key_value_heads
    for i, (_, single) in enumerate(alone):
        values, chosen, kept = run(model, jnp.asarray(ids[i : i + 1], jnp.int32), single)
        np.testing.assert_array_equal(logits[i], values)
        np.testing.assert_array_equal(best[i * many : (i + 1) * many], chosen)
        np.testing.assert_array_equal(after.entries[0][:, i * heads : (i + 1) * heads], kept.entries[0])


SHARED: dict = {}


@settings(max_examples=15, deadline=None)
@given(
    numbers=st.sets(st.integers(0, 4), min_size=1),
    positions=st.lists(st.integers(0, 200), min_size=5, max_size=5),
    many=st.integers(1, 3),
)
def test_some_sequences_of_a_cache_each_at_a_position_of_its_own(numbers, positions, many):
    """As each alone; the others' keys and values stay as they are."""
    cfg, kind = MODELS["llama"]
    model, run = SHARED.setdefault(kind, (quantised(cfg, kind), rows_program(cfg, "all")))
    some, heads = sorted(numbers), cfg.num_key_value_heads
    alone = [random_cache(cfg, 256, position, 0, seed=i)[1] for i, position in enumerate(positions)]
    entries = tuple(jnp.concatenate([cache.entries[i] for cache in alone], axis=1) for i in range(2))
    ids = tokens(cfg, len(some), many)
    first = jnp.array([positions[i] for i in some], jnp.int32)
    program = jax.jit(partial(fused.rows, config=cfg, logits="all"))
    logits, best, after = program(
        with_packed_layers(model), jnp.asarray(ids, jnp.int32), first, jnp.array(some, jnp.int32), entries
    )
    for i, before in enumerate(alone):
        kept = before
        if i in some:
            at = some.index(i)
            values, chosen, kept = run(model, jnp.asarray(ids[at : at + 1], jnp.int32), before)
            np.testing.assert_array_equal(logits[at * many : (at + 1) * many], values)
            np.testing.assert_array_equal(best[at * many : (at + 1) * many], chosen)
        for mine, expected in zip(after, kept.entries, strict=True):
            np.testing.assert_array_equal(mine[:, i * heads : (i + 1) * heads], expected)


def test_logits_of_the_last_row_or_of_none_change_nothing_else(subject):
    cfg, _, run = subject
    cache = packed(np.concatenate([random_cache(cfg, 64, 20, 0, seed=i)[0] for i in (0, 1)], axis=2), 20, [0, 0])
    ids = tokens(cfg, 2, 6)
    logits, best, after = run(ids, cache)
    last, chosen, after_last = run(ids, cache, "last")
    none, nothing, after_none = run(ids, cache, "none")
    np.testing.assert_array_equal(np.asarray(last), np.asarray(logits).reshape(2, 6, -1)[:, -1])
    np.testing.assert_array_equal(np.asarray(chosen), np.asarray(best).reshape(2, 6)[:, -1])
    assert none.shape == (0, cfg.vocab_size)
    assert nothing.shape == (0,)
    equal_caches(after, after_last)
    equal_caches(after, after_none)


@pytest.mark.parametrize("pad", [1, 7, 11])
def test_padding_changes_no_bit(subject, pad):
    """Of a prompt of 12 that is padded on the left, its last row and its cache are those of the prompt alone."""
    cfg, _, run = subject
    ids, padded = tokens(cfg, 12 - pad), np.zeros(12, int)
    padded[pad:] = ids
    empty = fused.create(cfg, jnp.array([pad], jnp.int32), 64)
    with_pad = run(padded[None], empty, "last")
    alone = run(ids[None], replace(empty, pad=jnp.zeros(1, jnp.int32)), "last")
    np.testing.assert_array_equal(np.asarray(with_pad[0]), np.asarray(alone[0]))
    for mine, expected in zip(with_pad[2].entries, alone[2].entries, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(expected))


def test_a_call_of_nothing_but_padding_leaves_the_cache(subject):
    cfg, _, run = subject
    empty = fused.create(cfg, jnp.array([9], jnp.int32), 32)
    _, _, after = run(np.zeros((1, 8), int), empty, "none")
    assert int(after.length) == 8
    for entry in after.entries:
        assert not np.asarray(entry).any()


def test_what_was_rejected_is_overwritten(subject):
    """Rows after the length are as if they had never been."""
    cfg, _, run = subject
    cache, ids = random_cache(cfg, 64, 20, 0)[1], tokens(cfg, 6)
    _, _, tried = run(ids[None], cache)
    back = replace(tried, length=cache.length + 2)
    again, _, after = run(ids[None, 2:], back)
    expected, _, expected_after = run(ids[None], cache)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(expected)[2:])
    equal_caches(after, expected_after)


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_many_rows_in_every_kind_equal_few(kind):
    cfg = small(hidden_size=160, intermediate_size=224)
    model, run = quantised(cfg, kind), rows_program(cfg, "all")
    cache, ids = random_cache(cfg, 128, 3, 0)[1], jnp.asarray(tokens(cfg, 1, 64), jnp.int32)
    whole = np.asarray(run(model, ids, cache)[0])
    for start in range(0, 64, 8):
        part, _, cache = run(model, ids[:, start : start + 8], cache)
        np.testing.assert_array_equal(np.asarray(part), whole[start : start + 8])


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"gpt2"}))
def test_a_row_is_as_alone_with_matrices_of_every_type_in_every_family(family):
    """docs/placements.md promises it: each of three sequences, and each token of a sequence, has the bits that it gets
    alone."""
    cfg = small(family, hidden_size=256, intermediate_size=256, num_attention_heads=8, head_dim=32)
    model, run = mixed(cfg), rows_program(cfg, "all")
    caches = [random_cache(cfg, 64, 20, 0, seed=i) for i in range(3)]
    ids = jnp.asarray(tokens(cfg, 3, 2), jnp.int32)
    together = packed(np.concatenate([both for both, _ in caches], axis=2), 20, [0, 0, 0])
    logits = np.asarray(run(model, ids, together)[0]).reshape(3, 2, -1)
    for i, (_, cache) in enumerate(caches):
        for at in range(2):
            alone, _, cache = run(model, ids[i : i + 1, at : at + 1], cache)
            np.testing.assert_array_equal(np.asarray(alone)[0], logits[i, at])
