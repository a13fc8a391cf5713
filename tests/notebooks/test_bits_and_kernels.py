"""Notebooks 08 and 17, really measured through the runner on a small model, and drawn again from what they recorded."""

import hashlib

import pytest

from llama_jax import bench
from llama_jax.bench import protocol, record
from llama_jax.bench.cold import Start
from llama_jax.experiments.fewer_bits import reading
from llama_jax.reporting import notebooks

TINY = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
BITS = dict(
    model=TINY,
    placements=["loop", "loop+int8"],
    peers=["llamacpp"],
    contexts=[24],
    new_tokens=6,
    blocks=2,
    quality_tokens=60,
    window=32,
)
KERNELS = dict(
    model=TINY,
    scaled=["loop"],
    scale_contexts=[24, 64],
    scale_threads=[1],
    scale_tokens=6,
    scale_answers=1,
    size_engines=["loop+q8_0"],
    size_files=[f"{TINY},vocab_size=512/q4_0"],
    size_contexts=[24],
    size_lengths=[10],
    size_tokens=6,
    size_blocks=1,
    shapes=TINY,
    split=["loop"],
    split_contexts=[24, 64],
    split_blocks=2,
    row_engines=["loop", "llamacpp"],
    rows=[1, 3],
    row_contexts=[16],
    row_passes=2,
    row_blocks=1,
    first_subjects=["step", "llamacpp"],
    first_lengths=[5, 20],
    first_blocks=2,
)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """number, parameters → the finding of a notebook that was measured, and drawn again to the same bytes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr(protocol.tempfile, "tempdir", None)

    def drawn() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((tmp_path / "figures").iterdir())}

    def run(number: str, given: dict) -> str:
        (result,) = notebooks.run((number,), given, source="measure", out_dir=tmp_path)
        assert result.ok, result
        assert all((tmp_path / name).is_file() for name in notebooks.about(notebooks.find((number,))[0]).artifacts)
        before = drawn()
        (again,) = notebooks.run((number,), out_dir=tmp_path)
        assert again.ok, again
        assert again.finding == result.finding
        assert drawn() == before
        return result.finding

    return run


@pytest.mark.slow
def test_fewer_bits(measured, tmp_path):
    found = measured("08", BITS)
    assert "At context 24 the fastest placement, loop" in found
    assert found.endswith("llamacpp was not measured here.")
    trials, meta = record.read(tmp_path / "data" / "08-fewer-bits.csv")
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    rows, _ = record.read(tmp_path / "data" / "08-fewer-bits-quality.csv", kind=reading.Reading)
    assert {(e["subject"], e["tokens"]) for e in reading.table(rows) if e["text"] == reading.ALL} == {
        ("float32", 120),
        ("loop", 120),
        ("loop+int8", 120),
    }


@pytest.mark.slow
def test_compiled_kernels(measured, tmp_path):
    found = measured("17", KERNELS)
    assert "A token of loop takes " in found
    assert found.endswith("; llamacpp was not measured here.")
    sized, _ = record.read(tmp_path / "data" / "17-compiled-kernels-sizes.csv")
    assert {(t.valid, t.prompt_tokens, t.new_tokens) for t in sized} == {(True, 18, 6), (True, 10, 1)}
    firsts, meta = record.read(tmp_path / "data" / "17-compiled-kernels-first.csv", kind=Start)
    assert {(t.subject, t.prompt_tokens, t.valid) for t in firsts} == {
        (f"step{again}", n, True) for again in ("", bench.AGAIN) for n in (5, 20)
    }
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
