"""`llama-jax extract` as a command of its own, which is how several processes are measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from llama_lab.bench import process


class Ran(NamedTuple):
    """report: of `--json`, empty where there is none, and then why. seconds: of the whole command."""

    report: dict
    why: str
    seconds: float


def extracted(options: dict[str, object], limit: float) -> Ran:
    """Run it in a clean environment, on all cores, for at most `limit` seconds."""
    words = [f"--{name}={value}" for name, value in options.items()]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "llama_lab", "extract", "--json", *words],
            capture_output=True,
            text=True,
            timeout=limit,
            env=process.clean_environment(len(process.allowed_cores())),
        )
    except subprocess.TimeoutExpired:
        return Ran({}, f"stopped after {limit:g} s", time.perf_counter() - began)
    seconds = time.perf_counter() - began
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Ran({}, last[0].removeprefix("error: ")[:200], seconds)
    return Ran(json.loads(done.stdout.strip().splitlines()[-1]), "", seconds)


def write_source(path: Path, examples: list) -> Path:
    """Examples as the JSON Lines that the command reads."""
    path.write_text("".join(json.dumps({"text": example}) + "\n" for example in examples), encoding="utf-8")
    return path
