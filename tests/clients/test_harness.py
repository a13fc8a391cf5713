"""lm-eval, as it is, gets from a real server what its own `hf` gets from transformers on the same float32 weights."""

import numpy as np
import pytest

from tests.clients import harness


@pytest.fixture(scope="module")
def found():
    if reason := harness.missing():
        pytest.skip(reason)
    return harness.compare()


@pytest.mark.slow
@pytest.mark.timeout(1500)  # minutes of computing, on two cores that others use too
def test_a_servers_numbers_are_those_of_transformers(found):
    ours, theirs = (found[model] for model in (harness.SERVER, harness.REFERENCE))
    a, b = map(harness.likelihoods, (ours, theirs))
    np.testing.assert_allclose(a[:, 0], b[:, 0], atol=1e-3)
    np.testing.assert_array_equal(a[:, 1], b[:, 1])
    assert [row["resps"] for row in ours["goes_on"]["rows"]] == [row["resps"] for row in theirs["goes_on"]["rows"]]
    for task, metric, _ in harness.METRICS:
        assert ours[task]["metrics"][metric] == theirs[task]["metrics"][metric]


@pytest.mark.slow
def test_an_accuracy_is_neither_chance_nor_all(found):
    """So that it moves with the model. Chance is 0.28."""
    assert 0.4 < found[harness.SERVER]["endings"]["metrics"]["acc"] < 0.95
