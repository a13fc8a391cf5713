"""What lm-eval (https://github.com/EleutherAI/lm-evaluation-harness) finds of a server beside what its own `hf` finds
of the same float32 weights: `python -m tests.clients.harness` writes data/lm-eval.csv.

Two tasks: the likeliest ending of the 50 sentences of `fewer_bits/endings.jsonl`, and what follows the first 20
greedily until a stop. lm-eval is what `make clients` installs; torch, transformers and datasets are .venv's.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from llama_jax.checkpoint import gguf
from llama_jax.plumbing import paths
from tests.clients import matrix
from tests.serve.test_process import NAME, start

FILE = paths.ROOT / "data" / "lm-eval.csv"
SERVER, REFERENCE = "local-completions", "hf"
# task, metric, and what of a sentence is compared
METRICS = (("endings", "acc", "acc"), ("endings", "acc_norm", "acc_norm"), ("goes_on", "exact_match", "resps"))
HEADS = ("lm-eval", "task", "metric", f"`{SERVER}`", f"`{REFERENCE}`", "apart")
PACKAGES = next((matrix.INSTALLED / "lib").glob("python3*/site-packages"), matrix.INSTALLED)


def missing() -> str:
    """What is not here; "" where it can run."""
    return "" if (PACKAGES / "lm_eval").exists() else "`make clients` adds lm-eval"


def compare() -> dict:
    """What `lm_eval/run.py` prints. Raises RuntimeError where it fails."""
    process, url = start("--slots", "4", "--context", "512", "--dtype", "float32")
    command = [sys.executable, matrix.HERE / "lm_eval" / "run.py", PACKAGES, url, NAME, gguf.packaged()]
    offline = dict(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    try:
        with tempfile.TemporaryDirectory() as home:  # none of the user's own settings and data
            clean = dict(PATH=os.environ["PATH"], HOME=home) | offline
            done = subprocess.run(command, cwd=paths.ROOT, env=clean, capture_output=True, text=True, timeout=1200)
    finally:
        process.terminate()
        process.wait(60)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def likelihoods(found: dict) -> np.ndarray:
    """(endings of all sentences, 2): the log-likelihood in nats, and whether the ending is the greedy one."""
    return np.array([told for row in found["endings"]["rows"] for (told,) in row["resps"]], float)


def rows(found: dict) -> Iterator[tuple]:
    """The rows of the table. apart: of how many sentences the two say something else, or by how much at most."""
    version, ours, theirs = found["version"], found[SERVER], found[REFERENCE]
    for task, metric, compared in METRICS:
        pairs = [*zip(ours[task]["rows"], theirs[task]["rows"], strict=True)]
        differ = sum(a[compared] != b[compared] for a, b in pairs)
        values = (f"{each[task]['metrics'][metric]:.2f}" for each in (ours, theirs))
        yield version, task, metric, *values, f"{differ} of {len(pairs)} sentences"
    a, b = (likelihoods(each)[:, 0] for each in (ours, theirs))
    values = (f"{each.mean():.4f}" for each in (a, b))
    yield version, "endings", "mean log-likelihood (nats)", *values, f"at most {np.abs(a - b).max():.0e}"


def main() -> None:
    """Raises RuntimeError where lm-eval is not installed, or fails."""
    if reason := missing():
        raise RuntimeError(reason)
    found = compare()
    with FILE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADS, *rows(found)])


if __name__ == "__main__":
    main()
