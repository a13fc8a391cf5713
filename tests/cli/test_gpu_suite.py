"""`bench --suite gpu` as a machine with little installed runs it, and what it says to those who ask for something
else."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.experiments.gpu import data, device
from llama_lab.reporting import notebooks, report

# What a GPU machine is not promised to have. What requirements-gpu.txt names is there.
ABSENT = ["gguf", "jaxtyping", "threadpoolctl", "pyarrow", "matplotlib", "seaborn", "papermill", "nbformat", "nbclient",
          "nbconvert", "flax", "ollama", "llama_cpp", "beartype", "hypothesis", "pytest", "IPython",
          "ipykernel"]  # fmt: skip
SITE = f"""
import sys
from importlib.machinery import PathFinder
class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {ABSENT!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Present
"""


def bare(folder, *arguments, **options):
    """The suite in processes that find nothing but what a GPU machine has."""
    site = folder.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    command = [sys.executable, "-m", "llama_lab", "bench", "--suite", "gpu", "--out", str(folder), *arguments]
    places = {
        "TMPDIR": str(folder.parent),
        "PYTHONPATH": os.pathsep.join([str(site), str(paths.ROOT)]),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen(
        command, env={**os.environ, **places}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


@pytest.mark.slow
def test_the_whole_suite_runs_with_what_a_gpu_machine_has(tmp_path):
    """Measured bare, converted and drawn here; then notebook 19 with these data and, in another folder, without any."""
    child = bare(tmp_path / "run", "--any-device", "--deterministic")
    said, _ = child.communicate(timeout=300)
    assert child.returncode == 0, said[-2000:]
    assert "all of PyTorch" not in said, said
    lines = [json.loads(line) for line in (tmp_path / "run" / "19-gpu.jsonl").read_text().splitlines()]
    about = lines[0]["meta"]
    assert about["environment"]["blas"] == "unknown"  # threadpoolctl was absent indeed
    assert device.is_deterministic(about["environment"]["settings"]["XLA_FLAGS"])
    assert about["suite"]["deterministic"]
    done = subprocess.run(
        [sys.executable, "-m", "llama_lab.experiments.gpu.data", str(tmp_path / "run"), str(tmp_path)],
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    rows, _ = data.obtain("recorded", tmp_path)
    assert {"step", "torch"} <= {row.subject for row in rows if row.phase == "warm"}
    assert all(row.valid for row in rows if row.phase == "warm"), {row.reason for row in rows}
    (result,) = notebooks.run(("19",), out_dir=tmp_path)
    assert result.ok, result.error
    assert len(result.artifacts) == 6
    assert "which is no GPU" in result.finding
    assert device.DETERMINISTIC in data.label(*data.obtain("recorded", tmp_path))
    assert all("REHEARSAL" not in entry["alt"] for entry in figures.read_manifest(tmp_path)["figures"].values())
    assert report.write(tmp_path).read_text().count("<figure ") == 3


@pytest.mark.slow
@pytest.mark.parametrize("source", ["recorded", "measure"])
def test_the_notebook_without_a_recording_says_so_and_draws_nothing(tmp_path, source):
    if (paths.ROOT / "data" / "19-gpu.csv").is_file():
        pytest.skip("a GPU run is recorded")
    (result,) = notebooks.run(("19",), source=source, out_dir=tmp_path)
    assert result.ok, result.error
    assert result.finding.startswith(data.NOT_RECORDED)
    assert result.artifacts == []
    assert figures.read_manifest(tmp_path)["figures"] == {}
    page = report.write(tmp_path).read_text()
    assert "Measured" not in page.partition('id="n12"')[2]
    assert "make gpu" in page


@pytest.mark.slow
def test_a_killed_run_leaves_records_that_can_be_used(tmp_path):
    child, file = bare(tmp_path / "run", "--any-device"), tmp_path / "run" / "19-gpu.jsonl"
    try:
        until = time.monotonic() + 200
        while time.monotonic() < until and (not file.is_file() or file.read_bytes().count(b"\n") < 4):
            assert child.poll() is None, child.stdout.read()[-2000:]
            time.sleep(0.2)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    data.convert(tmp_path / "run", tmp_path)
    rows, _ = data.obtain("recorded", tmp_path)
    assert len(rows) >= 2
    assert all(row.token_times_ns for row in rows if row.valid)


@pytest.mark.slow
def test_without_a_gpu_it_says_so_and_leaves_nothing(tmp_path):
    child = bare(tmp_path / "run")
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 2
    assert said.strip().splitlines()[-1].startswith("error: There is no GPU here")
    assert not (tmp_path / "run").exists()
