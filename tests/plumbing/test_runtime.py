"""The JAX underneath: right however the package is started, and a wrong one is found out."""

import inspect
import json
import sys
from dataclasses import replace

import nbformat
import numpy as np
import pytest
from jaxlib import version

from llama_jax.plumbing import runtime, xla_flags
from llama_lab.bench import environment, process
from tests.conftest import python

FAULTY = version.__version__ in xla_flags.CURED
needs_the_fault = pytest.mark.skipif(not FAULTY, reason=f"jaxlib {version.__version__} needs no flag")
ASK = "print(runtime.outcome(runtime.named('product and sum in float32')))"


def test_this_jax_is_right():
    """In the tests' own process, whose XLA optimises less: what users run is asked in processes of their own below."""
    outcomes = runtime.examine()
    assert {"product and sum in float32", "gather of a constant"} <= set(outcomes)
    assert runtime.complaint(outcomes) == ""


def test_the_source_of_a_check_is_that_of_its_function():
    assert "def gather_of_a_constant(jax, jnp)" in inspect.getsource(runtime.named("gather of a constant").run)


def test_the_checks_of_gpus_are_right_on_a_processor():
    """Where no GPU is at hand, that their programs run and that what NumPy expects of them is so."""
    others = [one for one in runtime.CHECKS if one.platform == "gpu"]
    assert {one.name: runtime.outcome(one) for one in others} == {one.name: runtime.RIGHT for one in others}
    assert others
    assert not {one.name for one in others} & set(runtime.examine())


@pytest.mark.parametrize(
    "start",
    [
        "import llama_jax",
        "import jax\nimport llama_jax",
        "import jax.numpy\nfrom llama_jax import generate",
        "from llama_lab.__main__ import main",
    ],
)
def test_right_however_it_is_imported(start):
    outcome, complaints = python(f"{start}\nfrom llama_jax.plumbing import runtime\n{ASK}", clean=True)
    assert outcome == runtime.RIGHT
    assert "Warning" not in complaints


def checks_of_a_child(say, name):
    return {"outcome": runtime.outcome(runtime.named(name))}


def test_right_in_measured_processes():
    child = process.start(f"{__name__}:checks_of_a_child", {"name": "product and sum in float64"})
    assert child.result["outcome"] == runtime.RIGHT


@pytest.mark.slow
def test_right_under_plain_papermill(tmp_path):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(f"from llama_jax.plumbing import runtime\n{ASK}")]
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    code = (
        f"import papermill; papermill.execute_notebook({str(tmp_path / 'in.ipynb')!r}, {str(tmp_path / 'out.ipynb')!r})"
    )
    python(code, clean=True)
    (cell,) = (c for c in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells if c.source)
    assert cell.outputs[0].text.strip() == runtime.RIGHT


@needs_the_fault
def test_the_fault_is_found_without_the_flag():
    code = "import json\nfrom llama_jax.plumbing import runtime\nprint(json.dumps(runtime.examine()))"
    outcomes = json.loads(python(code, clean=True, **{xla_flags.KEEP: "1"})[0])
    assert outcomes["product and sum in float32"].startswith("wrong: ")
    assert outcomes["product and sum in float64"].startswith("wrong: ")
    assert runtime.complaint(outcomes) == "this JAX computes wrong values (jax #39103)"


@needs_the_fault
def test_one_warning_where_jax_was_started_before():
    code = f"import jax\njax.devices()\nimport llama_jax\nfrom llama_jax.plumbing import runtime\n{ASK}"
    outcome, complaints = python(code, clean=True)
    assert outcome.startswith("wrong: ")
    assert complaints.count("import llama_jax first") == 1


@needs_the_fault
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, xla_flags.SETTING),
        (
            {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
            f"--xla_cpu_multi_thread_eigen=false {xla_flags.SETTING}",
        ),
        ({"XLA_FLAGS": f"{xla_flags.FLAG}="}, f"{xla_flags.FLAG}="),
    ],
)
def test_the_users_own_flags_stay(flags, expected):
    code = "import llama_jax, os; print(os.environ['XLA_FLAGS'])"
    assert python(code, clean=True, **flags)[0] == expected


