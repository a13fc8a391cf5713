"""What cannot run here is named once, with its remedy, and asked about only where it matters."""

import pytest

from llama_jax import kernels
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available
from llama_lab.bench.experiment import Runner
from llama_lab.bench.journal import Journal
from llama_lab.bench.lab import Lab
from llama_lab.experiments.what_may_be_jitted.measure import OneToken
from tests.conftest import TINY


def test_where_there_are_no_kernels_those_placements_are_gaps(monkeypatch):
    monkeypatch.setattr(kernels, "missing", lambda: "numba is not installed, which compiles them; run `make setup`.")
    found = available.gaps(["loop", "loop+gemv", "step+fused", "llamacpp"], TINY)
    assert [gap["name"] for gap in found] == ["loop+gemv", "step+fused", "llamacpp"]
    assert all(gap["reason"] and gap["remedy"] for gap in found)
    reason, remedy = "numba is not installed, which compiles them.", "Run `make setup`."
    assert found[0] == dict(name="loop+gemv", reason=reason, remedy=remedy)
    monkeypatch.setattr(kernels, "missing", lambda: None)
    assert available.gaps(["loop", "loop+gemv", "step+fused"], TINY) == []
    monkeypatch.setattr(kernels, "missing", lambda: pytest.fail("asked"))
    assert available.gaps(["loop", "loop+int8"], TINY) == []  # who needs none does not ask


def test_a_gap_is_named_once_in_a_journal(monkeypatch):
    monkeypatch.setattr(kernels, "missing", lambda: "None here; leave them out.")
    runner = Runner(OneToken(TINY, 0), Journal())
    for _ in range(2):
        assert runner.present(["loop", "loop+gemv", "llamacpp"]) == ["loop"]
    assert len(runner.missing) == len(runner.journal.notes) == 2


def test_a_resumed_run_asks_again_for_what_was_not_there_before_it_began(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "missing", lambda: "None here; leave them out.")
    names, path = ["loop", "loop+gemv", "step+fused"], tmp_path / "j.jsonl"
    assert Runner(OneToken(TINY, 0), Journal(path)).present(names) == ["loop"]
    monkeypatch.setattr(kernels, "missing", lambda: "They are too old; update them.")
    runner = Runner(OneToken(TINY, 0), Journal(path))
    assert runner.present(names) == ["loop"]
    assert [gap["reason"] for gap in runner.missing] == ["They are too old."] * 2
    monkeypatch.setattr(kernels, "missing", lambda: None)
    runner = Runner(OneToken(TINY, 0), Journal(path))
    runner.journal.note(missing=dict(name="ollama", reason="No server.", remedy="Start it."))  # of another question
    gap = dict(name="step+fused", reason="It does not compile.", remedy="Leave it out.")
    runner.journal.receive("note", dict(missing=gap), process=3)
    assert runner.present(names) == ["loop", "loop+gemv"]  # a process could not build the last
    assert {gap["name"] for gap in runner.missing} == {"ollama", "step+fused"}
    assert gap in runner.missing


def test_a_baseline_runs_everywhere():
    available.check_baseline("loop")
    with pytest.raises(UserError, match="step.gemv is the baseline, which must run everywhere"):
        available.check_baseline("step+gemv")


@pytest.mark.parametrize(("subject", "dtype"), [("llamacpp", None), ("torch", "float32"), ("step+q8_0", "q8_0")])
def test_a_subject_that_reads_the_file_itself_is_given_no_weights(subject, dtype):
    lab = Lab(lambda *_: None, {}, TINY)
    loaded = available.load_alone(lab, subject)
    assert (loaded.params and loaded.dtype) == dtype
    assert (lab.load_ns == 0) is (dtype is None)


def test_a_draft_model_that_is_not_here_or_has_other_tokens_is_a_gap():
    names = ["loop", f"loop+draft:{TINY}", "loop+draft:qwen9", "loop+draft:random:gpt2"]
    found = {gap["name"]: gap["reason"] for gap in available.gaps(names, TINY)}
    assert set(found) == set(names[2:])
    assert "No such model: 'qwen9'" in found[names[2]]
    assert found[names[3]] == f"random:gpt2 has 50257 tokens, {TINY} 97."
