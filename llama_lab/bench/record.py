"""Records: one row a trial, with every token's time, and a meta document that says where they came from.

Only what was seen is stored. Rates, percentiles and ratios are derived by the functions here, the same way everywhere.
The file keeps what the probe before each block read; rows that are read have the bandwidth of their run, which is the
most that any of its probes read (`roofline.of_runs`), and the meta says how far they spread.
A table is CSV (meta in `NAME.meta.json` beside it), Parquet (meta in the file's own metadata) or JSONL (meta in the
first line); `write` and `read` go by the suffix. The meta holds a digest of itself, and of a CSV file another; a line
of JSONL has its own. What has changed since it was written is refused, so that whoever reads the meta need not ask
again what is in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt

from llama_jax.plumbing import boundary, files
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import DIED, SCHEMA, WRONG, roofline
from llama_lab.bench.provenance import Code
from llama_lab.bench.seal import ROW, SEAL, digest, sealed, sealed_row

PARQUET_KEY = b"llama_jax"
LARGEST = 1 << 62  # of a number in a table
LONGEST = 1 << 30  # bytes of a table
AGAIN = "Measure again."

NAN = float("nan")


@dataclass(frozen=True)
class Run:
    """What a row's `run` says where it names more than one thing: of which kind it is, and what of that kind."""

    kind: str
    what: object

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"

    @classmethod
    def read(cls, run: str) -> Run:
        """The same of a row; what: as text, "" where the kind is all it says."""
        kind, _, what = run.partition(" ")
        return cls(kind, what)


