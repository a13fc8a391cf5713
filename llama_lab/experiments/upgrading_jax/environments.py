"""One environment a release of JAX: jax, jaxlib and what they need, made once; the package is used from its source."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError

FOLDER = paths.ROOT / ".venv-releases"
PYTHONS = ("3.12", "3.13", "3.11")  # the first that is here runs all releases, so that Python is no difference
FLAGGED = "+flag"  # behind a release: with the flag that the package sets where it is needed, not as shipped
LIMIT_S = 900


class GapError(Exception):
    """A release that cannot be had here, and why."""


def check(releases: Sequence[str]) -> None:
    """Raises UserError for what is no release's number."""
    for release in releases:
        if not re.fullmatch(r"\d+\.\d+\.\d+(\.\d+)?", release.removesuffix(FLAGGED)):
            raise UserError(f"{release!r} is not a release of JAX; write it as 0.10.2.")


def interpreter() -> tuple[str, str]:
    """(path of the Python that runs all releases, its version). Raises UserError if none of `PYTHONS` is here."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for wanted in PYTHONS:
        known = [shutil.which(f"python{wanted}"), *map(str, sorted(home.glob(f"{wanted}.*/bin/python{wanted}")))]
        for path in filter(None, known):
            if (version := said_by(path)).startswith(f"{wanted}."):
                return path, version
    raise UserError(f"No Python here runs the releases; install one of {', '.join(PYTHONS)}.")


def said_by(python: str) -> str:
    """A Python's version; "" if it does not run."""
    code = "import platform; print(platform.python_version())"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def make(release: str, python: str, folder: Path = FOLDER) -> Path:
    """The interpreter of a release's environment, which is made where it is not there yet.

    One that was interrupted is made again. Raises GapError if it cannot be installed: no such release, none for this
    Python, no network.
    """
    home = folder / release
    ready, own = home / ".ready", home / "bin" / "python"
    if ready.is_file():
        return own
    shutil.rmtree(home, ignore_errors=True)
    try:
        run([python, "-m", "venv", str(home)])
        run([str(own), "-m", "pip", "install", "-q", "--only-binary", ":all:", f"jax=={release}", f"jaxlib=={release}"])
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    ready.touch()
    return own


def run(command: list[str]) -> None:
    """Raises GapError with the last line of a command's complaint where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise GapError(f"installing took longer than {LIMIT_S} s") from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no message"]
        last = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise GapError(last.removeprefix("ERROR: ")[:200])
