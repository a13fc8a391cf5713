"""Drafts change how many tokens a pass makes, and no token."""

from dataclasses import replace

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from llama_jax import config, generate, sampling, transforms
from llama_jax.costs import Costs
from llama_jax.decoding import depth, drafts, lookup
from llama_jax.decoding.steps import Bounds, Carry, Steps
from llama_jax.kvc import KVCache
from llama_jax.placement import Placement, parse
from llama_jax.sampling import Draw, Sampler
from llama_lab.bench import Guard
from tests.conftest import among_the_fast
from tests.kernels.models import random_model, small

pytestmark = pytest.mark.usefixtures("quickly")

DRAW = Sampler(temperature=0.7, top_k=4)

# A model by hand: the next token follows from the last three in the cache and from its position, so that whoever reads
# a rejected row, or a place that is not yet written, says another token.
V, SLOTS, ROWS, COUNT = 3, 40, 2, 4


def next_logits(table, ids, slot, pad):
    """float32 [B V] after the token in `slot`: it and the two before, less padding, are read from the cache [B S]."""
    places = slot - jnp.arange(3)
    last = jnp.where(places[None] >= pad[:, None], ids[:, jnp.maximum(places, 0)], 0)
    best = table["next"][last[:, 0], last[:, 1], last[:, 2]] + table["noise"][slot - pad]
    return jax.nn.one_hot(best % V, V) * 2.0


def by_hand() -> Steps:
    """`Steps` over a cache that is the ids themselves, one leaf [B S]."""

    def logits(table, ids, cache: KVCache):
        t, pad = ids.shape[1], cache.pad
        kept = jax.lax.dynamic_update_slice(cache.entries[0], ids, (0, cache.length))
        values = jnp.stack([next_logits(table, kept, cache.length + i, pad) for i in range(t)], axis=1)
        return values, replace(cache, entries=(kept,), length=cache.length + t)

    def verify(table, ids, cache):
        values, cache = logits(table, ids, cache)
        return sampling.greedy(values), cache

    def run(table, ids, carry, sampler):
        values, cache = logits(table, ids, carry.cache)
        token, draw = sampling.next_token(values[:, -1], carry.draw, sampler)
        return token, Carry(cache, draw)

    def prefill(table, ids, pad, seeds, sampler, slots):
        cache = KVCache((jnp.full((len(pad), slots), -1, jnp.int32),), None, jnp.int32(0), pad)
        draw = Draw(jax.vmap(jax.random.key)(seeds), jnp.int32(0), None)
        return run(table, ids, Carry(cache, draw), sampler)

    def step(table, token, *rest):
        return run(table, token[:, None], *rest)

    return Steps(prefill, run, step, logits, verify, run, lambda table, ids, cache: logits(table, ids, cache)[1])


def programs(placement: Placement):
    """The host's programs of the model by hand, jitted."""
    made = by_hand()
    if placement.drafts:
        least = None if placement.until else placement.tokens_per_call
        made = drafts.Drafts(made, sampling.next_token, lookup.Lookup(), placement.depths, least)
    decode = transforms.decoder(placement, made, None)
    return transforms.Programs(
        prefill=jax.jit(made.prefill, static_argnames="slots"),
        extend=jax.jit(made.extend),
        step=jax.jit(made.step),
        decode=jax.jit(decode) if placement.jits_decode or placement.drafts else None,
        logits=None,
    )


@pytest.fixture(scope="module")
def machines():
    cfg = config.tiny(vocab_size=V)
    names = ("loop", f"loop+lookup{COUNT}", f"chunk6+lookup{COUNT}", f"step+lookup{COUNT}")
    placements = {name: replace(parse(name), kernels="fused") for name in names}  # for passes of all depths
    return {name: generate.Engine(cfg, None, p, programs(p)) for name, p in placements.items()}


TABLES = st.lists(st.integers(0, V - 1), min_size=V**3, max_size=V**3)
NOISE = st.lists(st.integers(0, 9).map(lambda n: max(0, n - 7)), min_size=SLOTS, max_size=SLOTS)
SILENCE = st.just([0] * SLOTS)
PROMPTS = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=12), min_size=ROWS, max_size=ROWS)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.sampled_from(["loop", "chunk6", "step"]),
    TABLES,
    st.one_of(SILENCE, NOISE),
    PROMPTS,
    st.integers(1, 29),
    st.sampled_from([(), (0,), (1, 2)]),
    st.sampled_from([generate.GREEDY, DRAW]),
    st.lists(st.sampled_from([0.5, 1.0, 1.3, 9.0]), min_size=4, max_size=4),
)
def test_no_token_differs_whatever_is_proposed(machines, name, table, noise, prompts, n, stop, sampler, costs):
    """All automata of three tokens of memory: cycles, near misses, noise; stop tokens anywhere, the cache to its end,
    rows that take different numbers of drafts; passes that are worth it always, never, or after a run."""
    table = dict(next=jnp.array(table).reshape((V,) * 3), noise=jnp.array(noise))

    def made(name):
        engine = replace(machines[name], params=table, costs=Costs(costs))
        batch = generate.request(engine.config, prompts, n, stop=stop, slots=SLOTS, length=12)
        token, carry = generate.prefill(engine, batch, sampler)
        return np.concatenate([np.asarray(token)[None], *generate.decode(engine, batch, token, carry, sampler)])

    expected, drafted = made("loop"), made(f"{name}+lookup{COUNT}")
    assert len(drafted) == (len(expected) if name == "loop" else n)
    for row, same in zip(drafted.T, expected.T, strict=True):  # what comes after a row's stop token means nothing
        assert generate.cut(row[: len(expected)], stop) == generate.cut(same, stop)


