from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from llama_jax import sampling
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Draw, Sampler

V = 12


def draws(logits, sampler, n, seen=None):
    """n independent draws from the same logits."""
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (n, len(logits)))
    keys = jax.vmap(jax.random.key)(jnp.arange(n, dtype=jnp.uint32))
    seen = None if seen is None else jnp.broadcast_to(jnp.asarray(seen), rows.shape)
    return np.asarray(jax.jit(sampling.next_token)(rows, Draw(keys, jnp.int32(3), seen), sampler)[0])


def reference(logits, s, seen):
    """The distribution in float64: filters by transformers, so that the order and the edges are not ours."""
    scores = torch.tensor(np.asarray(logits, np.float64))[None]
    if s.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(s.repetition_penalty)(
            torch.tensor(np.flatnonzero(seen))[None], scores
        )
    scores = scores / s.temperature
    if s.top_k:
        scores = TopKLogitsWarper(s.top_k)(None, scores)
    if s.top_p < 1:
        scores = TopPLogitsWarper(s.top_p)(None, scores)
    if s.min_p:
        scores = MinPLogitsWarper(s.min_p)(None, scores)
    return torch.softmax(scores, -1)[0].numpy()


@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
@pytest.mark.parametrize("shift", [0.0, -50.0], ids=["mixed", "all-negative"])
@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(1.0),
        Sampler(0.5, top_k=5),
        Sampler(1.3, top_p=0.8),
        Sampler(1.0, min_p=0.2),
        Sampler(0.9, top_k=8, top_p=0.9, min_p=0.05, repetition_penalty=1.4),
        Sampler(1.0, top_k=10 * V, top_p=1.0),
    ],
    ids=["plain", "top-k", "top-p", "min-p", "all", "k-above-V"],
)
def test_draws_follow_the_float64_distribution(sampler, shift, traced):
    logits = np.random.default_rng(1).normal(0, 2, V) + shift
    seen = np.arange(V) % 3 == 0
    expected, n = reference(logits, sampler, seen), 20_000
    remembers = traced or sampler.repetition_penalty != 1
    counts = np.bincount(
        draws(logits, sampler.traced() if traced else sampler, n, seen if remembers else None), minlength=V
    )
    assert counts[expected == 0].sum() == 0
    live = expected * n > 5
    if live.sum() > 1:
        p = stats.chisquare(counts[live], expected[live] / expected[live].sum() * counts[live].sum()).pvalue
        assert p > 1e-4


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([2, 7, 20]).flatmap(
        lambda n: st.lists(st.floats(-80, 80, width=32, allow_subnormal=False), min_size=n, max_size=n, unique=True)
    ),
    st.sampled_from([1, 3, 30]),
    st.floats(0.05, 1.0),
    st.floats(0.0, 1.0),
)
def test_filters_keep_what_transformers_keeps(values, k, p, floor):
    logits = jnp.asarray([values], jnp.float32)
    scores = torch.tensor(np.asarray(logits))
    np.testing.assert_array_equal(
        np.isfinite(sampling.keep_top_k(logits, k)), torch.isfinite(TopKLogitsWarper(k)(None, scores)).numpy()
    )
    kept = np.isfinite(np.asarray(sampling.keep_top_p(logits, p)))[0]
    order = np.argsort(-np.asarray(logits, np.float64)[0])
    mass = np.cumsum(torch.softmax(scores.double(), -1)[0].numpy()[order])
    assert kept[order[0]]
    assert kept.sum() == kept[order].argmin() if not kept.all() else True  # the kept ones are the best ones
    if (np.abs(mass - p) > 1e-4).all():
        assert kept.sum() == min(int(np.searchsorted(mass, p) + 1), len(values)) or mass[-1] < p
    assert np.isfinite(np.asarray(sampling.keep_min_p(logits, floor))).any()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-6, 6), min_size=2, max_size=40),
    st.integers(1, 45),
    st.booleans(),
)
def test_tokens_that_tie_with_the_last_one_kept_are_kept(values, k, traced):
    scores = torch.tensor([values], dtype=torch.float32)
    kept = sampling.keep_top_k(jnp.asarray(scores.numpy().copy()), jnp.int32(k) if traced else k)
    np.testing.assert_array_equal(np.isfinite(kept), torch.isfinite(TopKLogitsWarper(k)(None, scores)).numpy())


