"""Tokens that a grammar allows: the same under every placement, in the loop and by the host."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from llama_jax import generate, kept, sampling, serialised
from llama_jax.grammars import Grammar
from llama_jax.grammars.tables import Table, TableWalker
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Constrained, Draw, Mask, Sampler
from llama_lab.bench import Guard
from tests.conftest import among_the_fast
from tests.kernels.models import small
from tests.kernels.test_generation import checkpoint_of

V, STOP = 97, (2, 90)
PROMPTS, N, LONGEST = [[5, 6, 7, 8], [9, 10], [11, 12, 13]], 16, 20
WARM = Sampler(0.9, top_k=20, repetition_penalty=1.3)
NAMES = ["eager", "step", "chunk8", "loop", "loop+scan", "loop+traced", "loop+lookup", "step+fused", "loop+fused",
         "loop+fused+lookup", "step+gemv", "chunk8+queue", "loop+callback"]  # fmt: skip


def hosted(grammar):
    """The same grammar as one that has no table."""
    return Grammar(None, grammar.start)


def random_grammar(seed, vocabulary=V, states=30, classes=8):
    """A random automaton: from each state a few classes lead on, and from some the stop tokens to the last state."""
    rng = np.random.default_rng(seed)
    of_token = rng.integers(1, classes, vocabulary).astype(np.int32)
    of_token[[i for i in STOP if i < vocabulary]] = 0
    following = rng.integers(0, states - 1, (states, classes)).astype(np.int16)
    following[rng.random(following.shape) < 0.6] = -1
    following[np.arange(states), rng.integers(1, classes, states)] = rng.integers(0, states - 1, states)
    following[:, 0] = np.where(np.arange(states) % 5 == 4, states - 1, -1)
    following[-1] = [states - 1] + [-1] * (classes - 1)
    table = Table(following, of_token)
    return Grammar(table, partial(TableWalker, table))


def reference(engine, prompt, grammar, sampler, seed):
    """An answer from the logits of the whole text before each token, masked here."""
    ids, walker, key = list(prompt), grammar.host(), jax.random.key(np.uint32(seed))
    for index in range(N):
        every = generate.logits(engine, [*ids, *[0] * (LONGEST - len(ids))])  # what follows a position changes nothing
        logits = jnp.where(walker.mask(), every[len(ids) - 1], -jnp.inf)[None]
        seen = jnp.zeros((1, V), bool).at[0, jnp.array(ids)].set(True)
        token = int(sampling.next_token(logits, Draw(key[None], jnp.int32(index), seen), sampler)[0][0])
        walker.advance(token)
        ids.append(token)
        if token in STOP:
            break
    return tuple(ids[len(prompt) :])


@pytest.fixture(scope="module")
def checkpoint():
    return checkpoint_of(small())


@pytest.fixture(scope="module")
def expected(checkpoint):
    """Reference answers by (what multiplies, sampler); computed once."""
    known = {}

    def of(placement, sampler, grammar):
        form = placement.kernels
        if (form, sampler) not in known:
            engine = generate.build(checkpoint, "step" if form == "none" else f"step+{form}")
            engine = replace(engine, programs=replace(engine.programs, logits=jax.jit(engine.programs.logits)))
            known[form, sampler] = [
                reference(engine, prompt, grammar, sampler, seed) for seed, prompt in enumerate(PROMPTS)
            ]
        return known[form, sampler]

    return of


GRAMMAR = random_grammar(0)


def answers(engine, grammar, sampler=WARM, **options):
    made = generate.answer(engine, PROMPTS, N, stop=STOP, sampler=sampler, grammar=grammar, **options)
    return [answer.token_ids for answer in made]


def accepted(grammar, ids):
    walker = grammar.host()
    for token in ids:
        walker.advance(token)  # which raises where it may not
    return walker


@pytest.mark.parametrize("name", among_the_fast(["step", "loop", "loop+fused+lookup"], NAMES))
@pytest.mark.parametrize("sampler", [Sampler(), WARM], ids=str)
def test_tokens_are_those_of_logits_masked_on_the_host(checkpoint, expected, name, sampler):
    engine = generate.build(checkpoint, name)
    assert answers(engine, GRAMMAR, sampler) == expected(engine.placement, sampler, GRAMMAR)


def test_the_answers_end_apart_and_are_not_those_of_the_model_alone(checkpoint, expected):
    engine = generate.build(checkpoint, "loop")
    free = [a.token_ids for a in generate.answer(engine, PROMPTS, N, stop=STOP, sampler=WARM)]
    for ids, of_model in zip(expected(engine.placement, WARM, GRAMMAR), free, strict=True):
        accepted(GRAMMAR, ids)
        with pytest.raises(ValueError, match="may not follow"):
            accepted(GRAMMAR, of_model)
    assert len({len(ids) for ids in expected(engine.placement, WARM, GRAMMAR)}) > 1


@pytest.mark.parametrize("name", among_the_fast(["step"], ["eager", "step", "step+fused", "step+traced"]))
def test_a_grammar_without_a_table_is_followed_by_the_host(checkpoint, name):
    engine = generate.build(checkpoint, name)
    assert answers(engine, hosted(GRAMMAR)) == answers(engine, GRAMMAR)


def test_a_long_prompt_begins_its_answer_at_the_start_of_the_grammar(checkpoint):
    """Its pieces each draw a token, which is not part of the answer."""
    engine, prompt = generate.build(checkpoint, "step"), [3 + i % 80 for i in range(600)]
    for grammar in (GRAMMAR, hosted(GRAMMAR)):
        (answer,) = generate.answer(engine, [prompt], 8, stop=STOP, sampler=WARM, grammar=grammar)
        accepted(GRAMMAR, answer.token_ids)


@pytest.mark.parametrize("name", ["chunk8", "loop", "step+async", "step+lookup"])
def test_a_grammar_without_a_table_is_refused_where_the_host_is_late(checkpoint, name):
    with pytest.raises(UserError, match=f"no table.*'{name.replace('+', '.')}'"):
        answers(generate.build(checkpoint, name), hosted(GRAMMAR))


def test_a_grammar_of_another_vocabulary_is_refused(checkpoint):
    with pytest.raises(UserError, match="compiled for 98 tokens, the model has 97"):
        answers(generate.build(checkpoint, "loop"), random_grammar(0, V + 1))
    with pytest.raises(UserError, match="must be a llama_jax.Sampler"):
        answers(generate.build(checkpoint, "loop"), GRAMMAR, sampler=0.7)


@pytest.mark.parametrize("name", ["step", "loop"])
def test_another_grammar_compiles_nothing(checkpoint, name):
    engine = generate.build(checkpoint, name)
    answers(engine, GRAMMAR)
    with Guard() as guard:
        second = answers(engine, random_grammar(1))
    assert guard.count("backend") == 0
    assert [accepted(random_grammar(1), ids) for ids in second]


@pytest.mark.parametrize("traced", [False, True], ids=["static", "traced"])
@pytest.mark.parametrize("by_mask", [False, True], ids=["table", "mask"])
def test_draws_follow_the_distribution_over_what_is_allowed(traced, by_mask):
    logits, n = np.random.default_rng(1).normal(0, 2, 12), 20_000
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (n, 12))
    table = Table(np.array([[-1, -1], [-1, 1]], np.int16), np.arange(12, dtype=np.int32) % 3 // 2)
    mask = np.arange(12) % 3 == 2
    sampler = Sampler(1.3, top_k=3)
    allowed = Mask(jnp.broadcast_to(mask, rows.shape)) if by_mask else jax.tree.map(jnp.asarray, table)
    keys = jax.vmap(jax.random.key)(jnp.arange(n, dtype=jnp.uint32))
    state = None if by_mask else jnp.ones(n, jnp.int32)
    draw = Draw(keys, jnp.int32(3), jnp.zeros(rows.shape, bool), state=state)
    constrained = Constrained(sampler.traced() if traced else sampler, allowed)
    ids, _ = jax.jit(sampling.next_token)(rows, draw, constrained)
    least = np.sort(logits[mask])[-3]
    weights = np.where(mask & (logits >= least), np.exp(logits / 1.3), 0)
    expected, counts = weights / weights.sum() * n, np.bincount(ids, minlength=12)
    assert counts[weights == 0].sum() == 0
    assert stats.chisquare(counts[weights > 0], expected[weights > 0]).pvalue > 1e-4


def test_scores_are_of_the_logits_without_the_grammar():
    logits = jnp.asarray([[3.0, 1.0, 2.0]])
    settings = replace(Sampler().traced(), scored=jnp.bool_(True))
    draw = Draw(jax.vmap(jax.random.key)(jnp.zeros(1, jnp.uint32)), jnp.int32(0), jnp.zeros((1, 3), bool))
    ids, draw = sampling.next_token(logits, draw, Constrained(settings, Mask(jnp.asarray([[False, True, False]]))))
    assert ids.tolist() == [1]
    np.testing.assert_allclose(draw.scores.chosen, jax.nn.log_softmax(logits)[0, 1:2], rtol=1e-6)


@pytest.mark.parametrize("name", ["step+aot", "loop+aot"])
def test_programs_with_a_grammar_are_kept_in_files(checkpoint, tmp_path, name):
    engine = generate.build(checkpoint, name)
    made = answers(engine, GRAMMAR)
    if not engine.placement.jits_decode:
        answers(engine, hosted(GRAMMAR))
    again = serialised.load(checkpoint, name, serialised.save(engine, tmp_path / "p.bin"), trust=True)
    with Guard() as guard:
        assert answers(again, GRAMMAR) == made
    assert guard.count("backend") == 0


def test_programs_with_a_grammar_are_kept_for_the_next_command(checkpoint, tmp_path):
    made = []
    for grammar in (GRAMMAR, random_grammar(1)):  # of the same shapes, so the second reads what the first wrote
        store = kept.Store(folder=tmp_path)
        engine = kept.build(checkpoint, "loop", store)
        assert answers(engine, grammar) == answers(generate.build(checkpoint, parse("loop")), grammar)
        made.append((store.made, store.read))
    assert made == [(2, 0), (0, 2)]
