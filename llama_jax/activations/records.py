"""The JSON records of a store: what a unit holds (its commit), read back without trust."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from llama_jax.activations.folder import Folder
from llama_jax.activations.moments import Moments
from llama_jax.errors import UserError

SEAL = b', "record_sha256": "%s"}\n'
AGAIN = "Remove it, and its unit is done again on resume."


@dataclass(frozen=True)
class Commit:
    """What a unit holds, written beside its shard."""

    unit: int
    first: int  # its first example
    examples: int
    rows: int
    tokens: int  # that the model read
    bytes: int  # the shard's size
    sha256: str  # the shard's
    source_sha256: str  # the examples'
    moments: dict[str, Moments] = field(default_factory=dict, compare=False)  # a site, of its values as they are kept


def shard_name(unit: int) -> str:
    return f"units/{unit // 1000:03d}/{unit:06d}.safetensors"


def commit_name(unit: int) -> str:
    return shard_name(unit).replace(".safetensors", ".json")


def commits(folder: Folder) -> dict[int, Commit]:
    """Unit → commit, in order, of all units whose shard is there in full size; without their moments, which
    `read_commit` gives.

    A commit whose shard is missing or cut short is left out, so that a resumed run does the unit again. Raises
    UserError for one that is damaged itself.
    """
    sizes, found = folder.sizes("units/"), {}
    for unit in committed(sizes):
        commit = read_commit(folder, unit, moments=False)
        if sizes.get(shard_name(unit)) == commit.bytes:
            found[unit] = commit
    return found


def committed(names: Mapping[str, int] | Sequence[str]) -> list[int]:
    """Numbers of the units that have a commit among these files, ascending."""
    matches = (re.fullmatch(r"units/\d+/(\d+)\.json", name) for name in names)
    return sorted(unit for match in matches if match and commit_name(unit := int(match[1])) == match[0])


def read_commit(folder: Folder, unit: int, moments: bool = True) -> Commit:
    """Raises UserError when it is not there, no JSON, changed, lacks a field or belongs to another unit."""
    name = f"{folder.where}/{commit_name(unit)}"
    values = unsealed(folder.read(commit_name(unit)), name)
    try:
        commit = Commit(**{f.name: checked(f.name, values[f.name]) for f in fields(Commit) if f.name != "moments"})
        found = {site: unpacked(one) for site, one in values["moments"].items()} if moments else {}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{name} is no valid commit: {what}. {AGAIN}") from error
    if commit.unit != unit:
        raise UserError(f"{name} is the commit of unit {commit.unit}. {AGAIN}")
    return Commit(**plain(commit), moments=found)


def checked(name: str, value: object) -> object:
    """A field of a commit: a hash, or a whole number."""
    valid = isinstance(value, str) if name.endswith("sha256") else type(value) is int and value >= 0
    if not valid:
        raise ValueError(f"{name} is {short(value)}")
    return value


def sealed(values: Mapping) -> bytes:
    """JSON that ends with the sha256 of all before it: a bit that flips in a commit is noticed too, in the last digit
    of a mean."""
    body = as_json(values)[:-2]
    return body + SEAL % hashlib.sha256(body).hexdigest().encode()


def unsealed(content: bytes | None, name: str) -> dict:
    """Back from `sealed`. Raises UserError when it is missing, no JSON, or changed."""
    values = record(content, name)
    body = content[: -len(SEAL % (b"0" * 64))]
    if content != body + SEAL % hashlib.sha256(body).hexdigest().encode():
        raise UserError(f"{name} has been changed since it was written: its seal does not fit. {AGAIN}")
    return values


def plain(commit: Commit) -> dict:
    """A commit's fields without its moments."""
    return {f.name: getattr(commit, f.name) for f in fields(Commit) if f.name != "moments"}


def packed(moments: Moments) -> dict:
    """As JSON, to the last bit: Python writes a float64 so that it reads back the same; what is not finite as a
    string."""

    def numbers(values: np.ndarray):
        return (
            [numbers(v) for v in values]
            if np.ndim(values)
            else float(values)
            if np.isfinite(values)
            else str(float(values))
        )

    return {
        "count": int(moments.count),
        "mean": numbers(np.asarray(moments.mean, np.float64)),
        "m2": numbers(np.asarray(moments.m2, np.float64)),
    }


def unpacked(values: Mapping) -> Moments:
    """Back from JSON. Raises KeyError, TypeError or ValueError for what is none."""
    moments = Moments(values["count"], *(np.array(values[name], np.float64) for name in ("mean", "m2")))
    if type(moments.count) is not int or moments.count < 0 or moments.mean.shape != moments.m2.shape:
        raise ValueError("its moments do not belong together")
    return moments


def short(value: object, most: int = 40) -> str:
    text = "absent" if value is ... else json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def record(content: bytes | None, name: str) -> dict:
    """A JSON object. Raises UserError when the file is missing or holds none."""
    if content is None:
        raise UserError(f"{name} is missing.")
    try:
        values = json.loads(content)
    except ValueError as error:
        raise UserError(f"{name} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{name} is not a JSON object.")
    return values


def as_json(value: object, indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()
