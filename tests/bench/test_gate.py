import numpy as np
import pytest

from llama_jax import generate
from llama_jax.bench import gate
from llama_jax.experiments.precision_and_kernels import reading

REFERENCE = np.array([5, 6, 7, 8])


def never():
    raise AssertionError("asked for only where tokens differ")


def test_equal_tokens_pass():
    assert gate.compare(REFERENCE, REFERENCE, never) == gate.Verdict(True)


def far(tokens, *distances):
    """Logits under which each token is so far from the best."""
    found = np.full((len(tokens), 10), -100.0)
    found[:, 0], found[np.arange(len(tokens)), tokens] = 0, -np.array(distances)
    return lambda: found


@pytest.mark.parametrize(
    ("distance", "passed", "reason"),
    [
        (9e-4, True, "near-tie at token 2"),
        (2e-3, False, "wrong: token 2 is 9, the reference has 7"),
        (np.nan, False, "wrong: token 2 is 9, the reference has 7"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_difference_passes_only_at_a_near_tie(distance, passed, reason, turned):
    tokens = np.array([5, 6, 9, 1])
    logits = far(tokens, 9.0, 9.0, distance, 0.0)()
    logits[2, 7] = -1e-4
    if turned:  # the reference's token is the one that its logits do not bear out
        logits[2, [7, 9]] = logits[2, [9, 7]]
    assert gate.compare(tokens, REFERENCE, lambda: logits) == gate.Verdict(passed, reason)


@pytest.mark.parametrize(("distance", "passed"), [(0.5, True), (0.8, False), (np.inf, False), (np.nan, False)])
def test_after_a_near_tie_the_text_must_still_be_one_of_the_references(distance, passed):
    tokens = np.array([5, 9, 3, 1])
    logits = far(tokens, 0.0, 1e-4, 0.0, distance)()
    logits[1, 6] = 0.0
    verdict = gate.compare(tokens, REFERENCE, lambda: logits)
    assert verdict.passed == passed
    assert verdict.reason == (
        "near-tie at token 1"
        if passed
        else "wrong: after a near-tie at token 1, token 3 is 1, far from the reference's best"
    )


def test_fewer_tokens_are_wrong():
    assert not gate.compare(REFERENCE[:3], REFERENCE, never).passed


def test_how_far_behind_the_best():
    logits = np.array([[0.0, 3.0, 1.0], [2.0, 1.0, 0.0], [1.0, 1.0, 0.5], [0.0, 1.0, 2.0]])
    assert gate.behind(logits, np.array([1, 1, 0, 2])).tolist() == [0, 1, 0, 0]
    assert gate.behind(logits, np.array([2, 3, -1, 0])).tolist() == [2, np.inf, np.inf, 2]


@pytest.mark.slow
def test_kernels_under_another_jit_stay_within_what_the_gate_allows(packaged):
    """The same products, other fusions around them: some best tokens differ, none by more."""
    one, other = (generate.build(packaged, name) for name in ("step+gemv", "layer+gemv"))
    distances = []
    for ids in reading.texts(packaged, 256).values():
        best = np.asarray(generate.logits(other, ids)).argmax(-1)
        distances.append(gate.behind(generate.logits(one, ids), best))
    found = np.concatenate(distances)
    assert np.count_nonzero(found) > 1
    assert gate.NEAR_TIE < found.max() <= gate.FLIP
