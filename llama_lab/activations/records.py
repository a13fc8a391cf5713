"""The JSON records of a store, declared, and read back as untrusted input."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError
from llama_lab.activations.folder import Folder
from llama_lab.activations.moments import Moments
from llama_lab.activations.shards import LABELS, Size
from llama_lab.activations.spec import DTYPES

SEALED = "record_sha256"
SEAL = b', "record_sha256": "%s"}\n'
AGAIN = "Remove it, and its unit is done again on resume."
RESTORE = "Bring it back from a copy, or extract into a new folder."
FINISH = "Remove it, and resume the run to have it again."
LABEL_BYTES = sum(dtype.itemsize for dtype in LABELS.values())  # of a row
LARGEST_ROW = 1 << 31  # values of a site that a row may have

Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Number = float | Literal["nan", "inf", "-inf"]


class Numbers(Declared):
    """Moments as JSON: numbers of the shape of a row, or one for all."""

    count: Count
    mean: Number | list[Number] | list[list[Number]]
    m2: Number | list[Number] | list[list[Number]]


def unpacked(numbers: Numbers) -> Moments:
    """Moments back from JSON. Raises ValueError if mean and m2 are not of one shape."""
    moments = Moments(numbers.count, np.array(numbers.mean, np.float64), np.array(numbers.m2, np.float64))
    if moments.mean.shape != moments.m2.shape:
        raise ValueError("mean and m2 do not belong together")
    return moments


def small(row: list[int]) -> list[int]:
    if math.prod(row) > LARGEST_ROW:
        raise ValueError(f"a row has at most {LARGEST_ROW:,} values")
    return row


Summed = dict[str, Annotated[Numbers, AfterValidator(unpacked)]]  # site → Moments
Row = Annotated[list[Annotated[int, Field(ge=0, le=LARGEST_ROW)]], Field(max_length=2), AfterValidator(small)]


class Commit(Declared):
    """A unit's content, written beside its shard; a row of the index."""

    unit: Count
    first: Count  # its first example
    examples: Size
    rows: Size
    tokens: Size  # that the model read
    bytes: Size  # the shard's size
    sha256: Digest  # the shard's
    source_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]  # the examples', empty where nobody hashed them

    @model_validator(mode="after")
    def fits(self) -> Commit:
        if self.rows * LABEL_BYTES > self.bytes:
            raise ValueError(f"{self.rows:,} rows do not fit in {self.bytes:,} bytes")
        return self


class Sealed(Commit):
    """A commit as it lies in its file, with the moments of each site, of its values as they are kept."""

    moments: Summed
    record_sha256: Digest


class Spec(Declared):
    """The part of run.json that says what the columns are."""

    sites: dict[Annotated[str, Field(pattern="^[a-z_]+(:[0-9]{1,4})?$")], Row]
    positions: Literal["all", "last"] | list[int]
    dtype: Literal[DTYPES]


class Run(Declared):
    """run.json, as far as a reader needs it; the rest of a fingerprint is only compared."""

    spec: Spec


class Whole(Declared):
    """complete.json: totals, and hashes of the fingerprint, the plan, all commits' fields and the index."""

    units: Count
    examples: Count
    rows: Count
    tokens: Count
    bytes: Count
    run_sha256: Digest
    commits_sha256: Digest
    index_sha256: Digest | None = None  # of earlier versions: none
    plan_sha256: Digest | None = None  # of earlier versions, and of a source that is read in order: none
    moments: Summed


def shard_name(unit: int) -> str:
    return f"units/{unit // 1000:03d}/{unit:06d}.safetensors"


def commit_name(unit: int) -> str:
    return shard_name(unit).replace(".safetensors", ".json")


def commits(folder: Folder) -> dict[int, Commit]:
    """Unit → commit, in order, of all units whose shard is there in full size: a resumed run does the others again.
    Raises UserError for a damaged commit."""
    sizes = folder.sizes("units/")
    read = {unit: read_commit(folder, unit, Commit) for unit in committed(sizes)}
    return {unit: commit for unit, commit in read.items() if sizes.get(shard_name(unit)) == commit.bytes}


def committed_unit(folder: Folder, unit: int) -> Commit | None:
    """The commit of one unit as `commits` finds it; None if there is none."""
    if folder.size(commit_name(unit)) is None:
        return None
    commit = read_commit(folder, unit, Commit)
    return commit if folder.size(shard_name(unit)) == commit.bytes else None


def committed(names: Mapping[str, int] | Sequence[str]) -> list[int]:
    """Numbers of the units that have a commit among these files, ascending."""
    matches = (re.fullmatch(r"units/\d+/(\d+)\.json", name) for name in names)
    return sorted(unit for match in matches if match and commit_name(unit := int(match[1])) == match[0])


def read_commit(folder: Folder, unit: int, kind: type[Commit] = Sealed) -> Commit:
    """The commit of a unit; as a `Commit` without its moments. Raises UserError when it is damaged or of another
    unit."""
    name = f"{folder.where}/{commit_name(unit)}"
    values = record(folder.read(commit_name(unit)), name, AGAIN, must_be_sealed=True)
    commit = boundary.read(kind, values, name, AGAIN)
    if commit.unit != unit:
        raise UserError(f"{name} is the commit of unit {commit.unit}. {AGAIN}")
    return commit


def sealed(values: Mapping, indent: int | None = None) -> bytes:
    """JSON that ends with the sha256 of everything before it, which reveals even a flipped bit in the last digit of a
    mean. Raises UserError for a record too long to be read back."""
    body = as_json(values, indent)[:-2].rstrip()
    if len(body) + len(SEAL) + 64 > boundary.LIMIT:
        raise UserError(f"A record of {len(body):,} bytes would be too long to be read back; ask for fewer sites.")
    return body + SEAL % hashlib.sha256(body).hexdigest().encode()


def record(content: bytes | None, name: str, remedy: str = "", must_be_sealed: bool = False) -> dict:
    """A JSON object whose seal, if it has one, is right; earlier versions sealed only commits. Raises UserError for
    anything else, and for one that was changed."""
    if content is None:
        raise UserError(f"{name} is missing.")
    values = boundary.read(dict[str, Any], boundary.parse(content, name, remedy), name, remedy)
    if SEALED in values:
        body = content[: -len(SEAL % (b"0" * 64))]
        if content != body + SEAL % hashlib.sha256(body).hexdigest().encode():
            raise UserError(f"{name} has been changed since it was written: its seal does not fit. {remedy}")
    elif must_be_sealed:
        raise UserError(f"{name} has no {SEALED}. {remedy}")
    return values


def plain(commit: Commit) -> dict:
    """A commit's fields without its moments."""
    return commit.model_dump(include=set(Commit.model_fields))


def packed(moments: Moments) -> dict:
    """As JSON, to the last bit: Python writes a float64 so that it reads back the same; others as strings."""

    def numbers(values):
        if np.ndim(values):
            return [numbers(value) for value in values]
        return float(values) if np.isfinite(values) else str(float(values))

    return {"count": int(moments.count), "mean": numbers(moments.mean), "m2": numbers(moments.m2)}


def as_json(value: object, indent: int | None = None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()
