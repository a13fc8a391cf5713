"""Against the clock: what fits, what it is said to cost, and records that survive a killed process."""

import json
import subprocess
import sys
import threading

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench.seal import sealed
from llama_lab.experiments.gpu.deadline import Budget, Costs, Log, Watchdog


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_budget_counts_from_when_it_was_made():
    clock = Clock()
    budget = Budget(60, clock)
    clock.now += 45
    assert budget.spent == 45
    assert budget.left() == 15
    assert budget.left(0.5) == -15


def test_costs_are_guessed_by_the_longest_prefix_until_one_was_seen():
    costs = Costs({"torch": 1.0, "torch-compile": 3.0}, 0.5)
    assert costs.expected("torch-compile+reduce-overhead", 10) == 30
    assert costs.expected("step", 10) == 5
    costs.learn("torch", 10, 2)
    assert costs.expected("torch", 30) == pytest.approx(6)
    assert costs.expected("torch-cudagraph", 10) == 10  # another subject's cost is not its own


def test_a_log_keeps_the_run_before_and_counts(tmp_path):
    path = tmp_path / "deep" / "x.jsonl"
    Log(path, {"run": 1})
    log = Log(path, {"run": 2})
    log.add({"a": 1})
    log.note(left_out="b")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"meta": sealed({"run": 2})},
        {"a": 1},
        {"note": {"left_out": "b"}},
    ]
    assert json.loads((path.parent / "x.jsonl.old").read_text()) == {"meta": sealed({"run": 1})}
    assert (log.records, log.notes) == (1, 1)


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        Log(tmp_path / "file" / "x.jsonl", {})


def test_the_watchdog_says_what_it_interrupted_and_ends_the_process(tmp_path):
    ended = threading.Event()
    log = Log(tmp_path / "x.jsonl", {})
    with Watchdog(0.05, log, end=ended.set) as dog:
        dog.doing = "compiling something large"
        assert ended.wait(10)
    assert "compiling something large" in log.path.read_text().splitlines()[-1]
    ended.clear()
    with Watchdog(0.2, log, end=ended.set):
        pass
    assert not ended.wait(0.4)  # one whose work is done bites nobody


def test_records_outlive_a_process_that_is_killed(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from llama_lab.experiments.gpu.deadline import Log
log = Log(Path(sys.argv[1]), {})
for i in range(3):
    log.add({"i": i})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.jsonl")])
    assert done.returncode < 0
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()][1:] == [
        {"i": i} for i in range(3)
    ]
