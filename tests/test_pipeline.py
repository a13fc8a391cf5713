"""Prompts in, texts out, through threads: the same pieces as in one thread, and nothing left behind."""

from itertools import islice

import numpy as np
import pytest

from llama_jax import checkpoint, generate, pipeline
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError

pytestmark = pytest.mark.usefixtures("no_thread_stays")
NUMBERS = pipeline.Numbers()
PROMPTS = ["5 9 33", [8, 3], "44 1", [7], "2 3 4 5"]


@pytest.fixture(scope="module")
def engine(tiny):
    return generate.bind(*tiny, parse("step"))


@pytest.fixture(scope="module")
def words():
    return checkpoint.find(checkpoint.DEFAULT).tokenizer()


def texts(pieces):
    whole = {}
    for piece in pieces:
        whole[piece.request] = whole.get(piece.request, "") + piece.text
    return whole


@pytest.mark.parametrize("name", ["step", "step+queue", "chunk8", "loop+callback"])
@pytest.mark.parametrize("bound", [0, 1, 8])
def test_every_request_gets_its_own_answer_in_order(tiny, engine, name, bound):
    served = generate.bind(*tiny, parse(name)) if bound == 1 else engine
    pieces = list(pipeline.serve(served, NUMBERS, PROMPTS, 10, bound))
    assert [p.request for p in pieces] == sorted(p.request for p in pieces)
    for i, prompt in enumerate(PROMPTS):
        ids = NUMBERS.encode(prompt) if isinstance(prompt, str) else prompt
        (answer,) = generate.answer(engine, [ids], 10)
        assert tuple(t for p in pieces if p.request == i for t in p.token_ids) == answer.token_ids
        assert texts(pieces)[i] == NUMBERS.decode(answer.token_ids)


def test_stop_tokens_end_a_request_and_not_the_run(engine):
    free = generate.answer(engine, [[5, 9, 33]], 10)[0].token_ids
    pieces = list(pipeline.serve(engine, NUMBERS, PROMPTS[:1] * 2, 10, stop=(free[3],)))
    assert texts(pieces) == {i: NUMBERS.decode(free[: free.index(free[3]) + 1]) for i in range(2)}


def test_prompts_are_taken_as_they_are_needed(engine):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield [1, 2, 3]

    pieces = pipeline.serve(engine, NUMBERS, endless(), 2, bound=2)
    assert len(list(islice(pieces, 6))) == 6
    pieces.close()
    assert len(taken) <= 3 + 3 * 3  # three read, a bound and one in hand before each of three stages


@pytest.mark.parametrize("bound", [0, 4])
@pytest.mark.parametrize(
    ("prompts", "error"), [([[1], "two"], "write the prompt as token ids"), ([[1], [97]], "outside the vocabulary")]
)
def test_errors_of_any_stage_reach_the_caller(engine, bound, prompts, error):
    with pytest.raises(UserError, match=error):
        list(pipeline.serve(engine, NUMBERS, prompts, 4, bound))


def test_a_negative_bound_is_refused(engine):
    with pytest.raises(UserError, match="bound is -1"):
        pipeline.serve(engine, NUMBERS, PROMPTS, 4, -1)


@pytest.mark.parametrize("text", ["plain words", "Héllo 🎉 naïve 日本語", " leading and  double", "one<|im_end|>two"])
@pytest.mark.parametrize("size", [1, 3])
def test_pieces_make_up_the_whole_text(words, text, size):
    ids = words.encode(text, special=False)
    for end in range(1, len(ids) + 1):
        blocks = ((0, np.array(ids[i : min(i + size, end)]), False) for i in range(0, end, size))
        ended = iter([*blocks, (0, np.array([], int), True)])
        pieces = list(pipeline.detokenise(words, (b for b in ended)))
        assert "".join(p.text for p in pieces) == words.decode(ids[:end])
        assert [t for p in pieces for t in p.token_ids] == ids[:end]


def test_prompts_are_text_but_for_those_that_were_rendered(words):
    """As for `Tokenizer.encode`: a rendered chat brings its special tokens, any other text gets those it needs."""
    text = "<|im_start|>user\none<|im_end|>"
    (plain,), (rendered,) = (list(pipeline.tokenise(words, [text], kind)) for kind in (False, True))
    assert not set(plain) & words.special.keys()
    assert words.decode(plain) == text
    assert (rendered[0], rendered[-1]) == (1, 2)
