"""The comparison with the peers, really measured through the runner on a small model."""

import numpy as np
import pytest

from llama_lab.bench import AGAIN, footprints, quality, record, standings
from llama_lab.experiments.ollama import measure
from tests.conftest import TINY

SMALL = dict(
    model=TINY,
    placements=["loop", "loop+bf16", "loop+fused"],
    peers=["torch", "llamacpp", "ollama"],
    rivals=["loop", "loop+fused", "torch", "llamacpp"],
    prompts=2,
    blocks=2,
    new_tokens=5,
    turns=2,
    turn_tokens=4,
    chats=2,
    arithmetics=["float32", "bfloat16", "fused", "torch", "llamacpp"],
    quality_tokens=60,
    window=32,
)


@pytest.mark.slow
def test_measured_through_the_runner(measured, tmp_path):
    finding = measured("10", SMALL)
    assert finding.startswith("Neither Ollama nor llama.cpp was measured beside ")  # which is fastest is chance
    assert "torch's best mode (torch on " in finding
    trials, meta = record.read(tmp_path / "data" / "10-ollama.csv")
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp", "ollama"]
    assert all(gap["remedy"] for gap in meta["missing"])
    names = ["loop", "loop+bf16", "loop+fused", "torch"]
    assert meta["subjects"] == names
    main, chat = standings.of_run(trials, standings.MAIN), standings.of_run(trials, measure.CHAT)
    assert sorted({(t.block, t.subject) for t in main}) == sorted(
        (b, n) for b in range(2) for n in [*names, f"loop{AGAIN}"]
    )
    assert all(np.isfinite(t.tg) for t in main)
    assert sorted((t.block, t.prompt, t.subject) for t in chat) == sorted(
        (b, k, n) for b in range(2) for k in range(2) for n in ("loop", "loop+fused", "torch")
    )
    assert {t.prompt: t.prompt_tokens for t in chat} == dict(enumerate(meta["history"]))
    assert {t.new_tokens for t in chat} == {4}
    assert len({t.tokens_sha256 for t in chat if t.prompt == 1 and t.subject in ("loop", "torch")}) == 1
    alone = footprints.table(trials, meta["processes"], SMALL["rivals"])
    assert [entry["name"] for entry in alone] == ["loop", "loop+fused", "torch"]
    assert all(0 < entry["libraries"] < entry["peak"][0] for entry in alone)
    windows, _ = record.read(tmp_path / "data" / "10-ollama-quality.csv", kind=quality.Window)
    tokens = {entry["subject"]: entry["tokens"] for entry in quality.table(windows)}
    assert tokens == dict.fromkeys(("float32", "bfloat16", "fused", "torch"), 60)
