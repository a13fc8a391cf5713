"""A notebook that is really measured, on a small model, and what it drew."""

import hashlib

import pytest

from llama_lab.bench import protocol
from llama_lab.reporting import notebooks


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """number, parameters → the finding of a notebook that was measured through the runner, all it promises left in
    tmp_path."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr(protocol.tempfile, "tempdir", None)
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # what becomes of times is tested, not how short they are

    def run(number: str, given: dict) -> str:
        (result,) = notebooks.run((number,), given, source="measure", out_dir=tmp_path)
        assert result.ok, result
        assert all((tmp_path / name).is_file() for name in notebooks.about(notebooks.find((number,))[0]).artifacts)
        return result.finding

    return run


def hashes(folder, what="figures/*-*.*"):
    """SHA-256 of each file by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob(what))}
