"""This machine's name, and where what is measured on it goes: beside what is published, never over it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from llama_jax.kernels import LIBRARIES
from llama_jax.plumbing import files, paths
from llama_jax.plumbing.values import LONG, shown
from llama_lab.bench import environment, notebook, recorded

FOLDER = paths.ROOT / "results"  # ignored by git
_writing: dict[str, IO] = {}  # notebook → the lock on where it writes, which goes with the process
NOISE = re.compile(r"\((?:r|tm|c)\)|@.*|\b(?:cpu|processor|\d+-core)\b", re.I)  # of a processor's name
ROOM = 48  # letters of a processor's name


def slug(cpu: str, isa: str, cores: int) -> str:
    """A machine's name by what it can do, never by what its owner calls it: `amd-epyc-avx512vnni-2-cores`."""
    words = re.findall(r"[a-z0-9]+", NOISE.sub(" ", cpu).lower())
    return f"{'-'.join(words)[:ROOM].strip('-') or 'unknown'}-{isa}-{cores}-cores"


def name_of(environment: dict) -> str:
    """The name of the machine whose environment this is, see `environment.capture`."""
    isa = environment["kernels"]
    return slug(environment["cpu"], "no-kernels" if isa == "none" else isa, environment["cores"])


def name() -> str:
    """This machine's. Its GPU is not asked for: whoever runs the measuring processes must leave that to them."""
    isa = "no-kernels"
    if all(importlib.util.find_spec(library) for library in LIBRARIES):
        from llama_jax.kernels import isa as instructions  # here: it needs what may be missing

        isa = instructions.target().isa
    return slug(environment.cpu_model(), isa, os.cpu_count() or 1)


def results() -> Path:
    """Where data, figures and pages of this machine lie: `results/<machine>` in the repository."""
    return FOLDER / name()


def home(source: str) -> Path:
    """Where a notebook writes, and reads first, where no folder is named: this machine's results for what it measures;
    the repository, which has what is published, for what is recorded. Raises UserError for another source."""
    return results() if recorded.is_measured(source) else paths.ROOT


def opened(name: str, cells: Mapping[str, object], *of_measuring: str) -> str | Path:
    """The folder that a notebook writes to: its `out_dir`, or else `home`. What it was given is checked first, as
    `notebook.check` does. No other process that runs this notebook may write there until this one ends, unless a person
    sits before it, whose kernel stays for days.

    name: the notebook's, such as `03-jit-placement`. cells: its `globals()`. of_measuring: parameters on which only
    what is measured depends, where no `Experiment` has them. Raises UserError also for a folder that cannot be written.
    """
    notebook.check(name, cells, of_measuring)
    folder = cells["out_dir"] or home(cells["source"])
    _writing.pop(name, None)  # which lets go of it
    busy = (
        f"Process {{holder}} runs {name} into {shown(str(folder), LONG)}; wait for it to end, or give another out_dir."
    )
    lock = files.taken(Path(folder) / "out" / f"{name}.lock", busy)
    if not notebook.person_is_there():
        _writing[name] = lock
    return folder
