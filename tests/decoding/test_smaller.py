"""A smaller model's drafts change how many tokens a pass makes, and no token; what it has read stays the text."""

from dataclasses import replace
from functools import partial

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from llama_jax import chat, checkpoint, config, generate, sampling, transforms
from llama_jax.checkpoint import Checkpoint
from llama_jax.costs import Costs
from llama_jax.decoding import drafts, smaller
from llama_jax.decoding.steps import Bounds
from llama_jax.kvc import KVCache
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from tests.conftest import among_the_fast, build
from tests.decoding.test_drafts import COUNT, DRAW, NOISE, PROMPTS, SILENCE, SLOTS, TABLES, V, by_hand
from tests.kernels.models import random_model, small

pytestmark = pytest.mark.usefixtures("quickly")


def empty(table, pad, slots):
    return KVCache((jnp.full((len(pad), slots), -1, jnp.int32),), None, jnp.int32(0), pad)


@pytest.fixture(scope="module")
def machine():
    """The model by hand under `step`, drafted for by another one by hand."""
    proposer = smaller.Smaller(by_hand(), empty)
    made = drafts.Drafts(smaller.of_target(by_hand()), sampling.next_token, proposer, (0, COUNT), 1)
    placement = parse(f"step+draft{COUNT}:other")
    programs = transforms.Programs(
        prefill=jax.jit(made.prefill, static_argnames="slots"),
        extend=jax.jit(made.extend),
        step=jax.jit(made.step),
        decode=jax.jit(transforms.decoder(placement, made, None)),
        logits=None,
    )
    return generate.Engine(config.tiny(vocab_size=V), None, placement, programs)


@pytest.fixture(scope="module")
def alone():
    made = by_hand()
    return jax.jit(made.prefill, static_argnames="slots"), jax.jit(made.step)


def of(table, noise):
    return dict(next=jnp.array(table).reshape((V,) * 3), noise=jnp.array(noise))


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.tuples(TABLES, TABLES),
    st.one_of(SILENCE, NOISE),
    PROMPTS,
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([generate.GREEDY, DRAW]),
)
def test_its_cache_is_the_text_whatever_was_rejected_or_made_without_it(
    machine, alone, tables, noise, prompts, passes, same, sampler
):
    """Passes and plain steps in any order, of two automata that differ or not: the tokens are those of the model alone,
    what stands in the smaller one's cache is what it says it has read, and one that is the same is always right."""
    target, other = (of(table, noise) for table in tables)
    params = smaller.Both(target, target if same else other)
    batch = generate.request(machine.config, prompts, 2, slots=SLOTS, length=12)
    arguments = jnp.asarray(batch.ids), jnp.asarray(batch.pad), jnp.asarray(batch.seeds), sampler
    token, carry = machine.programs.prefill(params, *arguments, slots=SLOTS)
    made, left = [np.asarray(token)[None]], SLOTS - 12
    for drafted in passes:
        if drafted:
            bounds = Bounds(stop=batch.stop, limit=np.int32(left))
            tokens, new, token, carry = machine.programs.decode(params, token, carry, sampler, bounds)
            if same:
                assert new == min(COUNT + 1, left) or left <= COUNT + 1
        else:
            token, carry = machine.programs.step(params, token, carry, sampler)
            tokens, new = token[None], 1
        made.append(np.asarray(tokens[: int(new)]))
        left -= int(new)
        read, length = carry.kept, int(carry.kept.cache.length)
        text, kept, entries = (np.asarray(ids) for ids in (carry.ids, read.ids, read.cache.entries[0]))
        known = int(np.cumprod((text == kept).all(axis=0)[:length]).sum())
        np.testing.assert_array_equal(entries[:, :known], text[:, :known])
        if left < 2:
            break
    expected = model_alone(alone, target, arguments, sum(map(len, made)))
    np.testing.assert_array_equal(np.concatenate(made), expected)


def model_alone(alone, table, arguments, n):
    prefill, step = alone
    token, carry = prefill(table, *arguments, slots=SLOTS)
    tokens = [token]
    for _ in range(n - 1):
        token, carry = step(table, token, carry, arguments[-1])
        tokens.append(token)
    return np.stack(tokens)


