"""Writing a store: shards of rows, one commit per unit, and at the end a record of the whole.

    OUT/run.json                        fingerprint: all that decides the values
    OUT/plan.json                       where each unit begins in the source (`plan`)
    OUT/units/000/000012.safetensors    a unit's rows: each site [rows ...], token, example, segment, position [rows]
    OUT/units/000/000012.json           its commit, written once the shard is on the disk
    OUT/complete.json                   written once every unit is committed
    OUT/index.parquet                   one row per unit; derived, `rebuild_index` makes it again

Nothing in these files distinguishes two runs of the same fingerprint: no time, no host, no process. A unit without a
commit does not exist; a shard without one is overwritten when the unit is done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import records, shards
from llama_lab.activations.folder import Folder
from llama_lab.activations.moments import Moments, joined
from llama_lab.activations.records import Commit, Whole, commit_name, commits, packed, plain, sealed, shard_name
from llama_lab.activations.spec import ActivationSpec, Site

RUN, PLAN, COMPLETE, INDEX = "run.json", "plan.json", "complete.json", "index.parquet"
NUMBERS = ("unit", "first", "examples", "rows", "tokens", "bytes")
SHOWN = 4  # differing fields that a refusal spells out
LONGEST_INDEX = 256 << 20  # bytes: more than a million units


def describe(spec: ActivationSpec, row_shapes: Mapping[str, Sequence[int]]) -> dict:
    """The field `spec` of a fingerprint, from which a store's columns are known."""
    positions = spec.positions if isinstance(spec.positions, str) else list(spec.positions)
    sites = {site: list(shape) for site, shape in row_shapes.items()}
    return {"sites": sites, "positions": positions, "dtype": spec.dtype}


def spec_of(run: Mapping) -> ActivationSpec:
    spec = run["spec"]
    sites = [name.partition(":") for name in spec["sites"]]
    pairs = tuple(Site(name, int(layer) if layer else None) for name, _, layer in sites)
    return ActivationSpec(pairs, spec["positions"], spec["dtype"])


def read_run(folder: Folder) -> dict | None:
    """The fingerprint, None if there is none. Raises UserError when it is damaged or describes no store."""
    if (run := fields(folder, RUN, records.RESTORE)) is None:
        return None
    name = f"{folder.where}/{RUN}"
    boundary.read(records.Run, run, name, records.RESTORE)
    try:
        spec_of(run)
    except UserError as error:
        raise UserError(f"{name} does not describe a store: {error} {records.RESTORE}") from None
    return run


def no_store(folder: Folder) -> UserError:
    why = f"There are no activations in {folder.where}: it has no {RUN}."
    return UserError(f"{why} `llama-jax extract --out` makes such a folder.")


def fields(folder: Folder, name: str, remedy: str) -> dict | None:
    """A record without its seal, None if there is none. Raises UserError when it is damaged."""
    if (content := folder.read(name)) is None:
        return None
    values = records.record(content, f"{folder.where}/{name}", remedy)
    values.pop(records.SEALED, None)
    return values


def read_whole(folder: Folder) -> Whole | None:
    """What complete.json says, None if there is none. Raises UserError when it is damaged."""
    whole = fields(folder, COMPLETE, records.FINISH)
    return None if whole is None else boundary.read(Whole, whole, f"{folder.where}/{COMPLETE}", records.FINISH)


def claim(folder: Folder, fingerprint: dict, resume: bool) -> None:
    """Claim the folder for this run: write run.json, or find the same one. If several do so at once, one writes it.

    fingerprint: JSON values, with `spec` as `describe` gives it. Raises UserError if there is a run and `resume` is
    off, if it is another run, naming the fields that differ, and if there are units but no run.json.
    """
    wanted = json.loads(json.dumps(fingerprint))
    spec_of(wanted)
    if folder.read(RUN) is None:
        if folder.names("units/") and folder.read(RUN) is None:
            raise UserError(f"{folder.where} holds units but no {RUN} that says whose. Choose another folder.")
        resume = folder.create(RUN, sealed(wanted, indent=2)) or resume
    if (present := fields(folder, RUN, records.RESTORE)) is None:  # removed since
        raise UserError(f"{folder.where}/{RUN} is missing. {records.RESTORE}")
    if different := list(differences(present, wanted)):
        more = f", and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
        which = "; ".join(different[:SHOWN]) + more
        raise UserError(f"{folder.where} holds another run: {which}. Choose another folder.")
    if not resume:
        raise UserError(
            f"{folder.where} already holds this run. Leave out --no-resume (resume=False) to resume it, or choose"
            " another folder."
        )


