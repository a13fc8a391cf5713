"""A slot's programs, warmed at start."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_jax import generate
from llama_jax.placement import parse
from llama_jax.sampling import Sampler
from llama_lab.bench import Guard
from llama_lab.serve import rows, stepper
from tests.conftest import among_the_fast
from tests.kernels.models import small
from tests.kernels.test_generation import checkpoint_of

pytestmark = pytest.mark.usefixtures("quickly")


@pytest.mark.parametrize(
    ("placement", "context"),
    among_the_fast(
        [("step+fused", 2), ("chunk4+fused", 2)],
        [(name, context) for name in ("step+donate", "step+fused", "chunk4+fused") for context in (2, 32)],
    ),
)
def test_the_smallest_contexts_are_warmed_within_their_cache(placement, context):
    """The fused kernel refuses a position outside the cache, where XLA would clamp it."""
    engine = generate.build(checkpoint_of(small()), stepper.check(parse(placement)))
    rows.build(engine, context, 1).warm()


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(16, 32, 64, 128), ()])
def test_the_sizes_of_prompts_change_no_token_and_exact_ones_compile_in_service(tiny, sizes):
    engine = generate.bind(*tiny, stepper.check(parse("step+donate")))
    made, sampler = rows.build(engine, 160, 1, sizes), Sampler().traced()
    made.warm()
    counts = []
    for n in (5, 70, 5, 100):
        ids = [3 + i % 60 for i in range(n)]
        with Guard() as guard:
            state = read(made, ids, sampler)
            tokens = made.fetch(state.made)
            for _ in range(3):
                ((called, state),) = made.step([state], [sampler])
                tokens += made.fetch(called)
        counts.append(guard.count("backend"))
        alone = generate.answer(generate.bind(*tiny, parse("step")), [ids], 4)[0].token_ids
        assert tuple(tokens) == alone
    assert counts == ([0] * 4 if sizes else [1, 1, 0, 1])


def read(made, ids, sampler, state=None, known=0):
    """A slot's state after a prompt, of which it has `known` tokens."""
    pieces = stepper.cut(ids, known, made.sizes) if known else made.pieces(ids)
    at = None
    for piece in pieces:
        if state is None:
            state = made.begin(0, piece.ids, max(0, -piece.at), 0, sampler)
        else:
            before = state if piece.at == at else made.resume(state, ids[: piece.at], 0, sampler)
            state = made.extend(before, piece.ids, sampler)
        at = piece.at + piece.ids.shape[1]
    return state


@pytest.mark.parametrize("placement", ["step+gemv", "step+fused"])
def test_a_prompt_leaves_the_same_bits_whatever_was_kept_of_which_earlier_one(placement):
    """Products of a row do not depend on other rows, but XLA's attention does on places in the cache."""
    made = rows.build(generate.build(checkpoint_of(small()), stepper.check(parse(placement))), 160, 1, (16, 32))
    sampler, beginnings = replace(Sampler().traced(), scored=np.True_), 0
    for n in (20, 75):
        ids = [3 + 7 * i % 61 for i in range(n)]
        alone = made.scores(read(made, ids, sampler).made)
        for shared in range(1, n, n // 8):
            for longer in (0, 1, 6, 22):
                before = ids[:shared] + [2] * longer
                state = read(made, before, sampler)
                known = made.kept(before, max(0, -made.pieces(before)[0].at), ids)
                beginnings += bool(known)
                assert made.scores(read(made, ids, sampler, state if known else None, known).made) == alone
    assert beginnings > 20
    state = read(made, ids, sampler)
    said, newest = [], state.made
    for _ in range(21):
        said += made.fetch(newest)
        ((newest, state),) = made.step([state], [sampler])
    held, turn = [*ids, *said], [*ids, *said, 5, 6, 7]  # the answer's keys were left by steps
    known = made.kept(held, 0, turn)
    assert known > len(ids)
    assert made.scores(read(made, turn, sampler, state, known).made) == made.scores(read(made, turn, sampler).made)


@given(st.integers(1, 300), st.sampled_from([(16, 32, 64), (16,), (256,), ()]))
def test_pieces_hold_the_prompt_and_each_token_stands_at_its_place(n, sizes):
    made = stepper.Stepper.__new__(stepper.Stepper)
    made.sizes, ids = sizes, list(range(1, n + 1))
    pieces, read_so_far = made.pieces(ids), 0
    for piece in pieces:
        assert piece.ids.shape[1] in (sizes or (n,))
        assert piece.at <= read_so_far < piece.at + piece.ids.shape[1]  # no gap, and something new
        tokens = piece.ids[0].tolist()
        pad = max(0, -piece.at)
        assert tokens[pad:] == ids[piece.at + pad : piece.at + len(tokens)]
        assert not pad or n < min(sizes)
        read_so_far = piece.at + len(tokens)
    assert read_so_far == n


@pytest.mark.parametrize(
    ("held", "pad", "ids", "known"),
    [
        ([], 0, [1] * 40, 0),
        ([1] * 40, 0, [1] * 40, 24),  # one token at least runs, in a piece of 16
        ([1] * 40, 3, [1] * 40, 0),
        ([1] * 100, 0, [1] * 40 + [2], 25),
        ([1] * 30, 0, [1] * 30 + [2] * 64, 30),
        ([1] * 30, 0, [1] * 30 + [2] * 60, 26),
        ([2], 0, [1] * 40, 0),
        ([1], 0, [1], 0),
    ],
)
def test_what_is_cached_need_not_run_again(held, pad, ids, known):
    made = stepper.Stepper.__new__(stepper.Stepper)
    made.sizes = stepper.SIZES
    assert made.kept(held, pad, ids) == known
    pieces = stepper.cut(ids, known, made.sizes) if known else []
    assert not known or [i for piece in pieces for i in piece.ids[0].tolist()] == ids[known:]
    assert all(piece.ids.shape[1] in stepper.SIZES for piece in pieces)


def test_exact_lengths_keep_all_that_is_shared_and_run_the_rest_in_one_piece():
    made = stepper.Stepper.__new__(stepper.Stepper)
    made.sizes = ()
    assert made.kept([1] * 30, 0, [1] * 30 + [2] * 7) == 30
    assert made.kept([1] * 30, 0, [1] * 30) == 29
    assert [piece.ids.shape for piece in stepper.cut([2] * 7, 0, ())] == [(1, 7)]


@pytest.mark.parametrize(
    ("n", "sizes", "ran"),
    [(1, (16, 32), 16), (16, (16, 32), 16), (17, (16, 32), 32), (33, (16, 32), 64), (7, (), 7), (9, (256,), 256)],
)
def test_tokens_that_run_for_a_prompt(n, sizes, ran):
    assert stepper.padded(n, sizes) == ran
