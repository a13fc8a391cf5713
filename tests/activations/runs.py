"""`llama-jax extract` in processes and sessions of their own."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.activations import stores
from tests.conftest import TINY as MODEL

COMMAND = ["extract", "--model", MODEL, "--sites", "resid_post:all q:0", "--batch", "4", "--length", "32", "--json"]
UNITS = 300


def spawn(*command, stdin=None, **environment):
    """A Python process with its output in pipes."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


def start(source, out, *options, **environment):
    words = ("--source", source, "--unit", "4", "--out", out, *options)
    return spawn("-m", "llama_jax", *COMMAND, *words, **environment)


def finished(process):
    out, err = process.communicate(timeout=120)
    return SimpleNamespace(returncode=process.returncode, out=out, err=err)


def done(process):
    """The report of a run that ended well."""
    ended = finished(process)
    assert ended.returncode == 0, ended.err
    return json.loads(ended.out.splitlines()[-1])


def commits(out):
    return {int(p.stem) for p in Path(out).rglob("units/*/*.json") if not p.name.startswith(".")}


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def content(folder):
    """A store's files; what a killed process was about to write has a name of its own, and is none of them."""
    files = stores.content(folder).items()
    return {name: data for name, data in files if not re.search(r"(^|/)\.[^/]*\.tmp$", name)}
