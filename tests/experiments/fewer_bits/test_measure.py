"""The contest of arithmetics: mistakes named first, gaps with a reason, prompts of exact length, and the children, on a
small model."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from llama_jax import checkpoint
from llama_lab.bench import available, passages
from llama_lab.bench.experiment import Runner
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import encoder
from llama_lab.experiments.fewer_bits import measure, table
from llama_lab.experiments.fewer_bits.measure import Contest
from tests.bench import labs
from tests.checkpoint import test_gguf
from tests.experiments.conftest import TINY

CONTEST = Contest(
    TINY, ("loop", "loop+int8"), ("torch-int8", "llamacpp+q4_0"), (24, 48),
    new_tokens=6, blocks=2, processes=1, starts=1, seed=0,
)  # fmt: skip


def test_the_context_is_full_with_the_last_token(packaged):
    for loaded in (packaged, checkpoint.load(TINY)):
        work = passages.filling(loaded, 64, 16)
        assert {len(encoder(loaded)(prompt)) for prompt in work.prompts} == {48} == {work.length}
        assert len(set(work.prompts)) == len(work.prompts) > 1
        assert passages.filling(loaded, 64, 16) == work


def test_a_process_holds_its_subjects_weights_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    test_gguf.write(tmp_path / "m.gguf", "Q4_1")
    for model, own in ((str(tmp_path / "m.gguf"), "gguf"), (TINY, "q8_0")):
        expected = {
            "loop": "float32", "loop+bf16": "bfloat16", "step+int8": "int8", "loop+gemv": own, "loop+q4_0+gemv": "q4_0",
            "torch-int8": "float32",
        }  # fmt: skip
        assert {name: available.loaded_as(name, model) for name in expected} == expected


def test_the_kernels_are_found_in_the_folder_given(tmp_path, monkeypatch):
    """The first process compiles, the second reads; each says how long it took and that it found something."""
    from llama_jax.kernels import build

    made = []
    monkeypatch.setenv("LLAMA_JAX_CACHE", "elsewhere")
    monkeypatch.setattr(
        build, "library", lambda: made.append(os.environ["LLAMA_JAX_CACHE"]) or (tmp_path / "x.o").write_text("code")
    )
    asked = dict(block=1, folder=str(tmp_path))
    notes = [labs.run(measure.kernels_ready, TINY, way=way, **asked)[1][0]["kernels"] for way in measure.WAYS]
    assert made == [str(tmp_path)] * 2
    assert [(n["way"], n["block"], n["found"]) for n in notes] == [("cold", 1, False), ("cached", 1, True)]
    assert all(n["seconds"] >= 0 and n["isa"] for n in notes)


def test_compiled_kernels_are_asked_for_once_a_way_and_start(monkeypatch):
    asked = []

    def child(self, point):
        asked.append((point.run, point.block, Path(point.arguments["folder"]).is_dir()))
        kernels = dict(way=point.arguments["way"], block=point.block, seconds=1.0)
        self.journal.note(process=len(asked), kernels=kernels)

    monkeypatch.setattr(Runner, "child", child)
    contest = replace(CONTEST, starts=2)
    runner = Runner(contest, Journal())
    for _ in range(2):  # the second time all of it is in the journal
        contest.compile_kernels(runner)
        assert asked == [(f"kernels {way}", block, True) for block in (0, 1) for way in measure.WAYS]


@pytest.mark.slow
def test_really_measured(tmp_path, monkeypatch):
    """Placements and PyTorch on random weights; what reads a file is a gap; an interrupted run goes on."""
    monkeypatch.setattr("llama_jax.plumbing.paths.tempfile.gettempdir", lambda: str(tmp_path))
    journal = Journal()
    trials, meta = CONTEST.record(journal)
    assert all(t.valid for t in trials), [t.reason for t in trials]
    assert [gap["name"] for gap in meta["missing"]] == ["llamacpp+q4_0"]
    assert meta["subjects"] == ["loop", "loop+int8", "torch-int8"]
    assert {t.run for t in trials} == {"context 24", "context 48", *(f"memory {name}" for name in meta["subjects"])}
    assert {t.prompt_tokens + t.new_tokens for t in trials if t.run == "context 48"} == {48}
    for found in (table.ladder(trials, meta["subjects"], c, [], journal.notes) for c in CONTEST.contexts):
        assert all(e["decode"].n == 2 and e["mbu"].n == 2 and e["peak"] for e in found)
    assert CONTEST.record(journal)[0] == trials
