"""Is every file of a store what was written? All of them are read again, and each problem names its file."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import moments, records, shards, store
from llama_lab.activations.folder import Folder, open_folder
from llama_lab.activations.moments import Moments, merge
from llama_lab.activations.plan import read_plan
from llama_lab.activations.records import Commit, Sealed, Whole, commit_name, shard_name
from llama_lab.activations.store import COMPLETE, INDEX, PLAN, RUN

T = TypeVar("T")
PIECE = 1 << 24  # bytes hashed at a time, and bytes of float64 that moments are computed of at a time
NEAR = 1e-3  # the model sums in float32: its moments are this close to those computed here


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file; `file` is its name in the store's folder."""

    file: str
    reason: str


class Check(NamedTuple):
    """units, rows: of the commits that could be read."""

    units: int
    rows: int
    problems: list[Problem]


def verify(out: str | os.PathLike) -> list[Problem]:
    """Every problem of the store in a folder or behind a URL; an empty list if there is none.

    Found are: a flipped bit or a truncated, missing or foreign shard; a shard without a commit and a commit without its
    shard; gaps between units, examples and rows; damaged records, a changed fingerprint, moments that are not those of
    the values; an index that says otherwise; temporary files of killed writers; and a run that has not finished
    (complete.json is missing).
    Raises UserError if there is no store at all, or it cannot be read.
    """
    return check(open_folder(out)).problems


def check(folder: Folder) -> Check:
    """See `verify`."""
    sizes, problems = folder.sizes(), []
    if not any(name in (RUN, COMPLETE) or name.startswith("units/") for name in sizes):
        raise store.no_store(folder)
    attempt = partial(attempted, folder, problems)
    run = attempt(RUN, store.read_run, folder)
    spec, units, merged = run and run["spec"], [], {}
    for unit in records.committed(sizes):
        if (commit := attempt(commit_name(unit), records.read_commit, folder, unit)) is None:
            continue
        units.append(Commit(**records.plain(commit)))  # without its moments: there may be many units
        shard = attempt(shard_name(unit), shard_problems, folder, commit, sizes, spec)
        problems += [Problem(shard_name(unit), reason) for reason in shard or ()]
        if shard == [] and spec:
            problems += [Problem(commit_name(unit), reason) for reason in moment_problems(folder, commit, spec)]
        for site, summed in commit.moments.items():
            before = merged.get(site, summed)
            if before.mean.shape == summed.mean.shape:  # if not, it is among the problems already
                merged[site] = merge(before, summed) if site in merged else summed
    problems += [*name_problems(folder, sizes), *sequence_problems(units)]
    whole = attempt(COMPLETE, store.read_whole, folder, missing="missing: the run has not finished; resume it")
    planned = PLAN in sizes or (whole is not None and whole.plan_sha256 is not None)
    plan = attempt(PLAN, read_plan, folder) if planned else None
    for name, known in ((RUN, run), (COMPLETE, whole)):
        if known is not None and records.SEALED not in records.record(folder.read(name), name):
            problems.append(Problem(name, "has no seal: an earlier version wrote it; a flipped bit may stay unseen"))
    if whole is not None:
        for name, known, sha256 in ((RUN, run, whole.run_sha256), (PLAN, plan, whole.plan_sha256)):
            if known is not None and sha256 != store.digest_of(folder, name):
                problems.append(Problem(name, "changed since the run finished"))
        problems += total_problems(folder, whole, units, merged)
        index = attempt(INDEX, index_problems, folder, whole, units)
        problems += [Problem(INDEX, f"{reason}; `store.rebuild_index` makes it again") for reason in index or ()]
    return Check(len(units), sum(c.rows for c in units), problems)


def attempted(
    folder: Folder, problems: list[Problem], name: str, read: Callable[..., T | None], *given, missing: str = "missing"
) -> T | None:
    """The result of `read`. None, or a UserError, is a problem of this file."""
    try:
        if (value := read(*given)) is None:
            problems.append(Problem(name, missing))
        return value
    except UserError as error:
        reason = re.sub(rf"^(Cannot read )?{re.escape(folder.where)}/{re.escape(name)}[:,]? ?(is )?", "", str(error))
        problems.append(Problem(name, reason.rstrip(".")))
        return None


def shard_problems(folder: Folder, commit: Commit, sizes: Mapping[str, int], spec: Mapping | None) -> list[str]:
    """Missing, truncated, changed; another dtype, shape or site; labels out of order. The first is enough."""
    name = shard_name(commit.unit)
    if name not in sizes:
        return ["missing, although its unit is committed"]
    if (size := sizes[name]) != commit.bytes:
        kind = "truncated" if size < commit.bytes else "too long"
        return [f"{kind}: {size:,} bytes, {commit.bytes:,} were committed"]
    digest = hashlib.sha256()
    for start in range(0, size, PIECE):
        digest.update(folder.part(name, start, min(start + PIECE, size)))
    if digest.hexdigest() != commit.sha256:
        return ["changed since it was committed: its sha256 is another"]
    tensors = shards.read_header(folder, name)
    different = list(shards.unlike(tensors, commit.rows, spec)) if spec else []
    if different or not set(shards.LABELS) <= tensors.keys():
        return different
    labels = {label: shards.read(folder, name, tensors[label], 0, commit.rows) for label in shards.LABELS}
    return list(label_problems(labels, commit))


