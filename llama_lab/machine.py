"""This machine's name, and where its measurements go: beside the published data, never over them."""

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
    """A machine's name from its hardware, never from its host name: `amd-epyc-avx512vnni-2-cores`."""
    words = re.findall(r"[a-z0-9]+", NOISE.sub(" ", cpu).lower())
    return f"{'-'.join(words)[:ROOM].strip('-') or 'unknown'}-{isa}-{cores}-cores"


def name_of(environment: dict) -> str:
    """The name of the machine with this environment, see `environment.capture`."""
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
    """The folder for data, figures and pages of this machine: `results/<machine>` in the repository."""
    return FOLDER / name()


def home(source: str) -> Path:
    """The folder that a notebook writes to, and reads first, if none is named: this machine's results when it measures;
    the repository with the published data when it redraws. Raises UserError for another source."""
    return results() if recorded.is_measured(source) else paths.ROOT


def opened(name: str, cells: Mapping[str, object], *of_measuring: str) -> str | Path:
    """The folder that a notebook writes to: its `out_dir`, or else `home`. Its parameters are checked first
    (`notebook.check`). No other process that runs this notebook may write there until this one ends, unless it is
    interactive: such a kernel may stay for days.

    name: the notebook's, such as `02-jit-placement`. cells: its `globals()`. of_measuring: parameters that matter only
    for measuring, if no `Experiment` has them. Raises UserError also for a folder that cannot be written.
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
