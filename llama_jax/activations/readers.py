"""Files of texts or token ids, read a piece at a time: memory does not grow with their length.

    .txt .md    an example is a paragraph: lines between blank ones, as UTF-8
    .jsonl      an example is a line: a JSON object with the field, a plain string, or a list of token ids
    (https://jsonlines.org)
    .parquet    an example is a row, of the column that the field names: strings, or lists of integers

Whatever cannot be an example ends with one line that names the file and the line or row; so do a line of more than
16 MiB, and an example of more than 4 Mi characters or token ids.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from llama_jax import boundary
from llama_jax.boundary import shown
from llama_jax.errors import UserError, near

Example = str | list[int]

LONGEST_LINE = 16 << 20  # bytes: JSON may spell a character with six
LONGEST = 4 << 20  # characters or token ids of an example: several books
NAMES, LONGEST_REASON = 12, 300  # fields in a message, characters of what a library says
ROWS = 64  # rows of a parquet file read at a time: some megabytes even where they are long
# bytes of a column that are read at a time: a row group may be the whole file, and pre_buffer would hold it
BUFFER = 1 << 20


def example(value, field: str, where: str) -> Example:
    """What one value stands for: a text, or token ids; of a mapping its `field`. Raises UserError, naming `where`."""
    if isinstance(value, Mapping):
        if field not in value:
            names = [*map(shown, itertools.islice(value, NAMES)), *["…"] * (len(value) > NAMES)]
            raise UserError(
                f"{where} has no field {shown(field)}; it has {', '.join(names) or 'none'}. Name another (--field)."
            )
        value, where = value[field], f"{where}, field {shown(field)}"
    check_length(
        value.size if isinstance(value, np.ndarray) else len(value) if isinstance(value, str | list | tuple) else 0,
        where,
    )
    if isinstance(value, str):
        return whole(value, where)
    ids = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(ids, list | tuple) and all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids):
        return [int(i) for i in ids]
    raise UserError(f"{where} is neither a text nor a list of token ids but {type(value).__name__} {shown(value)}.")


def check_length(length: int, where: str) -> None:
    """Raises UserError for more than an example may have."""
    if length > LONGEST:
        raise UserError(f"{where} is too long: an example has at most {LONGEST:,} characters or token ids. Cut it.")


def whole(text: str, where: str) -> str:
    """A text as it is. Raises UserError for one that is not Unicode: half a surrogate pair, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where} has half a surrogate pair at character {error.start + 1}, which is no text."
        ) from error
    return text


def lines(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of a binary file, one at a time. Raises UserError for what is not UTF-8, or
    too long."""
    for number, raw in enumerate(iter(partial(file.readline, LONGEST_LINE + 1), b""), 1):
        if len(raw) > LONGEST_LINE:
            raise UserError(f"{name}, line {number} is longer than {LONGEST_LINE:,} bytes. Cut it into several.")
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
    kept, begin, length = [], 0, 0
    with path.open("rb") as file:
        for number, line in itertools.chain(lines(file, str(path)), [(0, "")]):
            if line.strip():
                begin, length = (begin, length + 1 + len(line)) if kept else (number, len(line))
                check_length(length, f"{path}, the paragraph at line {begin}")
                kept.append(line)
            elif kept:
                yield "\n".join(kept).strip()
                kept = []


def records(path: Path, field: str) -> Iterator[Example]:
    """The examples of a JSON Lines file."""
    with path.open("rb") as file:
        yield from parsed(file, str(path), field)


def parsed(file: BinaryIO, name: str, field: str) -> Iterator[Example]:
    """The examples of JSON lines; blank ones are passed over."""
    for number, line in lines(file, name):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        yield example(boundary.parse(line, where, "Each line must be one JSON object, string or list."), field, where)


def rows(path: Path, field: str) -> Iterator[Example]:
    """The examples of a column of a parquet file."""
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise UserError(f"{path} has no column {shown(field)}.{near(field, names)} Name another (--field).")
            # one column: threads only hold memory
            batches = file.iter_batches(ROWS, columns=[field], use_threads=False)
            values = (value.as_py() for batch in batches for value in batch.column(0))
            for number, value in enumerate(values, 1):
                yield example(value, field, f"{path}, row {number}, column {shown(field)}")
    except UserError:
        raise
    except Exception as error:  # what is damaged shows as an error of any class, a date or a text that is none too
        raise UserError(f"{path} cannot be read as parquet: {first_line(error)}") from error


READERS = {".txt": paragraphs, ".md": paragraphs, ".jsonl": records, ".parquet": rows}


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind."""
    said = (str(error).splitlines() or [type(error).__name__])[0][:LONGEST_REASON]
    return "".join(c if c.isprintable() else "?" for c in said).rstrip()


def read(path: Path, field: str) -> Iterator[Example]:
    """The examples of a file, by its suffix. Raises UserError where it cannot be read."""
    return told(READERS[path.suffix.lower()](path, field), str(path))


def told(examples: Iterator[Example], name: str) -> Iterator[Example]:
    """Examples of what can fail on the way. Raises UserError, naming it."""
    try:
        yield from examples
    except OSError as error:
        raise UserError(f"Cannot read {name}: {error.strerror or error}.") from error


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
        return sum(line not in (b"\n", b"\r\n") for line in iter(partial(file.readline, LONGEST_LINE), b""))


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
