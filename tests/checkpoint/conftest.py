"""A user's cache of its own for each test: what is read once is remembered there."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
