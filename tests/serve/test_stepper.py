"""A slot's programs, warmed at start."""

import pytest

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
            pieces, pad = made.pieces(ids)
            assert sum(piece.shape[1] for piece in pieces) == stepper.padded(n, sizes) == n + pad
            state = made.begin(0, pieces[0], pad, 0, sampler)
            for piece in pieces[1:]:
                state = made.extend(state, piece, sampler)
            tokens = made.fetch(state.made)
            for _ in range(3):
                ((called, state),) = made.step([state], [sampler])
                tokens += made.fetch(called)
        counts.append(guard.count("backend"))
        alone = generate.answer(generate.bind(*tiny, parse("step")), [ids], 4)[0].token_ids
        assert tuple(tokens) == alone
    assert counts == ([0] * 4 if sizes else [1, 1, 0, 1])


@pytest.mark.parametrize(
    ("n", "sizes", "ran"),
    [(1, (16, 32), 16), (16, (16, 32), 16), (17, (16, 32), 32), (33, (16, 32), 64), (7, (), 7), (9, (256,), 256)],
)
def test_tokens_that_run_for_a_prompt(n, sizes, ran):
    assert stepper.padded(n, sizes) == ran