class Row(pydantic.BaseModel):
    """What every row of a table says of itself, whatever it measures. A row that is not valid stays, with its
    reason."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA
    run: str
    block: int
    order: int  # place within its block
    process: int  # index of the process within the run; trials of one process share its luck and are not independent
    seed: int
    # cold: first request of a fresh process, nothing on disk · cached: the same, programs on disk · warm: after warm-up
    phase: str
    valid: bool
    reason: str = ""  # why a trial is void; or "near-tie at token k"
    cause: str = ""  # why its programs were compiled, in JAX's own words, where that was asked for

    @pydantic.model_validator(mode="after")
    def within_64_bits(self) -> Row:
        """No whole number is too large for the arrays that it goes into."""
        for name, value in self:
            for number in value if isinstance(value, list) else (value,):
                if type(number) is int and not -LARGEST < number < LARGEST:
                    raise ValueError(f"{name} holds {boundary.shown(number)}")
        return self

    @property
    def wrong(self) -> bool:
        """Whether it made other tokens, or values, than it should have."""
        return WRONG in self.reason

    @property
    def died(self) -> bool:
        """Whether its process died in it."""
        return self.reason.startswith(DIED)


class Trial(Row):
    """One request to one subject. Times in ns since the request, sizes in bytes.

    A trial that failed (its process died, or the subject raised) has no token times, is not valid, and says why.
    """

    # subject
    subject: str  # name in tables and figures; the second baseline has its own
    backend: str
    placement: str
    model: str
    weights_hash: str
    dtype: str
    quantisation: str = "none"
    batch: PositiveInt
    prompt: NonNegativeInt  # index of the prompt in the pool
    prompt_tokens: NonNegativeInt
    new_tokens: NonNegativeInt
    sampling: str = "greedy"  # how tokens were chosen: `Sampler` in words
    cache_slots: int
    # times
    token_times_ns: list[int]  # arrival of each token on the host
    tokenize_ns: int
    load_ns: int | None = None
    # as a server counts and clocks the request itself, where the subject is one
    server_prompt_tokens: int | None = None  # evaluated; fewer than were sent when it had some in its cache
    server_prompt_ns: int | None = None
    server_tokens: int | None = None
    server_decode_ns: int | None = None
    server_load_ns: int | None = None
    # compilation, over the timed region
    trace_ns: int
    lower_ns: int
    backend_ns: int
    lowered: int
    # XLA compilations: backend events less persistent-cache hits; of PyTorch, programs compiled and graphs captured
    compiled: int
    cache_hits: int
    cache_misses: int = 0
    # memory
    peak_rss_bytes: int | None = None  # only where the process ran one subject
    device_peak_bytes: int | None = None  # where a device reports it
    weights_bytes: int | None = None  # all parameters together, from the configuration
    kv_bytes: int | None = None  # keys and values of all slots, from the configuration
    argument_bytes: int | None = None  # the compiled decode program's, where it was analysed; so are the next three
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    live_buffers_before: int | None = None  # arrays alive on the device, so that a leak across trials shows
    live_buffers_after: int | None = None
    # roofline
    bytes_per_token: float | None = Field(None, gt=0)
    bandwidth_gbps: float | None = Field(None, gt=0)  # in a file: of its own block's probe; read: of its run
    flops_per_token: float | None = None
    tokens_sha256: str

    @property
    def ttft(self) -> float:
        """Seconds from request to first token on the host, tokenisation included."""
        return self.token_times_ns[0] / 1e9 if self.token_times_ns else NAN

    @property
    def seconds(self) -> float:
        """Latency: seconds from request to last token on the host."""
        return self.token_times_ns[-1] / 1e9 if self.token_times_ns else NAN

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first: (latency - TTFT) / (n - 1). NaN for a single token."""
        n = len(self.token_times_ns)
        return (self.seconds - self.ttft) / (n - 1) if n > 1 else NAN

    @property
    def tg(self) -> float:
        """Decode rate in tokens/s: (n - 1) / (t_last - t_first), times the batch. NaN for a single token."""
        times = self.token_times_ns
        return (
            self.batch * (len(times) - 1) / (times[-1] - times[0]) * 1e9
            if len(times) > 1 and times[-1] > times[0]
            else NAN
        )

    @property
    def pp(self) -> float:
        """Prefill rate in tokens/s: prompt tokens over the time to the first token less tokenisation."""
        spent = self.token_times_ns[0] - self.tokenize_ns if self.token_times_ns else 0
        return self.batch * self.prompt_tokens / spent * 1e9 if spent > 0 else NAN

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds: the gaps between arrivals. Tokens of one block arrive together, gap 0."""
        return (np.diff(self.token_times_ns) / 1e9).tolist()

    @property
    def limit(self) -> float:
        """Tokens/s that the probed bandwidth allows one row: bytes a second over the bytes a token must read."""
        return self.bandwidth_gbps * 1e9 / self.bytes_per_token

    @property
    def mbu(self) -> float:
        known = self.bytes_per_token and self.bandwidth_gbps
        return roofline.mbu(self.tg / self.batch, self.bytes_per_token, self.bandwidth_gbps) if known else NAN


def fields_of(kind: type[Row], annotation) -> list[str]:
    """Names of the fields of a kind of row that hold values of one type."""
    return [name for name, field in kind.model_fields.items() if field.annotation == annotation]


class About(boundary.Declared):
    """What every meta document says."""

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
    """What a journal says of a run beside its trials."""

    process: NonNegativeInt = 0
    missing: Gap | None = None


def describe(**meta) -> dict:
    """The meta document of a table: schema and time, and what is given."""
    return {"schema_version": SCHEMA, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **meta}


def write(path: Path, trials: Iterable[Row], kind: type[Row] = Trial, **meta) -> Path:
    """Write a table and its meta, each in one piece or not at all. Raises UserError for a suffix that is no table's."""
    import pandas as pd  # here, so that measured processes need not wait for it

    path, trials = Path(path), list(trials)
    rows = [t.model_dump() for t in trials]
    about = describe(kind=kind.__name__, **meta)
    if has_probes(kind):
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
    """One row a trial, token times as a list; the meta under the schema's `llama_jax` key."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(rows) if rows else pyarrow.table({name: [] for name in kind.model_fields})
    buffer = io.BytesIO()
    parquet.write_table(
        table.replace_schema_metadata({PARQUET_KEY: json.dumps(sealed(about), sort_keys=True).encode()}),
        buffer,
        write_page_checksum=True,
    )
    return buffer.getvalue()


def meta_path(path: Path) -> Path:
    return path.with_suffix(".meta.json")


def has_probes(kind: type[Row]) -> bool:
    """Whether rows of that kind say what a probe of the bandwidth read."""
    return "bandwidth_gbps" in kind.model_fields


def read(
    path: Path, skip_corrupt: bool = False, kind: type[Row] = Trial, as_probed: bool = False
) -> tuple[list[Row], dict]:
    """Rows (trials, where no other kind is named) and meta of a table.

    as_probed: leave each row what its own probe read, for who writes them again.
    Raises UserError when it is missing, changed since it was written, of another schema, or (JSONL) has lines that are
    no records: their numbers are named, and `skip_corrupt` leaves them out.
    """
    path = Path(path)
    reader = {
        ".csv": read_csv,
        ".jsonl": lambda p, kind: read_jsonl(p, skip_corrupt, kind)[:2],
        ".parquet": read_parquet,
    }.get(path.suffix)
    if reader is None:
        raise UserError(f"{path} is no table: its name must end in .csv, .parquet or .jsonl.")
    try:
        rows, about = reader(path, kind)
    except FileNotFoundError as error:
        raise UserError(f"No recorded data at {error.filename}; measure first (`llama-jax run --measure`).") from None
    return roofline.of_runs(rows) if has_probes(kind) and not as_probed else rows, about


def read_meta(path: Path) -> dict:
    """The meta of a CSV table. Raises UserError where it is damaged, FileNotFoundError for none."""
    where = meta_path(path)
    return checked(boundary.parse(boundary.content(where), str(where), AGAIN, nan=True), str(where))


def checked(about: object, where: str) -> dict:
    """A meta document. Raises UserError for what is none, and for one that is not as it was written."""
    about = boundary.read(dict[str, Any], about, where, AGAIN)
    if about.get(SEAL) != digest(about):
        raise UserError(f"{where} is not as it was written (its digest of itself differs). {AGAIN}")
    boundary.read(About, about, where, AGAIN)
    return about


def check_schema(path: Path, about: dict, kind: type[Row]) -> None:
    """Raises UserError for a table of another version, or of another kind of row."""
    if (found := about.get("kind", Trial.__name__)) != kind.__name__:
        raise UserError(
            f"{path} holds rows of the kind {found}, not {kind.__name__}; it belongs to another notebook or command."
        )
    if about["schema_version"] != SCHEMA:
        raise UserError(f"{path} has schema {about['schema_version']}, this version reads {SCHEMA}; measure again.")


def rows_of(kind: type[Row], found: Iterable[dict], path: Path, strict: bool) -> list[Row]:
    """The rows of a table. strict: values have their types already. Raises UserError, naming row and field."""
    rows = []
    try:
        rows.extend(kind.model_validate(row, strict=strict) for row in found)
    except pydantic.ValidationError as error:
        raise UserError(boundary.complaint(error, f"{path}, row {len(rows) + 1}", AGAIN)) from None
    return rows


def read_csv(path: Path, kind: type[Row]) -> tuple[list[Row], dict]:
    import pandas as pd

    raw, about = boundary.content(path, LONGEST), read_meta(path)
    if hashlib.sha256(raw).hexdigest() != about.get("sha256"):
        raise UserError(
            f"{path} is not the table that {meta_path(path).name} describes (its SHA-256 differs); measure again."
        )
    check_schema(path, about, kind)
    try:
        rows = pd.read_csv(io.BytesIO(raw), keep_default_na=False, dtype=str).to_dict("records")
    except ValueError as error:  # pandas' own error is one
        raise UserError(f"{path} is no table: {' '.join(str(error).split())[:200]}. {AGAIN}") from None
    lists, texts = fields_of(kind, list[int]), fields_of(kind, str)  # an empty cell is an empty text in these
    for row in rows:
        row |= {name: str(row[name]).split() for name in lists if name in row}
    found = ({k: None if v == "" and k not in texts else v for k, v in row.items()} for row in rows)
    return rows_of(kind, found, path, strict=False), about


def read_parquet(path: Path, kind: type[Row]) -> tuple[list[Row], dict]:
    import pyarrow
    from pyarrow import parquet

    content = pyarrow.BufferReader(boundary.content(path, LONGEST))
    try:
        with parquet.ParquetFile(content, pre_buffer=False, page_checksum_verification=True) as file:
            about, found = file.schema_arrow.metadata[PARQUET_KEY], file.read(use_threads=False).to_pylist()
    except Exception:  # whatever Arrow says of damaged bytes
        raise UserError(f"{path} is not a Parquet table of trials; it may be cut short. {AGAIN}") from None
    about = checked(boundary.parse(about, str(path), AGAIN, nan=True), str(path))
    check_schema(path, about, kind)
    return rows_of(kind, found, path, strict=True), about


def read_jsonl(
    path: Path, skip_corrupt: bool = False, kind: type[Row] = Trial, whole: bool = False
) -> tuple[list[Row], dict, list[int]]:
    """(rows, meta, numbers of the lines left out). The first line holds the meta; a last line without its end is
    torn. A row that is not as it was written is one that cannot be read, and so, of a `whole` file, is one without a
    digest."""
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