@pytest.mark.parametrize("step", [0, 0.25, 2.0], ids=["no-ties", "some-ties", "ties-beyond-the-few"])
@pytest.mark.parametrize("top_k", [0, 1, 40, sampling.FEW - 1, sampling.FEW, 700])
def test_a_draw_among_the_few_best_is_the_draw_among_all(top_k, step):
    """The noise is the token's own, so that it does not matter where the best ones were looked for."""
    logits = np.random.default_rng(top_k).normal(0, 3, (3, 1000)).astype(np.float32)
    logits = jnp.asarray(np.round(logits / step) * step if step else logits)
    for sampler in (Sampler(1.5, top_k), Sampler(1.5, top_k, 0.8), Sampler(1.5, top_k, min_p=0.1)):
        keys = jax.vmap(jax.random.key)(jnp.arange(3, dtype=jnp.uint32))
        draw = Draw(keys, jnp.int32(0), jnp.zeros(logits.shape, bool))
        soft = sampling.soften(logits, sampler.temperature)
        expected = sampling.categorical(sampling.narrow(soft, sampler), draw)
        for settings_given in (sampler, sampler.traced()):
            np.testing.assert_array_equal(jax.jit(sampling.next_token)(logits, draw, settings_given)[0], expected)


@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
@pytest.mark.parametrize("sampler", [Sampler(0.6, 50, 0.9), Sampler(0.6, top_p=0.9), Sampler(0.6, 700)], ids=str)
def test_no_vocabulary_is_sorted(sampler, traced):
    """XLA turns a selection into a sort where it takes it for one: a hundred times as long on a CPU."""
    logits, draw = jnp.zeros((1, 1000)), Draw(jax.random.split(jax.random.key(0), 1), jnp.int32(0), None)
    if traced:
        draw, sampler = replace(draw, seen=jnp.zeros(logits.shape, bool)), sampler.traced()
    program = jax.jit(sampling.next_token).lower(logits, draw, sampler).compile().as_text()
    assert " sort(" not in program
    assert " sort(" in jax.jit(jnp.sort).lower(logits).compile().as_text()


def test_filtered_logits_are_not_zeros():
    """The mistake of the original: where all logits are negative, zeros put all mass on the filtered tokens."""
    assert sampling.keep_top_k(jnp.asarray([[-5.0, -1.0, -3.0]]), 1).tolist() == [[-np.inf, -1.0, -np.inf]]


def test_temperature_zero_is_greedy_and_the_lowest_id_wins_a_tie():
    logits = [0.0, 3.0, 3.0, -1.0]
    for sampler in (Sampler(), Sampler(0.0).traced(), Sampler(0.0, top_k=2)):
        assert set(draws(logits, sampler, 8, np.zeros(4, bool))) == {1}


def test_a_repeated_token_is_less_likely_whatever_its_sign():
    logits, seen = jnp.array([[2.0, -2.0, 2.0, -2.0]]), jnp.array([[True, True, False, False]])
    assert sampling.penalise(logits, seen, 2.0).tolist() == [[1.0, -4.0, 2.0, -2.0]]


def test_padding_is_not_seen():
    seen = sampling.mark(jnp.zeros((1, 5), bool), jnp.array([[0, 0, 3]]), 0, jnp.array([2]))
    assert np.flatnonzero(seen[0]).tolist() == [3]


def test_a_row_depends_on_its_own_seed_only():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 50)), jnp.float32)
    keys = jax.vmap(jax.random.key)(jnp.array([5, 6], jnp.uint32))
    both, _ = sampling.next_token(logits, Draw(keys, jnp.int32(0), None), Sampler(1.0))
    alone, _ = sampling.next_token(logits[1:], Draw(keys[1:], jnp.int32(0), None), Sampler(1.0))
    assert both[1] == alone[0]