PROMPT = [5, 9, 33, 60, 2, 7] * 4
DRAWN = Sampler(0.8, top_k=20, repetition_penalty=1.1)
ARITHMETIC = ["", "+kvint8", "+scan", "+bf16", "+q4_1+gemv", "+fused"]


@pytest.mark.parametrize(
    ("arithmetic", "sampler"),
    among_the_fast(
        [("", generate.GREEDY), ("+fused", DRAWN)],
        [(name, sampler) for name in ARITHMETIC for sampler in (generate.GREEDY, DRAWN)],
    ),
)
def test_every_arithmetic_makes_its_own_tokens(arithmetic, sampler):
    """Tokens are equal one by one, also where they are drawn: so is their distribution, whatever the draft model. One
    that is the model itself is right to the last draft."""
    cfg, other = small(), small(num_hidden_layers=1)
    params, options = random_model(cfg), dict(sampler=sampler, seeds=[4, 5])
    prompts = [PROMPT, PROMPT[:5]]
    expected = generate.answer(generate.bind(cfg, params, parse("loop" + arithmetic)), prompts, 40, **options)
    for placement, draft in (
        ("loop", (other, random_model(other, 3))),
        ("chunk6", (other, random_model(other, 3))),
        ("step", (cfg, params)),
    ):
        engine = generate.bind(cfg, params, parse(f"{placement}{arithmetic}+draft3:its name"), draft)
        engine = replace(engine, costs=Costs([1] * len(engine.placement.depths)))
        blocks = list(generate.stream(engine, prompts, 40, **options))
        assert [generate.cut(row, ()) for row in np.concatenate(blocks).T] == expected
    sizes = {len(block) for block in blocks[1:-1]}
    assert sizes == {4} if arithmetic in ("", "+fused") else sizes <= {1, 2, 3, 4}


def test_hosts_stops_and_pieces_of_a_prompt_and_no_program_for_the_next_request(tiny, monkeypatch):
    cfg, params = tiny
    monkeypatch.setattr(generate, "PIECE", 16)
    draft = cfg, build(cfg, 5)
    plain = generate.bind(cfg, params, parse("loop"))
    engine = generate.bind(cfg, params, parse("loop+donate+callback+draft:x"), draft)
    prompts = [[5, 9, 33, 5, 9, 33, 5, 9] * 3, [8, 3]]
    expected = generate.answer(plain, prompts, 30)
    assert generate.answer(engine, prompts, 30) == expected
    stop = (expected[0].token_ids[12],)
    assert generate.answer(engine, prompts, 30, stop=stop) == generate.answer(plain, prompts, 30, stop=stop)
    assert generate.answer(engine, [[1, 2, 3]], 8, length=3, slots=10) == generate.answer(plain, [[1, 2, 3]], 8)
    np.testing.assert_array_equal(generate.logits(engine, prompts[0]), generate.logits(plain, prompts[0]))
    with Guard() as guard:
        generate.answer(engine, [prompt[::-1] for prompt in prompts], 30)
    assert not guard.fired, guard.reason


@pytest.mark.slow
def test_a_real_draft_model_is_right_more_often_than_not(real_model):
    big, little = (checkpoint.load(str(real_model(f"qwen2.5-coder-{size}")), "gguf") for size in ("1.5b", "0.5b"))
    prompt = chat.encode(big.tokenizer, chat.ask("Write a Python function that reverses a string."))
    plain = generate.answer(generate.build(big, "loop+fused"), [prompt], 25)
    engine = replace(generate.build(big, "step+fused+draft3:its name", little), costs=Costs([1] * 4))
    blocks = list(generate.stream(engine, [prompt], 25))
    assert tuple(np.concatenate(blocks)[:, 0].tolist()) == plain[0].token_ids
    assert len(blocks) <= 1 + 24 // 2


