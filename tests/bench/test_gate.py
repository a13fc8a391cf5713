import numpy as np
import pytest

from llama_jax.bench import gate

REFERENCE = np.array([5, 6, 7, 8])


def never(k):
    raise AssertionError("the margin is asked for only where tokens differ")


def test_equal_tokens_pass():
    assert gate.compare(REFERENCE, REFERENCE, never) == gate.Verdict(True)


@pytest.mark.parametrize(
    ("margin", "passed", "reason"), [(9e-4, True, "near-tie at token 2"), (2e-3, False, "wrong: token 2 is 9, the reference has 7")]
)
def test_a_difference_passes_only_at_a_near_tie(margin, passed, reason):
    verdict = gate.compare(np.array([5, 6, 9, 1]), REFERENCE, lambda k: margin if k == 2 else 1.0)
    assert verdict == gate.Verdict(passed, reason)


def test_fewer_tokens_are_wrong():
    assert not gate.compare(REFERENCE[:3], REFERENCE, never).passed
