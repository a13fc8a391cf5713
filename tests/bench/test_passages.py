"""Passages: exact lengths, different beginnings, and what happens when there are no more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import passages


def without_tokenizer(tiny):
    return checkpoint.Checkpoint("tiny", *tiny, None, "hash", "random:tiny", "float32")


@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(1, 450), min_size=1, max_size=12), seed=st.integers(0, 2**31))
def test_passages_have_exactly_the_asked_tokens_and_begin_differently(packaged, lengths, seed):
    found = passages.passages(packaged, lengths, seed)
    ids = [packaged.tokenizer.encode(text, special=False) for text in found]
    assert [len(i) for i in ids] == lengths
    assert len({i[0] for i in ids}) == len(lengths)


def test_passages_are_english_and_follow_the_seed(packaged):
    one, again, other = (passages.passages(packaged, [100] * 20, seed) for seed in (1, 1, 2))
    assert one == again != other
    assert sum(" the " in text for text in one) > 15


def test_a_text_that_is_used_up_is_said_so(packaged, monkeypatch):
    monkeypatch.setattr("llama_lab.corpus.manual", lambda: "one two three four five six seven " * 9)
    assert len(passages.passages(packaged, [5] * 6)) == 6
    with pytest.raises(UserError, match="the text has [67] that begin differently"):
        passages.passages(packaged, [5] * 9)


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_random_passages_have_their_lengths_and_are_all_different(tiny, lengths):
    found = passages.passages(without_tokenizer(tiny), lengths, 3)
    assert [len(p) for p in found] == lengths
    assert len(set(found)) == len(lengths)
    assert all(0 <= i < tiny[0].vocab_size for p in found for i in p)


def test_more_random_passages_than_there_are_is_refused(tiny):
    with pytest.raises(UserError, match="no more than 97 different prompts of 1 tokens"):
        passages.passages(without_tokenizer(tiny), [1] * (tiny[0].vocab_size + 1))