@pytest.mark.parametrize("name", ["loop+donate+draft:x", "loop+fused+draft:x"])
def test_both_caches_are_written_in_place(name):
    cfg, other = small(), small(num_hidden_layers=1, num_key_value_heads=4)
    engine = generate.bind(cfg, random_model(cfg), parse(name), (other, random_model(other)))
    batch = generate.request(cfg, [PROMPT], 60)
    token, carry = jax.eval_shape(lambda ids: generate.prefill(engine, replace(batch, ids=ids)), batch.ids)
    out = np.zeros((64 + engine.placement.drafts, 1), np.int32)
    arguments = (engine.params, token, carry, generate.GREEDY, Bounds(batch.stop, np.int32(59), out))
    text = engine.programs.decode.lower(*arguments).compile().as_text()
    leaves = jax.tree.leaves((carry.cache.entries, carry.kept.cache.entries))
    shapes = {"[" + ",".join(map(str, leaf.shape)) + "]" for leaf in leaves}
    assert len(shapes) > 1
    assert not [line for line in text.splitlines() if " copy(" in line and any(s in line for s in shapes)]


# What is refused --------------------------------------------------------------------------------------------------


class Words:
    """A tokenizer of these words."""

    def __init__(self, *words):
        self.backend = self
        self.words = {word: i for i, word in enumerate(words)}

    def get_vocab(self):
        return self.words


def loaded(cfg, name="big", tokenizer=None, seed=0):
    return Checkpoint(name, cfg, build(cfg, seed), tokenizer, "", "random:", "float32")


def test_a_draft_model_of_other_tokens_is_refused():
    big = loaded(small(), tokenizer=Words("a", "b"))
    with pytest.raises(UserError, match="little has a vocabulary of 90 tokens, big of 97"):
        generate.build(big, "loop+draft:little", loaded(small(vocab_size=90), "little"))
    with pytest.raises(UserError, match="little has as many tokens as big, but not the same"):
        generate.build(big, "loop+draft:little", loaded(small(), "little", Words("a", "c")))
    assert generate.build(big, "loop+draft:little", loaded(small(), "little")).draft == small()


def test_a_draft_model_that_is_not_there_or_not_asked_for_is_refused():
    big = loaded(small())
    with pytest.raises(
        UserError, match=r"draft model of 'loop\+draft:nowhere\+fused': No such model: 'nowhere\+fused'"
    ):
        generate.build(big, "loop+draft:nowhere+fused")
    with pytest.raises(UserError, match="has no draft model"):
        generate.bind(big.config, big.params, parse("loop"), (big.config, big.params))
    with pytest.raises(UserError, match="names a draft model"):
        generate.bind(big.config, big.params, parse("loop+draft:x"))
    with pytest.raises(UserError, match="'loop' names no draft model"):
        generate.build(big, "loop", big)


def test_what_the_kernel_does_not_compute_is_said_of_the_draft_model():
    gpt2 = loaded(config.tiny("gpt2", vocab_size=97), "gpt2")
    with pytest.raises(UserError, match=r"draft model of 'loop\+fused\+draft:gpt2': .* not gpt2.*; use \+gemv"):
        generate.build(loaded(small()), "loop+fused+draft:gpt2", gpt2)


def test_a_text_that_the_draft_model_has_no_room_for_is_refused():
    little = loaded(small(max_position_embeddings=32), "little")
    engine = generate.build(loaded(small()), "loop+draft:little", little)
    assert len(generate.answer(engine, [[1] * 12], 20)[0].token_ids) == 20
    with pytest.raises(UserError, match="33 tokens exceed the context of the draft model little, 32"):
        generate.answer(engine, [[1] * 12], 21)


def test_the_memory_of_both_caches_is_asked_for():
    cfg, slots = small(), 64
    params = build(cfg)
    one, two = (generate.bind(cfg, params, parse(name), draft)
                for name, draft in (("loop", None), ("loop+draft1:x", (cfg, params))))  # fmt: skip
    from llama_jax.engine import bytes_needed

    need = partial(bytes_needed, every=False, rows=1, length=32, slots=slots)
    kept = 2 * slots * cfg.kv_bytes_per_position(4)
    assert need(two) - need(one) == kept + 4 * cfg.vocab_size  # and logits of one more row
