"""Processes over one mesh: they meet by JAX's own runtime, agree, and end together."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from llama_lab.activations import sharding

MODEL = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
COMMAND = [sys.executable, "-m", "llama_lab", "extract", "--model", MODEL, "--sites", "resid_post:all q:0", "--json"]
SHAPE = ["--batch", "4", "--length", "32", "--unit", "4", "--keep", "float32"]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(source, out, *options, **environment):
    return subprocess.Popen(
        [*COMMAND, *SHAPE, "--source", str(source), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


def meshed(source, out, *options):
    """Two processes of two devices each, with the variables that srun sets."""
    slurm = dict(SLURM_JOB_ID="7", SLURM_STEP_NODELIST="localhost", SLURM_NTASKS="2", JAX_NUM_CPU_DEVICES="2",
                 JAX_COORDINATOR_PORT=str(free_port()))  # fmt: skip
    options = ("--mesh", "2x2", "--distributed", *options)
    return [start(source, out, *options, **slurm, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(2)]


def commits(out):
    return {int(p.stem) for p in Path(out).rglob("units/*/*.json") if not p.name.startswith(".")}


@pytest.fixture
def source(tmp_path):
    draw = np.random.default_rng(0)
    path = tmp_path / "ids.jsonl"
    path.write_text(
        "".join(json.dumps(draw.integers(0, 97, draw.integers(1, 60)).tolist()) + "\n" for _ in range(1200))
    )
    return path


@pytest.mark.slow
def test_over_a_mesh_all_work_on_each_unit_and_one_writes_it(source, tmp_path):
    """Two processes make what one device makes; one that dies ends the other, and the same command goes on."""
    both, single = tmp_path / "meshed", tmp_path / "single"
    ended = [
        process.communicate(timeout=120) + (process.returncode,) for process in meshed(source, both, "--limit", "60")
    ]
    assert [code for *_, code in ended] == [0, 0], ended
    reports = [json.loads(out.splitlines()[-1]) for out, *_ in ended]
    assert sorted(r["written"] for r in reports) == [7, 8]
    assert [r["compilations"] for r in reports] == [1, 1]
    assert any(r["complete"] for r in reports)
    alone = start(source, single, "--limit", "60")
    assert alone.wait(120) == 0, alone.communicate()
    for file in sorted(single.rglob("*.safetensors")):
        with safe_open(file, "np") as one, safe_open(both / file.relative_to(single), "np") as two:
            for name in one.keys():  # noqa: SIM118
                a, b = one.get_tensor(name), two.get_tensor(name)
                assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), (file, name)
    out = tmp_path / "killed"
    first, second = meshed(source, out)
    end = time.monotonic() + 60
    while len(commits(out)) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    second.kill()
    second.communicate()
    first.communicate(timeout=120)
    assert first.returncode  # JAX's runtime ends it
    found = len(commits(out))
    assert 4 <= found < 300
    again = [process.communicate(timeout=120) + (process.returncode,) for process in meshed(source, out)]
    assert [code for *_, code in again] == [0, 0], again
    assert sum(json.loads(said.splitlines()[-1])["written"] for said, *_ in again) == 300 - found


def test_who_does_not_come_is_waited_for_only_so_long():
    """JAX's own runtime would abort with a core dump."""
    code = "from llama_lab.activations import sharding\nsharding.join(seconds=2)"
    slurm = dict(SLURM_JOB_ID="7", SLURM_STEP_NODELIST="localhost", SLURM_NTASKS="2", SLURM_PROCID="0",
                 SLURM_LOCALID="0", JAX_COORDINATOR_PORT=str(free_port()), JAX_PLATFORMS="cpu")  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **slurm}, timeout=60
    )
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("error: The other processes of the mesh did not answer within 2 s")


def test_alone_everything_is_agreed_at_once():
    assert sharding.agreed([1, {"a": "b"}]) == [1, {"a": "b"}]
    with pytest.raises(ZeroDivisionError), sharding.leaving():
        raise ZeroDivisionError