def test_what_is_proposed():
    def drafts_of(text, newest, pad=0, count=5):
        proposed, kind = lookup.proposed(jnp.array([text]), jnp.int32(newest), jnp.array([pad]), count)
        return proposed[0].tolist() if kind[0] >= 0 else None

    assert drafts_of([4, 7, 5, 6, 7, 5, 9], 5) == [6, 7, 5, 6, 7]  # the docstring's
    assert drafts_of([4, 7, 5, 6, 7, 5, 9], 5, count=2) == [6, 7]
    assert drafts_of([7, 5, 1, 4, 7, 5, 2, 8, 7, 5], 9) == [2, 8, 7, 5, 2]  # of two places the newest
    assert drafts_of([4, 7, 5, 1, 9, 7, 5, 2, 4, 7, 5], 10, count=2) == [1, 9]  # of three tokens before two
    assert drafts_of([3, 3, 3, 0], 2, count=3) == [3, 3, 3]
    assert drafts_of([5, 6, 5, 7], 3) is None
    assert drafts_of([6, 5, 7, 5, 0, 6, 5], 3) is None  # one is too few, and nobody looks behind the newest
    assert drafts_of([0, 0, 0, 5], 3, pad=3) is None
    assert drafts_of([0, 0, 0, 0], 3, pad=2) is None  # padding is no text
    assert drafts_of([0, 0, 0, 0, 0], 4, pad=2, count=2) == [0, 0]


REPEATING = [5, 9, 33, 60, 2, 7] * 4
HOSTED = ["step+lookup", "loop+lookup", "chunk8+callback+lookup", "loop+callback+lookup2"]
DRAWN = Sampler(0.8, top_k=20, repetition_penalty=1.1)
ARITHMETIC = ["", "+kvint8", "+kvbf16", "+scan", "+bf16", "+q8_0", "+q4_1+gemv", "+fused"]


@pytest.mark.parametrize(
    ("arithmetic", "sampler"),
    among_the_fast(
        [("", generate.GREEDY), ("+fused", generate.GREEDY)],
        [*((name, generate.GREEDY) for name in ARITHMETIC), ("", DRAWN), ("+fused", DRAWN)],
    ),
)
def test_every_arithmetic_makes_its_own_tokens(arithmetic, sampler):
    """Rejected rows of every kind of cache are overwritten: a key or a scale that stayed would be seen."""
    cfg = small()
    params = random_model(cfg)
    engines = {name: generate.bind(cfg, params, parse(name + arithmetic)) for name in ("loop", "step+lookup3")}
    drafting = engines["step+lookup3"]
    engines["step+lookup3"] = replace(drafting, costs=Costs((1,) * len(drafting.placement.depths)))  # not as timed
    options = dict(sampler=sampler, seeds=[4])
    expected = generate.answer(engines["loop"], [REPEATING], 60, **options)
    blocks = list(generate.stream(engines["step+lookup3"], [REPEATING], 60, **options))
    assert np.concatenate(blocks)[:, 0].tolist() == list(expected[0].token_ids)
    assert {len(block) for block in blocks} <= {1, 2, 3, 4}
    if (arithmetic, sampler) == ("", generate.GREEDY):  # what random weights repeat differs from one to the next
        assert len(blocks) < 60


@pytest.mark.parametrize("name", among_the_fast(("step+lookup", "loop+lookup"), HOSTED))
def test_hosts_get_the_tokens_they_asked_for(tiny, name):
    """Ragged batches, to a stop token or to the last slot; a new request is no new program."""
    plain, engine = (generate.bind(*tiny, parse(n)) for n in ("loop", name))
    prompts = [[5, 9, 33, 5, 9, 33, 5, 9], [8, 3], [44] * 11]
    expected = generate.answer(plain, prompts, 30)
    assert generate.answer(engine, prompts, 30) == expected
    stop = expected[0].token_ids[12]
    assert generate.answer(engine, prompts, 30, stop=(stop,)) == generate.answer(plain, prompts, 30, stop=(stop,))
    assert generate.answer(engine, [[1, 2, 3]], 8, length=3, slots=10) == generate.answer(plain, [[1, 2, 3]], 8)
    for n in (1, 2, 7):
        assert sum(len(block) for block in generate.stream(engine, prompts, n, slots=48)) == n
    with Guard() as guard:
        generate.answer(engine, [prompt[::-1] for prompt in prompts], 30)
    assert not guard.fired, guard.reason


