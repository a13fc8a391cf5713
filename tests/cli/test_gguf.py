"""The verb `gguf`: one line of JSON, and one line for what it cannot do."""

import pytest

from llama_jax import checkpoint
from tests.checkpoint.test_writer import SMALL
from tests.cli.test_cli import last_json


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))


def test_it_writes_a_file_and_says_what_it_is(call, tmp_path):
    out = tmp_path / "made" / "m.gguf"
    code, said, err = call("gguf", "--model", SMALL, "--type", "q4_1", "--out", out, "--json")
    assert code == 0, err
    found = last_json(said)
    assert found == dict(
        out=str(out), bytes=out.stat().st_size, type="q4_1", model=SMALL, seed=3, sha256=found["sha256"]
    )
    assert found["sha256"] == checkpoint.find(str(out)).hash()
    assert str(out) in err