def label_problems(labels: Mapping[str, np.ndarray], commit: Commit) -> Iterator[str]:
    """Examples are the unit's, and rows in order of example, segment, position, each once."""
    example = labels["example"]
    if example.size and not commit.first <= example.min() <= example.max() < commit.first + commit.examples:
        yield (
            f"it has rows of examples {example.min()} to {example.max()}; the commit has {commit.examples} from"
            f" {commit.first} on"
        )
    if any(labels[name].size and labels[name].min() < 0 for name in labels):
        yield "it has a negative token, segment or position"
    after = np.zeros(max(len(example) - 1, 0), bool)
    for name in ("position", "segment", "example"):
        step = np.diff(labels[name])
        after = (step > 0) | ((step == 0) & after)
    if not after.all():
        yield f"row {1 + int(np.argmin(after))} does not come after the one before it (example, segment, position)"


def moment_problems(folder: Folder, commit: Sealed, spec: Mapping) -> Iterator[str]:
    """The commit's mean and M2, computed again from the values of an intact shard."""
    name = shard_name(commit.unit)
    if (commit.rows and set(commit.moments) != set(spec["sites"])) or not set(commit.moments) <= set(spec["sites"]):
        yield f"it has moments of {', '.join(sorted(commit.moments)) or 'nothing'}, not of the run's sites"
        return
    tensors = shards.read_header(folder, name)
    for site, stored in commit.moments.items():
        shape = tensors[site].shape[1:]
        pooled = stored.mean.ndim == 0 and shape != ()
        if not pooled and stored.mean.shape != shape:
            yield f"its moments of {site} are {list(stored.mean.shape)}, its values {list(shape)}"
        elif not same(stored, recomputed(folder, name, tensors[site], pooled)):
            yield f"its moments of {site} are not those of the values"


def recomputed(folder: Folder, name: str, tensor: shards.Tensor, pooled: bool) -> Moments:
    """Moments of a tensor over its rows, or over all its values, a piece at a time."""
    shape = () if pooled else tensor.shape[1:]
    summed = Moments(0, np.zeros(shape), np.zeros(shape))
    rows = max(1, PIECE // max(1, 8 * math.prod(tensor.shape[1:])))
    for start in range(0, tensor.shape[0], rows):
        values = shards.read(folder, name, tensor, start, min(start + rows, tensor.shape[0]))
        summed = merge(summed, moments.of(values, None if pooled else 0))
    return summed


def same(stored: Moments, computed: Moments) -> bool:
    """Equal except for the rounding of float32 sums, which grows with the size of the values."""
    if stored.count != computed.count:
        return False
    if not stored.count:
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.sqrt(computed.m2 / computed.count + computed.mean**2)
        mean = np.abs(stored.mean - computed.mean) <= NEAR * scale + 1e-36
        room = NEAR * computed.m2 + computed.count * ((0.1 * NEAR * scale) ** 2 + 1e-36)
        m2 = np.abs(stored.m2 - computed.m2) <= room
    unbounded = ~np.isfinite(computed.m2) & ~np.isfinite(stored.m2)
    return bool(((mean & m2) | unbounded).all())


def name_problems(folder: Folder, sizes: Mapping[str, int]) -> Iterator[Problem]:
    """Temporary files, shards without a commit, and what else does not belong among the units."""
    for name in folder.leftovers():
        yield Problem(name, "a temporary file that a killed writer left; nothing needs it")
    for name in sizes:
        if not name.startswith("units/"):
            continue
        match = re.fullmatch(r"units/\d+/(\d+)\.(json|safetensors)", name)
        if not match or name not in (commit_name(int(match[1])), shard_name(int(match[1]))):
            yield Problem(name, "not a file of a store")
        elif match[2] == "safetensors" and commit_name(int(match[1])) not in sizes:
            yield Problem(name, f"has no commit: {commit_name(int(match[1]))} is missing")


def sequence_problems(units: Sequence[Commit]) -> Iterator[Problem]:
    """Units from 0 on without a gap, the examples of each following those of the one before."""
    unit = first = 0
    for commit in units:
        if unit < commit.unit:
            yield absent(unit, commit.unit, "later units are committed")
        elif commit.first != first:
            yield Problem(commit_name(commit.unit), f"begins at example {commit.first}; {first} should follow")
        unit, first = commit.unit + 1, commit.first + commit.examples


def absent(unit: int, end: int, why: str) -> Problem:
    """Units from one to another are missing; one problem, however many they are."""
    more = f", and {end - unit - 1:,} more after it" if end > unit + 1 else ""
    return Problem(commit_name(unit), f"missing{more}, although {why}")


def total_problems(
    folder: Folder, whole: Whole, units: Sequence[Commit], merged: Mapping[str, Moments]
) -> Iterator[Problem]:
    expected, written = store.summary(units, merged), records.record(folder.read(COMPLETE), COMPLETE)
    after = units[-1].unit + 1 if units else 0
    if after < whole.units:
        yield absent(after, whole.units, f"{COMPLETE} counts {whole.units:,} units")
    if different := [name for name in expected if written[name] != expected[name]]:
        yield Problem(COMPLETE, f"contradicts the commits: {', '.join(different)}")


def index_problems(folder: Folder, whole: Whole, units: Sequence[Commit]) -> list[str] | None:
    """What is wrong with the index, None if there is none. Its own digest covers what no table shows."""
    if (content := folder.read(INDEX, store.LONGEST_INDEX)) is None:
        return None
    if whole.index_sha256 is None:
        return [f"an earlier version wrote it, and {COMPLETE} has no digest of it"]
    if hashlib.sha256(content).hexdigest() != whole.index_sha256:
        return ["changed since the run finished: its sha256 is another"]
    try:
        same = store.read_index(content).equals(store.index_table(units))
    except (pa.ArrowException, OSError, ValueError) as error:
        return [f"no parquet file that can be read: {' '.join(str(error).split())}"]
    return [] if same else ["contradicts the commits"]
