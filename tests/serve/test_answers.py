"""The end of an answer, whatever the number of tokens that a call makes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_lab.serve.answers import Answer
from llama_lab.serve.batcher import News
from tests.serve.small import byte_tokenizer

TOKENIZER = byte_tokenizer()


async def heard(tokens, size, stops):
    """(text, tokens that count, reason) of an answer that comes in calls of so many tokens."""
    jobs = []
    answer = Answer(TOKENIZER, jobs.append, stops, ids=[1], new_tokens=99, sampler=None, seed=0, stop=frozenset())
    for at in range(0, len(tokens), size):
        jobs[0].deliver(News(tokens[at : at + size], "length" if at + size >= len(tokens) else ""))
    pieces = [piece async for piece in answer.pieces()]
    made = [piece.made for piece in pieces]
    assert made == sorted(made)
    assert made[-1] == len(pieces[-1].end.token_ids)
    return "".join(piece.text for piece in pieces), pieces[-1].end.token_ids, pieces[-1].end.reason, jobs[0].ended


@given(
    st.text("abc é", min_size=1, max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.integers(1, 9),
)
def test_text_count_and_reason_are_the_same_for_calls_of_any_size(text, stops, size):
    tokens = TOKENIZER.encode(text)
    alone = asyncio.run(heard(tokens, 1, stops))
    assert asyncio.run(heard(tokens, size, stops)) == alone
    said, counted, reason, _ = alone
    assert (reason == "stop") == any(stop in text for stop in stops)
    assert text.startswith(said)
    if reason == "stop":  # the last token that counts completes the stop
        assert any(TOKENIZER.decode(counted).endswith(stop) for stop in stops)
        assert not any(stop in TOKENIZER.decode(counted[:-1]) for stop in stops)


@pytest.mark.parametrize(("stops", "why"), [(["b"], "stop"), ([], "stop")])
def test_what_was_said_whole_is_no_client_that_left(stops, why):
    assert asyncio.run(heard(TOKENIZER.encode("abc"), 2, stops))[3] == why


def test_who_leaves_in_mid_answer_is():
    async def left():
        jobs = []
        answer = Answer(TOKENIZER, jobs.append, ids=[1], new_tokens=9, sampler=None, seed=0, stop=frozenset())
        jobs[0].deliver(News(TOKENIZER.encode("a")))
        pieces = answer.pieces()
        await anext(pieces)
        await pieces.aclose()
        return jobs[0].ended

    assert asyncio.run(left()) == "cancelled"
