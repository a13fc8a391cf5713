"""Files of texts or token ids, read a piece at a time: memory does not grow with their length.

    .txt .md    an example is a paragraph: lines between blank ones, as UTF-8
    .jsonl      an example is a line: a JSON object with the field, a plain string, or a list of token ids
    (https://jsonlines.org)
    .parquet    an example is a row, of the column that the field names: strings, or lists of integers

Whatever cannot be an example ends with one line that names the file and the line or row.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from llama_jax.errors import UserError, near

Example = str | list[int]

ROWS = 64  # rows of a parquet file read at a time: some megabytes even where they are long
# bytes of a column that are read at a time: a row group may be the whole file, and pre_buffer would hold it
BUFFER = 1 << 20


def example(value, field: str, where: str) -> Example:
    """What one value stands for: a text, or token ids; of a mapping its `field`. Raises UserError, naming `where`."""
    if isinstance(value, Mapping):
        if field not in value:
            raise UserError(
                f"{where} has no field {field!r}; it has {', '.join(map(repr, value)) or 'none'}. Name another"
                " (--field)."
            )
        value, where = value[field], f"{where}, field {field!r}"
    if isinstance(value, str):
        return whole(value, where)
    ids = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(ids, list | tuple) and all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids):
        return [int(i) for i in ids]
    raise UserError(f"{where} is neither a text nor a list of token ids but {short(value)}.")


def whole(text: str, where: str) -> str:
    """A text as it is. Raises UserError for one that is not Unicode: half a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has half a surrogate pair at character {error.start + 1}, which is no text."
        ) from error
    return text


def short(value) -> str:
    """A value for a message: its type, and its beginning."""
    shown = repr(value)
    return f"{type(value).__name__} {shown if len(shown) <= 60 else shown[:59] + '…'}"


def lines(file: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a binary file, one at a time. Raises UserError for what is not UTF-8."""
    for number, raw in enumerate(file, 1):
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number} is not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}."
                " Convert it,"
                " for example with iconv."
            ) from error


def paragraphs(path: Path, field: str) -> Iterator[str]:
    """The paragraphs of a text file."""
    kept: list[str] = []
    with path.open("rb") as file:
        for _, line in lines(file, str(path)):
            if line.strip():
                kept.append(line)
            elif kept:
                yield "\n".join(kept).strip()
                kept = []
    if kept:
        yield "\n".join(kept).strip()


def records(path: Path, field: str) -> Iterator[Example]:
    """The examples of a JSON Lines file."""
    with path.open("rb") as file:
        yield from parsed(file, str(path), field)


def parsed(file: Iterable[bytes], name: str, field: str) -> Iterator[Example]:
    """The examples of JSON lines; blank ones are passed over."""
    for number, line in lines(file, name):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise UserError(
                f"{where} is not JSON: {reason}. Each line must be one JSON object, string or list."
            ) from error
        yield example(value, field, where)


def rows(path: Path, field: str) -> Iterator[Example]:
    """The examples of a column of a parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise UserError(f"{path} has no column {field!r}.{near(field, names)} Name another (--field).")
            # one column: threads only hold memory
            batches = file.iter_batches(ROWS, columns=[field], use_threads=False)
            for number, value in enumerate(
                itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in batches), 1
            ):
                yield example(value, field, f"{path}, row {number}, column {field!r}")
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}") from error


READERS = {".txt": paragraphs, ".md": paragraphs, ".jsonl": records, ".parquet": rows}


def read(path: Path, field: str) -> Iterator[Example]:
    """The examples of a file, by its suffix. Raises UserError where it cannot be read."""
    try:
        yield from READERS[path.suffix.lower()](path, field)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error


def count(paths: Sequence[Path]) -> int | None:
    """How many examples files have, as their lines or their footers say; None for paragraphs, which only reading would
    tell."""
    kinds = {path.suffix.lower() for path in paths}
    if kinds == {".parquet"}:
        from pyarrow import parquet

        return sum(parquet.read_metadata(path).num_rows for path in paths)
    return sum(line_count(path) for path in paths) if kinds == {".jsonl"} else None


def line_count(path: Path) -> int:
    """Lines of a file that are not empty, blank ones of other spaces counted too: for a forecast this is near
    enough."""
    with path.open("rb") as file:
        return sum(line not in (b"\n", b"\r\n") for line in file)


def digest(paths: Sequence[Path]) -> str:
    """sha256 of one file's contents as `sha256sum` prints it; of several, the sha256 of those, one a line, in order."""
    found = []
    for path in paths:
        try:
            with path.open("rb") as file:
                found.append(hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error
    return found[0] if len(found) == 1 else hashlib.sha256("\n".join(found).encode()).hexdigest()