def test_what_was_added_can_be_taken_away(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--a=1 {xla_flags.SETTING} --b")
    assert xla_flags.shipped() == {"XLA_FLAGS": "--a=1 --b", xla_flags.KEEP: "1"}
    monkeypatch.setenv("XLA_FLAGS", f"{xla_flags.FLAG}=")
    assert xla_flags.shipped()["XLA_FLAGS"] == f"{xla_flags.FLAG}="


def raises():
    raise ValueError("no such\nthing")


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (lambda: (np.ones(3), np.ones(3)), runtime.RIGHT),
        (lambda: (np.float64("nan"), np.float64("nan")), runtime.RIGHT),
        (lambda: (np.float64(1.0), np.float64("nan")), "wrong: 1 instead of nan, 1 of 1 values"),
        (lambda: (np.array([1, 2, 4]), np.array([1, 2, 3])), "wrong: 4 instead of 3, 1 of 3 values"),
        (lambda: (np.ones(2), np.ones(3)), "wrong: shape (2,) instead of (3,)"),
        (raises, "does not run: ValueError: no such thing"),
    ],
)
def test_an_outcome_in_words(run, outcome):
    assert runtime.outcome(runtime.Check("made up", "jax #1", "nowhere", run)) == outcome


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("exit 3", "does not run: exit code 3"),
        ("kill -SEGV $$", "crashes: exit code -11"),
        ("sleep 60", "hangs: no answer in 0.5 s"),
    ],
)
def test_a_crash_and_a_hang_are_outcomes(script, outcome, tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    fatal = next(one for one in runtime.CHECKS if one.fatal)
    assert runtime.outcome_apart(fatal, limit=0.5 if "sleep" in script else 30) == outcome


def test_what_the_package_avoids_is_no_complaint():
    avoided = next(one for one in runtime.CHECKS if one.avoided)
    other = next(one for one in runtime.CHECKS if not one.avoided)
    wrong = {avoided.name: "wrong: 1 instead of 2, 1 of 1 values"}
    assert runtime.complaint(wrong) == ""
    assert runtime.note(avoided, wrong[avoided.name]).endswith(f"1 of 1 values; not met here: {avoided.avoided}")
    assert runtime.note(avoided, runtime.RIGHT) == runtime.RIGHT
    assert other.issue in runtime.complaint(wrong | {other.name: "crashes: exit code -11"})


def test_a_check_that_could_not_run_is_not_a_wrong_value():
    first, second = [one.name for one in runtime.CHECKS if not one.avoided][:2]
    outcomes = {first: "does not run: TypeError: x", second: runtime.RIGHT}
    assert runtime.complaint(outcomes) == "1 of 2 checks of this JAX could not run (does not run: TypeError: x)"
    both = runtime.complaint(outcomes | {second: "wrong: 1 instead of 2, 1 of 1 values"})
    assert both.startswith(f"this JAX computes wrong values ({runtime.named(second).issue}); 1 of 2 checks")


def test_a_wrong_jax_is_said_in_one_line_and_under_every_figure(capsys):
    here, (first, *_) = environment.capture(), runtime.CHECKS
    assert here["runtime"] == runtime.examine()
    faulty = here | {"runtime": {first.name: "wrong: 1 instead of 2, 1 of 1 values"}}
    line = environment.machine_line(here)
    assert environment.machine_line(faulty) == f"{line} · this JAX computes wrong values ({first.issue})"
    old = {k: v for k, v in here.items() if k != "runtime"}  # recorded before this was looked at
    assert environment.machine_line(old) == line
    runtime.warn(here["runtime"])
    runtime.warn(faulty["runtime"])
    assert capsys.readouterr().err.splitlines() == [
        f"warning: this JAX computes wrong values ({first.issue}); {runtime.REMEDY}."
    ]


def test_every_check_names_its_issue():
    assert len({one.name for one in runtime.CHECKS}) == len(runtime.CHECKS)
    for one in runtime.CHECKS:
        assert one.address.startswith(
            ("https://github.com/jax-ml/jax/issues/", "https://github.com/openxla/xla/issues/")
        )
        assert replace(one, issue="xla #7").address == "https://github.com/openxla/xla/issues/7"
        assert one.known
