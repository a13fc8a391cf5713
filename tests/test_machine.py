"""A machine is called by what it can do, and what is measured on it never goes over what is published."""

import os
import platform
import subprocess

import nbformat
import pytest

from llama_jax.plumbing import paths
from llama_lab import machine
from llama_lab.reporting import notebooks


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("AMD EPYC", "amd-epyc-avx2-2-cores"),
        ("AMD EPYC 9R14 96-Core Processor", "amd-epyc-9r14-avx2-2-cores"),
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c-avx2-2-cores"),
        ("../../etc/passwd\n", "etc-passwd-avx2-2-cores"),
        ("中", "unknown-avx2-2-cores"),
        ("x" * 500, f"{'x' * 48}-avx2-2-cores"),
    ],
)
def test_a_name_is_made_of_the_processors_and_is_one_plain_folder(cpu, expected):
    assert machine.slug(cpu, "avx2", 2) == expected


def test_a_name_says_what_can_differ_and_not_whose_machine_it_is(monkeypatch):
    monkeypatch.setattr(machine.environment, "cpu_model", lambda: "A CPU")
    monkeypatch.setenv("LLAMA_JAX_ISA", "portable")
    assert machine.name() == f"a-portable-{os.cpu_count()}-cores"
    monkeypatch.setattr(machine, "LIBRARIES", ("no_such_library",))
    assert machine.name() == f"a-no-kernels-{os.cpu_count()}-cores"
    assert platform.node() not in machine.name()


def test_what_is_measured_goes_to_results_and_what_is_recorded_is_read_where_it_is_published():
    assert machine.home("measure") == machine.results() == paths.ROOT / "results" / machine.name()
    assert machine.home("recorded") == paths.ROOT


@pytest.mark.skipif(not (paths.ROOT / ".git").exists(), reason="no clone")
def test_git_does_not_see_results():
    path = machine.results() / "data" / "02-jit-placement.csv"
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=paths.ROOT).returncode == 0


@pytest.mark.parametrize("path", notebooks.find(), ids=lambda p: p.stem)
def test_a_notebook_asks_where_to_write(path):
    """So that plain papermill and Run All obey too."""
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert sum("out_dir = machine.opened(" in text for text in code) == 1
    assert not any("paths.ROOT" in text for text in code)
