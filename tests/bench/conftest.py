"""What tests of the instrument share."""

import pytest

from llama_jax import checkpoint


@pytest.fixture(scope="session")
def loaded(tiny):
    return checkpoint.Checkpoint("tiny", *tiny, None, "hash", "random:tiny", "float32")
