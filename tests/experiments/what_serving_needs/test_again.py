"""An answer must be the one that `generate` makes alone."""

import pytest

from llama_jax import checkpoint, generate
from llama_lab.experiments.what_serving_needs.again import Again
from llama_lab.experiments.what_serving_needs.client import Answer
from llama_lab.experiments.what_serving_needs.load import Ask
from tests.experiments.fewer_bits.test_measure import TINY

IDS, N = [5, 9, 33], 4


@pytest.fixture(scope="module")
def alone():
    """The tokens that `step` makes."""
    (answer,) = generate.answer(generate.build(checkpoint.load(TINY), "step"), [IDS], N)
    return list(answer.token_ids)


def written(ids):
    return " ".join(map(str, ids))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda ids: ids, ""),
        (lambda ids: ids[:-1], "wrong: 3 tokens, the reference has 4"),
        (lambda ids: [(ids[0] + 1) % 97, *ids[1:]], "wrong: token 0 is"),
        (lambda ids: [*ids[:-1], (ids[-1] + 1) % 97], "wrong: token 3 is"),
        (lambda ids: [], "wrong: 0 tokens, the reference has 4"),
    ],
)
def test_another_answer_is_wrong(alone, change, reason):
    said = written(change(alone))
    verdict = Again(TINY, "step+donate").judge(Ask(0, written(IDS), len(IDS), N), Answer(0, 200, [1], said, N, 3))
    assert verdict.passed == (reason == "")
    assert verdict.reason.startswith(reason)
