"""Notebook 11 on a small model: measured in one go."""

import pytest

from llama_lab import figures
from tests.conftest import TINY

SMALL = TINY.replace("num_hidden_layers=2", "num_hidden_layers=3")


@pytest.mark.slow
def test_extraction_is_measured(measured, tmp_path):
    given = dict(model=SMALL, second=SMALL, batch=2, length=16, unit=3, examples=6, eager=2, blocks=1, scaling=[1])
    given |= dict(starts=1, probe=12, workers=[1], worker_examples=4, worker_unit=2, worker_starts=1, unit_examples=64)
    assert "not measured (no GPU here)" in measured("11", given)
    assert len(list((tmp_path / "figures").glob("11-*.*"))) == 12
    assert {entry["notebook"] for entry in figures.read_manifest(tmp_path)["figures"].values()} == {
        "11-activation-extraction"
    }
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list((tmp_path / "out" / "journal").iterdir())