@pytest.mark.parametrize(
    "bad",
    [
        *(dict(temperature=value) for value in (-1, 1e308)),
        *(dict(top_k=value) for value in (-1, 1.0, 2**31, np.float32(3))),
        *(dict(top_p=value) for value in (0, 1.1, 1e-320)),
        dict(min_p=2),
        *(dict(repetition_penalty=value) for value in (0, 1e-320, 1e308)),
        *(
            {field.name: value}
            for field in fields(Sampler)
            for value in (None, True, np.True_, "1", "a" * 5_000, [], [0.5], {}, 1j, 10**400, np.ones(1), float("nan"))
        ),
        *({field.name: np.float32(value)} for field in fields(Sampler) for value in ("nan", "inf", "-inf")),
    ],
    ids=str,
)
def test_settings_out_of_range_are_named(bad):
    with pytest.raises(UserError, match=f"^{next(iter(bad))} is ") as caught:
        Sampler(**bad)
    assert len(str(caught.value)) < 200


def test_settings_may_be_numpys():
    """They become Python's own, so that equal settings are one program."""
    numpys = Sampler(np.float64(0.5), np.int32(3), np.array(0.25), np.float16(0.5), np.int64(2))
    assert numpys == Sampler(0.5, 3, 0.25, 0.5, 2)
    assert hash(numpys) == hash(Sampler(0.5, 3, 0.25, 0.5, 2))
    assert {type(getattr(numpys, field.name)) for field in fields(Sampler)} == {int, float}


@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
@pytest.mark.parametrize(
    ("setting", "least", "most"),
    [
        (dict(temperature=5e-324), {2}, {2}),
        (dict(temperature=1e-38), {2}, {2}),
        (dict(temperature=1e-6), {2}, {2}),
        (dict(temperature=1e30), {0, 1, 2, 3}, {0, 1, 2, 3}),
        (dict(temperature=1, top_p=1e-30), {2}, {2}),
        (dict(temperature=1, min_p=5e-324), set(), {0, 1, 2, 3}),
        (dict(temperature=1, top_k=2**31 - 1), set(), {0, 1, 2, 3}),
        (dict(repetition_penalty=1e30), {3}, {3}),
        (dict(repetition_penalty=1e-30), {2}, {2}),
    ],
    ids=str,
)
def test_the_ends_of_the_ranges_make_tokens(setting, least, most, traced):
    """Not NaN, which would make the first token the best; logits of all signs, zero among them."""
    sampler, seen = Sampler(**setting), np.array([False, True, True, False])
    drawn = set(draws([-9.0, 0.0, 3.0, 2.0], sampler.traced() if traced else sampler, 64, seen))
    assert least <= drawn <= most


def one_draw(logits, sampler, seen):
    """(tokens, `Draw`) of one draw from each row of logits."""
    keys = jax.vmap(jax.random.key)(jnp.arange(len(logits), dtype=jnp.uint32))
    return jax.jit(sampling.next_token)(jnp.asarray(logits), Draw(keys, jnp.int32(0), seen), sampler)


def test_scores_are_of_the_logits_before_any_setting():
    logits = np.random.default_rng(3).normal(0, 3, (4, 60)).astype(np.float32)
    sampler = replace(Sampler(0.3, top_k=2, repetition_penalty=1.7).traced(), scored=jnp.bool_(True))
    ids, draw = one_draw(logits, sampler, jnp.ones(logits.shape, bool))
    expected = torch.log_softmax(torch.tensor(logits).double(), -1)
    best, which = torch.topk(expected, sampling.SCORED)
    np.testing.assert_allclose(draw.scores.chosen, expected[np.arange(4), np.asarray(ids)], rtol=1e-5)
    np.testing.assert_allclose(draw.scores.best, best, rtol=1e-5)
    np.testing.assert_array_equal(draw.scores.ids, which)


def test_without_scores_the_token_is_the_same():
    logits = np.random.default_rng(4).normal(0, 3, (2, V)).astype(np.float32)
    settings = Sampler(0.9).traced()
    plain, draw = one_draw(logits, settings, jnp.zeros(logits.shape, bool))
    assert draw.scores is None
    for wanted in (False, True):
        ids, draw = one_draw(logits, replace(settings, scored=jnp.bool_(wanted)), jnp.zeros(logits.shape, bool))
        np.testing.assert_array_equal(ids, plain)
        assert draw.scores.best.shape == (2, V)  # as many as there are
        assert bool(np.any(draw.scores.chosen)) == wanted
