"""Obtaining a notebook's data, and what is said about a run."""

import json
from dataclasses import dataclass

import pandas as pd
import pytest

from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import provenance, recorded, run, summary
from llama_lab.bench.experiment import Experiment
from llama_lab.bench.phases import Plan
from llama_lab.bench.workload import Workload
from llama_lab.cli import console
from tests.bench.test_record import trial
from tests.conftest import save_llama

NOTE = dict(process=1, affinity=[0], blas=[], settings={"OMP_NUM_THREADS": "1"}, gflops=5.0)


def watch(**changes):
    return {**dict(load_before=0.1, load_after=0.2, others_cpu=0.0, steal=0.0, wall_s=1.0), **changes}


@dataclass(frozen=True)
class Kept(Experiment):
    """Trials of some blocks, measured in this process, which is interrupted after the first of them."""

    n: int
    peers: tuple[str, ...] = ()
    numbers: tuple[int, ...] = (0,)
    ends: bool = True
    beside = ("numbers", "ends")

    def measure(self, runner):
        for block in self.numbers:
            runner.journal.append(trial(block=block))
            if not self.ends:
                raise KeyboardInterrupt
        runner.journal.note(**NOTE, watch=watch())
        return runner.journal.trials, {"weights_hash": "w"}


@pytest.fixture
def begun(tmp_path):
    """A folder with what an interrupted run has left."""
    with pytest.raises(KeyboardInterrupt):
        Kept(1, ends=False).obtain("measure", "77-x", tmp_path)
    assert not (tmp_path / "data").exists()
    return tmp_path


def test_a_notebook_that_was_interrupted_goes_on_under_the_same_parameters(begun):
    trials, meta = Kept(2, numbers=(5,)).obtain("measure", "77-y", begun)
    assert ([t.block for t in trials], meta["resumed_trials"]) == ([5], 0)
    assert len(list((begun / "out" / "journal").iterdir())) == 1  # the other run may still go on
    trials, meta = Kept(1, numbers=(1,)).obtain("measure", "77-x", begun)
    assert [t.block for t in trials] == [0, 1]
    assert meta["resumed_trials"] == 1
    assert meta["parameters"] == {"n": 1, "peers": []}
    assert meta["environment"]["watch"]["load_before"] == 0.1
    assert meta["environment"]["settings"] == {"OMP_NUM_THREADS": "1"}  # the measuring process's, not this one's
    assert meta["environment"]["gflops"] == 5.0
    assert list((begun / "out" / "journal").iterdir()) == []
    assert Kept(1).obtain("recorded", "77-x", begun)[0] == trials
    with pytest.raises(UserError, match="source is 'memory'"):
        Kept(1).obtain("memory", "77-x", begun)


def test_a_table_says_of_which_code_it_is(tmp_path, monkeypatch):
    rules = provenance.declared().model_copy(update=dict(tables={"77-x": ["llama_lab.experiments.growth.measure"]}))
    monkeypatch.setattr(provenance, "declared", lambda: rules)
    _, meta = Kept(1, peers=("llamacpp",)).obtain("measure", "77-x", tmp_path)
    assert meta["code"]["roots"] == ["llama_lab.experiments.growth.measure", "llama_lab.peers.llamacpp"]
    assert provenance.changed(meta) == []
    _, meta = Kept(1).obtain("measure", "77-y", tmp_path)
    assert meta["code"] is None


def test_the_worst_of_all_processes_is_what_counts():
    watches = watch(others_cpu=0.3, load_after=5.0), watch(load_before=9.0, steal="unknown")
    found = recorded.measured_in([NOTE | dict(watch=seen) for seen in watches])["watch"]
    assert found == dict(load_before=0.1, load_after=0.2, others_cpu=0.3, steal=0.0)
    assert recorded.measured_in([]) == {}


def test_a_table_beside_the_trials_comes_back(tmp_path):
    rows = [{"scenario": "base", "coverage": 0.5}, {"scenario": "x", "coverage": 0.25}]
    pd.testing.assert_frame_equal(recorded.table_beside("77-x-more", tmp_path, rows), pd.DataFrame(rows))
    assert recorded.table_beside("77-x-more", tmp_path).to_dict("records") == rows


def test_what_a_reader_should_know_is_said():
    subjects = [(n, b, backend) for b in range(6) for n, backend in (("step", "jax"), ("step (again)", "jax"),
                ("flax-nnx", "flax"), ("loop", "jax"))]  # fmt: skip
    trials = [trial(n, b, (10, 20, 40 + b * 9), process=1, backend=backend) for n, b, backend in subjects]
    void = dict(valid=False, reason="compiled in the timed region: 1 programs (step)", cause="a new shape")
    trials[-1] = trials[-1].model_copy(update=void)
    gaps = [dict(name="ollama", reason="No server answers.", remedy="Run `ollama serve`.")]
    meta = dict(parameters={"processes": 1}, resumed_trials=4, torn_line=True, missing=gaps)
    meta |= dict(environment={"cores": 2, "watch": watch(others_cpu=0.5)})
    result = run.document(trials, summary.table(trials, "step"), "step", meta)
    json.dumps(result)
    assert [s["name"] for s in result["subjects"] if s["kind"] == "peer"] == ["flax-nnx"]
    assert result["missing"] == gaps
    said = "\n".join(console.remarks(result))
    for words in ("others used 50 %", "One process", "loop: 1 trial void: compiled", "loop: a new shape",
                  "step: drifted by -", "4 trials come from an interrupted run", "last line was incomplete",
                  "missing: ollama: No server answers. Run `ollama serve`."):  # fmt: skip
        assert words in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(placements=("step",), peers=("flax-nxn",)), "Did you mean .*'flax-nnx'"),
        (dict(placements=("step",), peers=("flax-nnx", "flax-nnx")), "A peer is named twice"),
        (dict(placements=("step", "step")), "named twice"),
        (dict(placements=("loop",), baseline="step"), "'step' is not among the placements"),
    ],
)
def test_names_are_checked_before_anything_is_loaded(settings, words):
    with pytest.raises(UserError, match=words):
        run.run(run.Settings("m", **settings))


def test_the_baseline_is_step_or_the_first():
    chosen = [run.chosen(run.Settings("m", names))[1] for names in (("loop", "step"), ("loop", "ops"))]
    assert chosen == ["step", "loop"]


def test_a_text_that_does_not_fit_the_model_is_refused(tmp_path):
    folder, _ = save_llama(tmp_path / "m")
    work = Workload(((1, 2, 3),), new_tokens=300, length=4)
    with pytest.raises(UserError, match="context of 256"):
        run.collect(Plan(str(folder), (parse("step"),), work, "step"))
