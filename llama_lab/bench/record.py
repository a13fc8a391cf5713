"""Records: one row per trial, with every token's time, and a meta document that says where they came from.

The file keeps each block's bandwidth probe. Rows that are read back have the bandwidth of their run, the largest of its
probes (`roofline.of_runs`), and the meta has the probes' spread.
A table is CSV (meta in `NAME.meta.json` beside it), Parquet (meta in the file's own metadata) or JSONL (meta in the
first line); `write` and `read` go by the suffix. The meta holds a digest of itself, and one of a CSV file; a line of
JSONL has its own. A table that was changed since it was written is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
from pydantic import Field, NonNegativeInt

from llama_jax.plumbing import boundary, files
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import SCHEMA, roofline
from llama_lab.bench.provenance import Code
from llama_lab.bench.rows import LARGEST, NAN, Compiled, Row, Run, Trial, fields_of  # noqa: F401 (asked for here)
from llama_lab.bench.seal import ROW, SEAL, digest, sealed, sealed_row

PARQUET_KEY = b"llama_jax"
LONGEST = 1 << 30  # bytes of a table
AGAIN = "Measure again."


class About(boundary.Declared):
    """Fields of every meta document."""

    schema_version: int
    created: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    kind: str = Field("Trial", max_length=60)
    sha256: str | None = None  # of the CSV file beside it
    code: Code | None = None  # that its times depend on; tables recorded before this was kept do not say


class Gap(boundary.Declared):
    """A subject that could not be measured."""

    name: str
    reason: str
    remedy: str


class Note(boundary.Declared):
    """A journal's information about a run, beside its trials."""

    process: NonNegativeInt = 0
    missing: Gap | None = None


def describe(**meta) -> dict:
    """The meta document of a table: schema, time, and the given fields."""
    return {"schema_version": SCHEMA, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **meta}


