"""Likelihoods of texts: what transformers gives, whatever stands beside a text and however it is cut."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llama_jax as ll
from llama_jax import checkpoint, config, generate, scoring
from llama_jax.tokenizer import Numbers
from tests.conftest import among_the_fast, torch_logits
from tests.families import made
from tests.kernels.models import small
from tests.kernels.test_generation import checkpoint_of

IDS = [3 + 7 * i % 90 for i in range(100)]  # two pieces of 48 and padding


@pytest.fixture(scope="module")
def engine(tiny):
    return generate.bind(*tiny, ll.parse("step"))


def reference(logits, ids):
    """Log probabilities of all ids but the first, from logits [T V]."""
    values = np.asarray(jax.nn.log_softmax(np.asarray(logits), axis=-1))
    return values[np.arange(len(ids) - 1), ids[1:]]


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "gemma3"])
def test_log_probabilities_equal_transformers(name):
    theirs = made(name)
    engine = generate.bind(*checkpoint.from_torch(theirs), ll.parse("loop"))
    for ids, found in zip((IDS, IDS[:2]), ll.score(engine, [IDS, IDS[:2]]), strict=True):
        expected = reference(torch_logits(theirs, ids), ids)
        np.testing.assert_allclose(found.logprobs, expected, atol=2e-4)
        assert found.token_ids == tuple(ids[1:])
        assert found.total == pytest.approx(expected.sum(), abs=1e-2)
        assert found.perplexity == pytest.approx(np.exp(-expected.mean()), rel=1e-4)
        assert found.best.tolist() == [
            a == b for a, b in zip(torch_logits(theirs, ids).argmax(-1), ids[1:], strict=False)
        ]


PLACEMENTS = ["eager", "step+nocache", "step+growing", "loop+scan", "chunk8+kvint8", "step+q8_0", "step+gemv",
              "step+fused", "loop+fused+lookup"]  # fmt: skip


@pytest.mark.parametrize("placement", among_the_fast(["step+nocache", "loop+fused+lookup"], PLACEMENTS))
def test_every_placement_scores_as_its_own_logits_say(placement):
    engine = generate.build(checkpoint_of(small()), placement)
    near = 0.1 if "gemv" in placement or "int8" in placement else 2e-3  # of what is rounded, a bit may end up elsewhere
    found = ll.score(engine, [IDS, IDS[:30], IDS[5:40]])
    for one, ids in zip(found, (IDS, IDS[:30], IDS[5:40]), strict=True):
        np.testing.assert_allclose(one.logprobs, reference(generate.logits(engine, ids), ids), atol=near)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from([2, 9, 17, 60, 100]), min_size=1, max_size=4), st.integers(0, 9))
def test_a_text_is_scored_in_company_as_alone(engine, sizes, which):
    texts = [[3 + (i + size) * 5 % 90 for i in range(size)] for size in sizes]
    alone, among = ll.score(engine, [texts[which % len(texts)]])[0], ll.score(engine, texts)[which % len(texts)]
    np.testing.assert_allclose(among.logprobs, alone.logprobs, atol=1e-4)


def test_a_context_is_not_scored(engine):
    whole, (part,) = ll.score(engine, [IDS[:40]])[0], ll.score(engine, [IDS[30:40]], [IDS[:30]])
    assert part.token_ids == tuple(IDS[30:40])
    np.testing.assert_array_equal(part.logprobs, whole.logprobs[-10:])
    (none,) = ll.score(engine, [IDS[:40]], [[]])
    np.testing.assert_array_equal(none.logprobs, whole.logprobs)


def test_text_needs_a_tokenizer_and_a_token_of_both_is_scored(engine, monkeypatch):
    tokenizer = Numbers()
    (said,) = ll.score(engine, [" 7, 8"], ["5, 6,"], tokenizer)
    assert said.token_ids == (7, 8)
    monkeypatch.setattr(
        Numbers, "encode", lambda self, text: [5, len(text), 7]
    )  # the end of the context is another token
    (merged,) = ll.score(engine, ["abc"], ["ab"], tokenizer)
    assert merged.token_ids == (5, 7)


def test_one_program_a_length_and_logits_stay_within_bounds(engine, monkeypatch):
    sizes = [10, 12, 14, 100]
    assert list(scoring.batches(engine, sizes)) == [(16, 4, [0, 1, 2]), (128, 1, [3])]
    assert [rows for _, rows, _ in scoring.batches(engine, [9] * 20)] == [8, 8, 8]
    monkeypatch.setattr(scoring, "LOGITS", 3 * 16 * engine.config.vocab_size)
    assert [rows for _, rows, _ in scoring.batches(engine, [9] * 5)] == [2, 2, 2]
    monkeypatch.setattr(scoring, "LOGITS", 1)
    assert [rows for _, rows, _ in scoring.batches(engine, [9] * 2)] == [1, 1]


@pytest.mark.parametrize(
    ("texts", "more", "words"),
    [
        ("abc", {}, "texts is 'abc'"),
        (["abc"], {}, "Text 0 is text; give the tokenizer"),
        ([[1, 2], [3]], {}, "Text 1 has no token to score"),
        ([[]], dict(contexts=[[1, 2]]), "Text 0 has no token to score"),
        ([[1] * 257], {}, "Text 0 has 257 tokens; the model's context has 256"),
        ([[1, 97]], {}, "Token id 97 is outside the vocabulary"),
        ([[1, 2.5]], {}, "A token id is 2.5"),
        ([[1, 2]], dict(contexts=[]), "1 texts and 0 contexts"),
        (["1 2"], dict(contexts=[[1]], tokenizer=Numbers()), "give both as text"),
        ([[1]], dict(contexts=["1"]), "The context of text 0 is '1'"),
    ],
)
def test_what_cannot_be_scored_is_refused(engine, texts, more, words):
    assert engine.config.max_position_embeddings == config.tiny().max_position_embeddings == 256
    with pytest.raises(ll.UserError, match=words):
        ll.score(engine, texts, **more)


def test_nothing_is_nothing_and_memory_is_asked_for(engine, monkeypatch):
    assert ll.score(engine, []) == []
    monkeypatch.setattr("llama_jax.plumbing.memory.SMALL", 0)
    monkeypatch.setattr("llama_jax.plumbing.memory.free", lambda device=None: 1.0)
    with pytest.raises(ll.UserError, match="give shorter texts"):
        ll.score(engine, [IDS])