def test_prompts_in_pieces_are_searched_as_a_whole(tiny, monkeypatch):
    prompt = [int(i) for i in np.random.default_rng(0).integers(0, 97, 40)]
    engine = generate.bind(*tiny, parse("step+lookup"))
    _, whole = generate.prefill(engine, generate.request(engine.config, [prompt], 4, length=48))
    monkeypatch.setattr(generate, "PIECE", 16)
    _, pieces = generate.prefill(engine, generate.request(engine.config, [prompt], 4, length=48))
    np.testing.assert_array_equal(pieces.ids, whole.ids)
    assert pieces.ids[0, 8:48].tolist() == prompt
    assert pieces.ids.shape[1] == pieces.cache.entries[0][0].shape[1] + 1


def test_settings_as_arguments_draw_the_same(tiny):
    plain, traced = (generate.bind(*tiny, parse(n)) for n in ("loop", "loop+lookup+traced"))
    options = dict(sampler=Sampler(0.9, top_p=0.9, repetition_penalty=1.2), seeds=[3])
    assert generate.answer(traced, [REPEATING], 40, **options) == generate.answer(plain, [REPEATING], 40, **options)


def test_an_accepted_draft_is_as_likely_as_the_model_says(machines):
    """The distribution over many seeds is that without drafts: each token of the automaton has one likely successor."""
    table = dict(next=jnp.zeros((V,) * 3, jnp.int32).at[:].set(1), noise=jnp.zeros(SLOTS, jnp.int32))
    engine = replace(machines[f"step+lookup{COUNT}"], params=table, costs=Costs((1, 1, 1, 1)))
    counts = np.zeros(V)
    for seed in range(60):  # one program, and calls of a few milliseconds
        batch = generate.request(engine.config, [[1] * 8] * ROWS, 20, seeds=seed * ROWS, slots=SLOTS, length=12)
        token, carry = generate.prefill(engine, batch, Sampler(1.0))
        for block in generate.decode(engine, batch, token, carry, Sampler(1.0)):
            counts += np.bincount(block.ravel(), minlength=V)
    expected = counts.sum() * np.asarray(jax.nn.softmax(jax.nn.one_hot(1, V) * 2.0))
    assert ((counts - expected) ** 2 / expected).sum() < 18  # chi-squared of two degrees: one in 8,000


@pytest.mark.parametrize("name", ["loop+donate+lookup", "loop+fused+lookup"])
def test_the_cache_is_written_in_place(name):
    """Neither a pass with drafts nor a plain one copies it: at a long context that would cost more than the pass."""
    engine = generate.bind(small(), random_model(small()), parse(name))
    batch = generate.request(engine.config, [REPEATING], 60)
    token, carry = jax.eval_shape(lambda ids: generate.prefill(engine, replace(batch, ids=ids)), batch.ids)
    out = np.zeros((64 + engine.placement.drafts, 1), np.int32)
    bounds = Bounds(batch.stop, np.int32(59), out, depth.free(engine.placement.depths))
    arguments = (engine.params, token, carry, generate.GREEDY, bounds)
    text = engine.programs.decode.lower(*arguments).compile().as_text()
    shapes = {"[" + ",".join(map(str, leaf.shape)) + "]" for leaf in jax.tree.leaves(carry.cache.entries)}
    assert not [line for line in text.splitlines() if " copy(" in line and any(s in line for s in shapes)]


def test_what_a_pass_costs_decides_how_many_drafts_it_has(machines):
    """Of a model that repeats itself: all drafts where rows are free, none where none is worth it, few where more cost
    too much; and the same tokens."""
    table = dict(next=jnp.ones((V,) * 3, jnp.int32), noise=jnp.zeros(SLOTS, jnp.int32))

    def passes(costs):
        engine = replace(machines[f"step+lookup{COUNT}"], params=table, costs=Costs(costs))
        assert engine.placement.depths == (0, 1, 3, COUNT)
        batch = generate.request(engine.config, [[1] * 8], 25, slots=SLOTS, length=12)
        token, carry = generate.prefill(engine, batch)
        left = 24
        while left:
            bounds, carry = engine.costs.of(
                engine, batch, token, carry, generate.GREEDY, Bounds(batch.stop, np.int32(left))
            )
            tokens, new, token, carry = engine.programs.decode(table, token, carry, generate.GREEDY, bounds)
            assert tokens[:new].ravel().tolist() == [1] * int(new)
            left -= int(new)
        return carry.learned.passes.tolist()

    assert passes((1, 9, 9, 9)) == [24, 0, 0, 0]
    assert passes((1, 1, 1, 1)) == [0, 0, 1, 4]  # the last one is as long as the answer
    assert passes((1, 1, 9, 9)) == [0, 12, 0, 0]
