"""Small stores for the tests: units of random rows, written as a run writes them. And what many tests look at."""

import re
from pathlib import Path

import numpy as np
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import moments, shards, store
from llama_lab.activations.folder import open_folder
from llama_lab.activations.shards import LABELS, kept_as
from llama_lab.activations.spec import ActivationSpec

SHAPES = {"resid_post:0": (4,), "q:1": (2, 3), "logits": (5,)}
ROWS = (7, 0, 12, 5, 1)  # of each unit; the second has examples, but none of their tokens is kept
EXAMPLES = 3  # a unit


def fingerprint(dtype="bfloat16", shapes=SHAPES):
    spec = ActivationSpec(" ".join(shapes), dtype=dtype)
    return {
        "model": {"name": "tiny", "weights_hash": "ab" * 32},
        "spec": store.describe(spec, shapes),
        "unit": EXAMPLES,
    }


def unit(number, rows, dtype="bfloat16", shapes=SHAPES, seed=0):
    """(tensors, about, moments) as `write_unit` takes them."""
    rng = np.random.default_rng((seed, number))
    values = {site: rng.normal(1, 2, (rows, *shape)).astype(kept_as(dtype)) for site, shape in shapes.items()}
    example = np.sort(rng.integers(0, EXAMPLES, rows)) + number * EXAMPLES
    labels = {
        "token": rng.integers(0, 97, rows),
        "example": example,
        "segment": np.zeros(rows, int),
        "position": np.arange(rows),
    }
    found = {site: moments.of(value, None if site == "logits" else 0) for site, value in values.items() if rows}
    about = {"first": number * EXAMPLES, "examples": EXAMPLES, "tokens": rows + 2, "source_sha256": f"{number:064x}"}
    return values | {name: labels[name].astype(kind) for name, kind in LABELS.items()}, about, found


def write(out, rows=ROWS, dtype="bfloat16", finish=True, skip=(), claim=True):
    """A store of units with so many rows each; its columns as plain arrays."""
    folder = open_folder(out)
    if claim:
        store.claim(folder, fingerprint(dtype), resume=True)
    units = [unit(number, n, dtype) for number, n in enumerate(rows)]
    for number, (tensors, about, found) in enumerate(units):
        if number not in skip:
            store.write_unit(folder, number, tensors, about, found)
    if finish:
        store.finish(folder)
    written = [tensors for number, (tensors, _, _) in enumerate(units) if number not in skip]
    return {name: np.concatenate([tensors[name] for tensors in written]) for name in (*SHAPES, *LABELS)}


def same_bits(a, b):
    """Equal to the last bit, NaNs included."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def read_all(folder, name):
    """Every tensor of a shard."""
    return {
        column: shards.read(folder, name, t, 0, t.shape[0]) for column, t in shards.read_header(folder, name).items()
    }


def content(folder):
    """Every file of a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def says(*words):
    """pytest.raises for a UserError of one line with these words in this order."""
    return pytest.raises(UserError, match="^" + ".*".join(r"[^\n]*" + re.escape(w) for w in words) + r"[^\n]*$")