def differences(there: object, here: object, path: str = "") -> Iterator[str]:
    """`spec.dtype is "bfloat16" there, "float32" here`, for each field that differs."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in [*there, *(key for key in here if key not in there)]:
            yield from differences(there.get(key, ...), here.get(key, ...), f"{path}.{key}" if path else str(key))
    elif there != here or type(there) is not type(here):
        yield f"{path} is {short(there)} there, {short(here)} here"


def short(value: object, most: int = 40) -> str:
    text = "absent" if value is ... else json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def write_unit(
    folder: Folder, unit: int, tensors: Mapping[str, np.ndarray], about: Mapping, moments: Mapping[str, Moments]
) -> Commit:
    """Write a unit's shard and, once that is on the disk, its commit.

    tensors: each site [rows ...] and token, example, segment, position [rows]. about: first, examples, tokens,
    source_sha256.
    moments: of each site, per feature or one for all; a unit without rows needs none.
    Raises UserError when it cannot be written; the unit then does not exist.
    """
    sites = set(tensors) - set(shards.LABELS)
    if len(sites) + len(shards.LABELS) != len(tensors) or (set(moments) != sites and len(tensors["token"])):
        raise ValueError(f"tensors {sorted(tensors)} and moments {sorted(moments)} do not belong together")
    tensors = {**tensors, **{name: np.asarray(tensors[name], dtype) for name, dtype in shards.LABELS.items()}}
    content = shards.serialise(tensors)
    digest, size = hashlib.sha256(), sum(buffer.nbytes for buffer in content)
    for buffer in content:
        digest.update(buffer)
    commit = Commit(
        unit=unit,
        first=int(about["first"]),
        examples=int(about["examples"]),
        rows=len(tensors["token"]),
        tokens=int(about["tokens"]),
        bytes=size,
        sha256=digest.hexdigest(),
        source_sha256=about["source_sha256"],
    )
    # before the shard is written: it may be refused
    entry = sealed(plain(commit) | {"moments": {site: packed(moments[site]) for site in sorted(moments)}})
    folder.write(shard_name(unit), content)
    folder.write(commit_name(unit), entry)
    return commit


def finish(folder: Folder, units: int | None = None) -> dict:
    """Write index.parquet, then complete.json, and return its content. Doing it again changes nothing.

    units: how many the source has; as many as are committed when None. Raises UserError when one of them is not
    committed, when there are more, or when their examples do not follow each other.
    """
    committed = commits(folder)
    count = len(committed) if units is None else units
    if missing := [unit for unit in range(count) if unit not in committed]:
        more = f", of {len(missing):,} that are missing" if missing[1:] else ""
        raise UserError(f"{folder.where} is not complete: unit {missing[0]} is not committed{more}. Resume it.")
    if extra := [unit for unit in committed if unit >= count]:
        raise UserError(f"{folder.where} holds unit {extra[0]}, but the source has {count} units: it has changed.")
    first, merged = 0, {}  # a unit without rows may have no moments
    for unit in committed:
        commit = records.read_commit(folder, unit)
        if commit.first != first:
            name = f"{folder.where}/{commit_name(unit)}"
            raise UserError(f"{name} begins at example {commit.first}; {first} should follow.")
        first += commit.examples
        merged = joined(merged, commit.moments)
    done = list(committed.values())
    index = write_index(folder, done)
    whole = summary(done, merged) | {"run_sha256": digest_of(folder, RUN), "index_sha256": index}
    whole |= {"plan_sha256": digest_of(folder, PLAN)}
    folder.write(COMPLETE, sealed(whole))
    return whole


def summary(units: Sequence[Commit], merged: Mapping[str, Moments]) -> dict:
    """What complete.json says of the units: totals, a hash of all commits' fields, moments."""
    totals = {name: sum(getattr(c, name) for c in units) for name in ("examples", "rows", "tokens", "bytes")}
    digest = hashlib.sha256(records.as_json([plain(c) for c in units])).hexdigest()
    moments = {site: packed(merged[site]) for site in merged}
    return {"units": len(units), **totals, "commits_sha256": digest, "moments": moments}


def digest_of(folder: Folder, name: str) -> str | None:
    """sha256 of a file, None if there is none."""
    content = folder.read(name)
    return content and hashlib.sha256(content).hexdigest()


def rebuild_index(folder: Folder) -> None:
    """Make index.parquet again from the commits; complete.json, where it is, gets its new digest."""
    digest = write_index(folder, list(commits(folder).values()))
    if read_whole(folder):
        folder.write(COMPLETE, sealed(fields(folder, COMPLETE, records.FINISH) | {"index_sha256": digest}))


def write_index(folder: Folder, units: Sequence[Commit]) -> str:
    sink = pa.BufferOutputStream()
    pq.write_table(index_table(units), sink)
    content = sink.getvalue().to_pybytes()
    folder.write(INDEX, content)
    return hashlib.sha256(content).hexdigest()


def read_index(content: bytes) -> pa.Table:
    """The table of an index whose digest has been verified; unverified bytes never reach the parser. Raises
    ArrowException, OSError or ValueError.

    It is read in this thread: a thread of `pyarrow.parquet.read_table` may release the file while Python is exiting,
    which aborts the process.
    """
    with pq.ParquetFile(pa.BufferReader(content), pre_buffer=False) as file:
        return file.read(use_threads=False)


def index_table(units: Sequence[Commit]) -> pa.Table:
    """One row per unit: the fields of its commit, the number of its first row in the store, its shard's name."""
    kinds = dict.fromkeys(NUMBERS, pa.int64()) | dict.fromkeys(("sha256", "source_sha256"), pa.string())
    columns = {name: pa.array([getattr(c, name) for c in units], kind) for name, kind in kinds.items()}
    columns["first_row"] = pa.array(np.cumsum([0] + [c.rows for c in units])[:-1], pa.int64())
    columns["file"] = pa.array([shard_name(c.unit) for c in units], pa.string())
    return pa.table(columns)
