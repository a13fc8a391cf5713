"""Environments of other releases: made once, never half, and a gap with its reason where one cannot be had."""

import subprocess
import sys

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.experiments.upgrading_jax import environments


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def maker(tmp_path, install):
    """A Python whose `-m venv FOLDER` leaves FOLDER/bin/python, which answers `-m pip install` with this script."""
    inner = script(tmp_path / "inner", install)
    return script(
        tmp_path / "python", f'echo made >> {tmp_path}/calls\nmkdir -p "$3/bin" && cp {inner} "$3/bin/python"'
    )


def test_an_environment_is_made_once(tmp_path):
    python = maker(tmp_path, f'echo "$@" >> {tmp_path}/installed')
    half = tmp_path / "all" / "0.9.2" / "bin" / "python"
    script(half, "exit 1")  # one that was interrupted is made anew
    for _ in range(2):
        assert environments.make("0.9.2", python, tmp_path / "all") == half
    assert (tmp_path / "calls").read_text().count("made") == 1
    assert "jax==0.9.2 jaxlib==0.9.2" in (tmp_path / "installed").read_text()
    assert subprocess.run([half]).returncode == 0


@pytest.mark.parametrize(
    ("install", "words"),
    [
        ("echo 'ERROR: No matching distribution found for jax==9.9.9' >&2; echo 'hint: x' >&2; exit 1", "^No matching"),
        ("exit 7", "no message"),
        ("sleep 30", r"longer than 0\.5 s"),
    ],
)
def test_a_release_that_cannot_be_had_is_a_gap(install, words, tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "LIMIT_S", 0.5 if "sleep" in install else 30)
    with pytest.raises(environments.GapError, match=words):
        environments.make("9.9.9", maker(tmp_path, install), tmp_path / "all")
    assert not (tmp_path / "all" / "9.9.9").exists()


@pytest.mark.parametrize("release", ["newest", "0.10", "0.10.2; rm -rf /", "", "--help", "0.10.2+"])
def test_what_is_no_release_is_refused(release):
    with pytest.raises(UserError, match="not a release of JAX"):
        environments.check([release])
    environments.check(["0.4.38", "0.12.0.1", "0.10.2+flag"])


def test_the_first_python_that_runs_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(UserError, match=r"install one of 3\.12"):
        environments.interpreter()
    mine = script(tmp_path / "bin" / "python3.11", "echo 3.11.7")
    assert environments.interpreter() == (mine, "3.11.7")
    script(tmp_path / "bin" / "python3.12", "echo no such version >&2; exit 127")  # a shim without a Python behind it
    assert environments.interpreter() == (mine, "3.11.7")
    other = script(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "echo 3.12.1")
    assert environments.interpreter() == (other, "3.12.1")


def test_a_python_says_its_version():
    assert environments.said_by(sys.executable) == sys.version.split()[0]