def write(path: Path, trials: Iterable[Row], kind: type[Row] = Trial, **meta) -> Path:
    """Write a table and its meta, each in one piece or not at all. Raises UserError for a suffix that is no table's."""
    import pandas as pd  # here, so that measured processes need not wait for it

    path, trials = Path(path), list(trials)
    rows = [t.model_dump() for t in trials]
    about = describe(kind=kind.__name__, **meta)
    if "bandwidth_gbps" in kind.model_fields:
        about["bandwidth_gbps"] = roofline.spread(trials)
    if path.suffix == ".csv":
        frame = pd.DataFrame(rows, columns=list(kind.model_fields))
        for name in fields_of(kind, list[int]):
            frame[name] = [" ".join(map(str, values)) for values in frame[name]]
        text = frame.to_csv(index=False, lineterminator="\n")
        about["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        files.write_together({path: text, meta_path(path): json.dumps(sealed(about), indent=1, sort_keys=True) + "\n"})
    elif path.suffix == ".jsonl":
        lines = [json.dumps({"meta": sealed(about)}, sort_keys=True), *map(sealed_row, rows)]
        files.write(path, "".join(line + "\n" for line in lines))
    elif path.suffix == ".parquet":
        files.write(path, as_parquet(rows, about, kind))
    else:
        raise UserError(f"{path}: a table is written as .csv, .parquet or .jsonl.")
    return path


def as_parquet(rows: list[dict], about: dict, kind: type[Row] = Trial) -> bytes:
    """One row per trial, token times as a list; the meta under the schema's `llama_jax` key."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({name: [] for name in kind.model_fields})
    meta = {PARQUET_KEY: json.dumps(sealed(about), sort_keys=True).encode()}
    buffer = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata(meta), buffer, write_page_checksum=True)
    return buffer.getvalue()


def meta_path(path: Path) -> Path:
    return path.with_suffix(".meta.json")


def read(
    path: Path, skip_corrupt: bool = False, kind: type[Row] = Trial, as_probed: bool = False
) -> tuple[list[Row], dict]:
    """Rows and meta of a table. as_probed: keep each row's own probe, to be written again.

    Raises UserError when it is missing, changed since it was written, has another schema, or (JSONL) has lines that are
    not records; the message gives their numbers, and `skip_corrupt` skips them.
    """
    path = Path(path)
    readers = {".csv": read_csv, ".jsonl": partial(read_jsonl, skip_corrupt=skip_corrupt), ".parquet": read_parquet}
    if path.suffix not in readers:
        raise UserError(f"{path} is not a table: its name must end in .csv, .parquet or .jsonl.")
    try:
        rows, about, *_ = readers[path.suffix](path, kind=kind)
    except FileNotFoundError as error:
        raise UserError(f"No recorded data at {error.filename}; measure first (`llama-jax run --measure`).") from None
    return rows if as_probed or "bandwidth_gbps" not in kind.model_fields else roofline.of_runs(rows), about


def read_meta(path: Path) -> dict:
    """The meta of a CSV table. Raises UserError if it is damaged, FileNotFoundError for none."""
    where = meta_path(path)
    return checked(boundary.parse(boundary.content(where), str(where), AGAIN, nan=True), str(where))


def checked(about: object, where: str) -> dict:
    """A meta document. Raises UserError for anything else, and for one that was changed."""
    about = boundary.read(dict[str, Any], about, where, AGAIN)
    if about.get(SEAL) != digest(about):
        raise UserError(f"{where} is not as it was written (its digest of itself differs). {AGAIN}")
    boundary.read(About, about, where, AGAIN)
    return about


def check_schema(path: Path, about: dict, kind: type[Row]) -> None:
    """Raises UserError for a table of another version, or of another kind of row."""
    if (held := about.get("kind", Trial.__name__)) != kind.__name__:
        wrong = f"{path} holds rows of the kind {held}, not {kind.__name__}"
        raise UserError(f"{wrong}; it belongs to another notebook or command.")
    if about["schema_version"] != SCHEMA:
        raise UserError(f"{path} has schema {about['schema_version']}, this version reads {SCHEMA}; measure again.")


def rows_of(kind: type[Row], values: Iterable[dict], path: Path, strict: bool) -> list[Row]:
    """The rows of a table. strict: values have their types already. Raises UserError, naming row and field."""
    rows = []
    try:
        rows.extend(kind.model_validate(row, strict=strict) for row in values)
    except pydantic.ValidationError as error:
        raise UserError(boundary.complaint(error, f"{path}, row {len(rows) + 1}", AGAIN)) from None
    return rows


def read_csv(path: Path, kind: type[Row]) -> tuple[list[Row], dict]:
    import pandas as pd

    raw, about = boundary.content(path, LONGEST), read_meta(path)
    if hashlib.sha256(raw).hexdigest() != about.get("sha256"):
        described = f"the table that {meta_path(path).name} describes"
        raise UserError(f"{path} is not {described} (its SHA-256 differs); measure again.")
    check_schema(path, about, kind)
    try:
        rows = pd.read_csv(io.BytesIO(raw), keep_default_na=False, dtype=str).to_dict("records")
    except ValueError as error:  # pandas' own error is one
        raise UserError(f"{path} is not a table: {' '.join(str(error).split())[:200]}. {AGAIN}") from None
    lists, texts = fields_of(kind, list[int]), fields_of(kind, str)  # an empty cell is an empty text in these
    for row in rows:
        row |= {name: None for name, value in row.items() if value == "" and name not in texts}
        row |= {name: str(row[name] or "").split() for name in lists if name in row}
    return rows_of(kind, rows, path, strict=False), about


def read_parquet(path: Path, kind: type[Row]) -> tuple[list[Row], dict]:
    import pyarrow
    from pyarrow import parquet

    content = pyarrow.BufferReader(boundary.content(path, LONGEST))
    try:
        with parquet.ParquetFile(content, pre_buffer=False, page_checksum_verification=True) as file:
            about, rows = file.schema_arrow.metadata[PARQUET_KEY], file.read(use_threads=False).to_pylist()
    except Exception:  # whatever Arrow says of damaged bytes
        raise UserError(f"{path} is not a Parquet table of trials; it may be cut short. {AGAIN}") from None
    about = checked(boundary.parse(about, str(path), AGAIN, nan=True), str(path))
    check_schema(path, about, kind)
    return rows_of(kind, rows, path, strict=True), about


def read_jsonl(
    path: Path, skip_corrupt: bool = False, kind: type[Row] = Trial, whole: bool = False
) -> tuple[list[Row], dict, list[int]]:
    """(rows, meta, numbers of the skipped lines). The first line holds the meta; a last line without its end is torn. A
    changed row counts as unreadable, and so does, in a `whole` file, a row without a digest."""
    first, *lines = boundary.content(path, LONGEST).splitlines(keepends=True) or [b""]
    if not first.startswith(b'{"meta": ') or not first.endswith(b"\n"):
        raise UserError(f"{path}: line 1 does not say what the file holds; it is not a table of trials.")
    where = f"{path}, line 1"
    about = checked(boundary.parse(first, where, AGAIN, nan=True)["meta"], where)
    check_schema(path, about, kind)
    trials, bad, edited = [], [], []
    for number, line in enumerate(lines, 2):
        try:
            document = boundary.parse(line if line.endswith(b"\n") else b"", f"{path}, line {number}", nan=True)
            if isinstance(document, dict) and "note" in document:
                Note.model_validate(document["note"])
                about.setdefault("notes", []).append(document["note"])
                continue
            if isinstance(document, dict) and (whole or ROW in document):
                if document.get(ROW) != digest(document, ROW):
                    edited.append(number)
                    continue
                del document[ROW]
            trials.append(kind.model_validate(document, strict=True))
        except (UserError, pydantic.ValidationError):
            bad.append(number)
    for numbers, what in ((bad, "cannot be read"), (edited, "changed since it was written")):
        if numbers and not skip_corrupt:
            named = ", ".join(map(str, numbers[:10])) + (" …" if len(numbers) > 10 else "")
            remedy = "" if whole else "; skip_corrupt (--skip-corrupt) leaves them out"
            raise UserError(f"{path}: {'line' if len(numbers) == 1 else 'lines'} {named} {what}{remedy}.")
    return trials, about, sorted(bad + edited)
