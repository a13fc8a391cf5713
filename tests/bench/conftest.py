"""What tests of the instrument share."""

import pytest

from llama_jax import checkpoint


@pytest.fixture(scope="session")
def loaded(tiny):
    return checkpoint.Checkpoint("tiny", *tiny, None, "hash", "random:tiny", "float32")


@pytest.fixture
def own_lock(tmp_path, monkeypatch):
    """A measurement lock that no other test holds."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path
