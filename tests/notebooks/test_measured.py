"""Notebooks that are really measured through the runner, on small models."""

import numpy as np
import pytest

from llama_jax import kvc
from llama_lab import figures
from llama_lab.bench import AGAIN, footprints, quality, record, standings
from llama_lab.bench.cold import Start
from llama_lab.experiments.kv_cache.measure import TYPES
from llama_lab.experiments.ollama import measure
from llama_lab.reporting import notebooks
from tests.conftest import TINY
from tests.notebooks.conftest import hashes

pytestmark = pytest.mark.slow


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """number, parameters → the finding of a notebook that was measured through the runner, all it promises left in
    tmp_path."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.tempdir", None)
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # what becomes of times is tested, not how short they are

    def run(number: str, **given) -> str:
        (result,) = notebooks.run((number,), given, source="measure", out_dir=tmp_path)
        assert result.ok, result
        assert all((tmp_path / name).is_file() for name in notebooks.about(notebooks.find((number,))[0]).artifacts)
        return result.finding

    return run


def test_kv_cache_with_every_type_of_cache(measured, tmp_path):
    sizes = "num_hidden_layers=1,hidden_size=64,intermediate_size=128,num_attention_heads=4,head_dim=16,vocab_size=97"
    measured(
        "04",
        model=f"random:smollm2-135m,num_key_value_heads=2,{sizes}", shapes=f"random:gpt2,num_key_value_heads=4,{sizes}",
        contexts=[8, 16], new_tokens=3, blocks=1, case_blocks=1, type_blocks=2, type_context=40,
    )  # fmt: skip
    trials, meta = record.read(tmp_path / "data" / "04-kv-cache.csv")
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert {entry["kv"] for entry in meta["quality"]} == set(kvc.DTYPES)
    assert {t.subject for t in trials if t.run == "types"} > set(TYPES)


def test_extraction(measured, tmp_path):
    small = TINY.replace("num_hidden_layers=2", "num_hidden_layers=3")
    finding = measured(
        "15", model=small, second=small, batch=2, length=16, unit=3, examples=6, eager=2, blocks=1, scaling=[1],
        starts=1, probe=12, workers=[1], worker_examples=4, worker_unit=2, worker_starts=1, unit_examples=64,
        beyond_examples=4, beyond_blocks=1, upload_writers=[],
    )  # fmt: skip
    assert "of its slower ceiling" in finding
    drawn = figures.read_manifest(tmp_path)["figures"].values()
    assert {entry["notebook"] for entry in drawn} == {"15-activation-extraction"}
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list((tmp_path / "out" / "journal").iterdir())


def test_compiled_kernels_and_drawn_again(measured, tmp_path):
    """Of five tables."""
    finding = measured(
        "07", model=TINY, shapes=TINY, scaled=["loop"], scale_contexts=[24, 64], scale_threads=[1], scale_tokens=6,
        scale_answers=1, size_engines=["loop+q8_0"], size_files=[f"{TINY},vocab_size=512/q4_0"], size_contexts=[24],
        size_lengths=[10], size_tokens=6, size_blocks=1, split=["loop"], split_contexts=[24, 64], split_blocks=2,
        row_engines=["loop", "llamacpp"], rows=[1, 3], row_contexts=[16], row_passes=2, row_blocks=1,
        first_subjects=["step", "llamacpp"], first_lengths=[5, 20], first_blocks=2, type_names=[],
    )  # fmt: skip
    assert finding.startswith("No size of model was measured with compiled kernels beside another runtime.")
    sized, _ = record.read(tmp_path / "data" / "07-compiled-kernels-sizes.csv")
    assert {(t.valid, t.prompt_tokens, t.new_tokens) for t in sized} == {(True, 18, 6), (True, 10, 1)}
    firsts, meta = record.read(tmp_path / "data" / "07-compiled-kernels-first.csv", kind=Start)
    expected = {(f"step{again}", n, True) for again in ("", AGAIN) for n in (5, 20)}
    assert {(t.subject, t.prompt_tokens, t.valid) for t in firsts} == expected
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp"]
    before = hashes(tmp_path, "figures/*")
    (again,) = notebooks.run(("07",), out_dir=tmp_path)
    assert (again.ok, again.finding) == (True, finding), again
    assert hashes(tmp_path, "figures/*") == before


def test_ollama(measured, tmp_path):
    names, rivals = ["loop", "loop+bf16", "loop+fused", "torch"], ["loop", "loop+fused", "torch", "llamacpp"]
    finding = measured(
        "09", model=TINY, placements=names[:3], peers=["torch", "llamacpp", "ollama"], rivals=rivals, prompts=2,
        blocks=2, new_tokens=5, turns=2, turn_tokens=4, chats=2, quality_tokens=60, window=32,
        arithmetics=["float32", "bfloat16", "fused", "torch", "llamacpp"],
    )  # fmt: skip
    assert finding.startswith("Neither Ollama nor llama.cpp was measured beside ")  # which is fastest is chance
    trials, meta = record.read(tmp_path / "data" / "09-ollama.csv")
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp", "ollama"]
    assert all(gap["remedy"] for gap in meta["missing"])
    assert meta["subjects"] == names
    main, chat = standings.of_run(trials, standings.MAIN), standings.of_run(trials, measure.CHAT)
    in_blocks = {(block, name) for block in range(2) for name in [*names, f"loop{AGAIN}"]}
    assert {(t.block, t.subject) for t in main} == in_blocks
    assert all(np.isfinite(t.tg) for t in main)
    turns = sorted((b, k, name) for b in range(2) for k in range(2) for name in rivals[:3])
    assert sorted((t.block, t.prompt, t.subject) for t in chat) == turns
    assert {t.prompt: t.prompt_tokens for t in chat} == dict(enumerate(meta["history"]))
    assert {t.new_tokens for t in chat} == {4}
    assert len({t.tokens_sha256 for t in chat if t.prompt == 1 and t.subject in ("loop", "torch")}) == 1
    alone = footprints.table(trials, meta["processes"], rivals)
    assert [entry["name"] for entry in alone] == rivals[:3]
    assert all(0 < entry["libraries"] < entry["peak"][0] for entry in alone)
    windows, _ = record.read(tmp_path / "data" / "09-ollama-quality.csv", kind=quality.Window)
    tokens = {entry["subject"]: entry["tokens"] for entry in quality.table(windows)}
    assert tokens == dict.fromkeys(("float32", "bfloat16", "fused", "torch"), 60)
