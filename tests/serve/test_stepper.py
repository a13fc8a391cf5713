"""A slot's programs, warmed at start."""

import pytest

from llama_jax import generate
from llama_jax.placement import parse
from llama_jax.serve import stepper
from tests.kernels.models import small
from tests.kernels.test_generation import checkpoint_of


@pytest.mark.parametrize("placement", ["step+donate", "step+fused", "chunk4+fused"])
@pytest.mark.parametrize("context", [2, 32])
def test_the_smallest_contexts_are_warmed_within_their_cache(placement, context):
    """The fused kernel refuses a position outside the cache, where XLA would clamp it."""
    engine = generate.build(checkpoint_of(small()), stepper.check(parse(placement)))
    stepper.build(engine, context, 1).warm()
