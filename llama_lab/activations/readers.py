"""Files of texts or token ids: which ones a path, a folder or a glob names, and their examples, read a piece at a time.
Memory does not grow with their length.

    .txt .md    an example is a paragraph: lines between blank ones, as UTF-8
    .jsonl      an example is a line: a JSON object with the field, a plain string, or a list of token ids
    (https://jsonlines.org)
    .parquet    an example is a row, of the column that the field names: strings, or lists of integers

Anything that is not an example gives one line that names the file and the line or row; so do a line of more than 16
MiB, and an example of more than 4 Mi characters or token ids.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import hashlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import LONG

Example = str | list[int]
Update = Callable[[bytes], None]  # is called with every byte that is read, such as `hashlib.sha256().update`

READERS = {".txt": "paragraphs", ".md": "paragraphs", ".jsonl": "records", ".parquet": "rows"}
MOST = 300_000  # files and folders that are looked through for those that a source names
LONGEST_LINE = 16 << 20  # bytes: JSON may spell a character with six
LONGEST = 4 << 20  # characters or token ids of an example: several books
NAMES, LONGEST_REASON = 12, 300  # fields in a message, characters of what a library says
ROWS = 64  # rows of a parquet file read at a time: some megabytes even where they are long
# bytes of a column that are read at a time: a row group may be the whole file, and pre_buffer would hold it
BUFFER = 1 << 20
TAIL = 1 << 16  # bytes at a file's end


def find(source: str) -> list[Path]:
    """The files that a path, a folder or a glob names, in order of their names. Raises UserError for none, and for
    anything but a regular file; a pipe would block."""
    if not source:
        raise UserError("The source has no name; the folder that you are in is '.'.")
    path = Path(source)
    try:
        if path.is_dir():
            return inside(path)
        files = [path] if path.exists() else matches(source)
        if not files:
            raise UserError(f"No such source: {shown(source, LONG)}.{neighbours(path)}")
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that may not be read
        raise UserError(f"Cannot read {shown(source, LONG)}: {getattr(error, 'strerror', None) or error}.") from error
    for file in files:
        if file.suffix.lower() not in READERS:
            raise UserError(f"{shown(str(file), LONG)} is of no known format.{near(file.suffix, READERS)}")
        if not file.is_file():
            raise UserError(f"{file} is not a regular file; standard input is the source '-'.")
    return files


def matches(pattern: str) -> list[Path]:
    """The files that a glob names, hidden ones only where it asks for them. ** follows no link: some have no end."""
    parts = Path(re.sub(r"(\*\*/+)+", "**/", pattern)).parts
    at = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root, wanted = Path(*parts[:at]), parts[at:]
    check_size(root, None if "**" in wanted else len(wanted))
    paths = root.glob(str(Path(*wanted))) if wanted else ()
    asked = any(part.startswith(".") for part in wanted)
    return sorted((p for p in paths if (asked or not hidden(p.relative_to(root))) and p.is_file()), key=str)


def hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def check_size(folder: Path, depth: int | None = None) -> None:
    """Raises UserError for a folder with so much in it, down to a depth, that searching it would not end."""
    seen, above = 0, len(folder.parts)
    for home, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MOST:
            raise UserError(f"{folder} holds more than {MOST:,} files and folders; name what is further down.")
        if depth is not None and len(Path(home).parts) - above >= depth - 1:
            folders.clear()


def inside(folder: Path) -> list[Path]:
    """The files of known formats in a folder and below, hidden ones left out. Raises UserError for several kinds."""
    check_size(folder)
    paths = [p for p in folder.rglob("*") if p.suffix.lower() in READERS and p.is_file()]
    files = sorted((p for p in paths if not hidden(p.relative_to(folder))), key=lambda p: p.relative_to(folder).parts)
    kinds = sorted({READERS[p.suffix.lower()]: f"*{p.suffix}" for p in files}.values())
    if not files:
        raise UserError(f"{folder} has no file in a known format ({', '.join(READERS)}).")
    if len(kinds) > 1:
        raise UserError(
            f"{folder} has files of several kinds: {', '.join(kinds)}. Say which, such as {folder / '**' / kinds[0]}"
        )
    return files


def neighbours(path: Path) -> str:
    """A hint with similarly named sources, or with the existing kinds."""
    beside = [p.name for p in path.parent.iterdir() if p.suffix.lower() in READERS] if path.parent.is_dir() else []
    if close := difflib.get_close_matches(path.name, [*beside, "manual"], cutoff=0.55):
        return f" Did you mean {' or '.join(repr(c) for c in close)}?"
    return (
        f" A source is 'manual', a file ({', '.join(READERS)}), a folder or glob of these, '-', or"
        " 'hf:OWNER/NAME:CONFIG:SPLIT'."
    )


def example(value, field: str, where: str) -> Example:
    """A value as text or token ids; of a mapping, its `field`. Raises UserError, naming `where`."""
    if isinstance(value, Mapping):
        if field not in value:
            names = ", ".join([*map(shown, itertools.islice(value, NAMES)), *["…"] * (len(value) > NAMES)]) or "none"
            raise UserError(f"{where} has no field {shown(field)}; it has {names}. Name another (--field).")
        value, where = value[field], f"{where}, field {shown(field)}"
    length = value.size if isinstance(value, np.ndarray) else len(value) if isinstance(value, str | list | tuple) else 0
    check_length(length, where)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair
            raise UserError(f"{where} has half a surrogate pair at character {error.start + 1}.") from error
        return value
    ids = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(ids, list | tuple) and all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in ids):
        return [int(i) for i in ids]
    raise UserError(f"{where} is neither a text nor a list of token ids but {type(value).__name__} {shown(value)}.")


def check_length(length: int, where: str) -> None:
    if length > LONGEST:
        raise UserError(f"{where} is too long: an example has at most {LONGEST:,} characters or token ids. Cut it.")


class Place(NamedTuple):
    """A point between two examples of a file: its byte and how many lines are before it, or its row."""

    at: int = 0
    line: int = 0


BEGIN = Place()


class Reading:
    """A binary file, gone through by line from a place on; `place` is where it is now."""

    def __init__(self, file: BinaryIO, name: str, place: Place = BEGIN, update: Update | None = None):
        self.file, self.name, self.place, self.update = file, name, place, update
        if place.at:
            file.seek(place.at)

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, line without its end), one at a time. Raises UserError for what is not UTF-8, or too long."""
        for raw in iter(partial(self.file.readline, LONGEST_LINE + 1), b""):
            number = self.place.line + 1
            if len(raw) > LONGEST_LINE:
                raise UserError(
                    f"{self.name}, line {number} is longer than {LONGEST_LINE:,} bytes. Cut it into several."
                )
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{self.name}, line {number} is not UTF-8: byte 0x{raw[error.start]:02x} at column"
                    f" {error.start + 1}. Convert it, for example with iconv."
                ) from error
            self.place = Place(self.place.at + len(raw), number)
            if self.update:
                self.update(raw)
            yield number, line

    def paragraphs(self) -> Iterator[str]:
        kept, begin, length = [], 0, 0
        for number, line in itertools.chain(self.lines(), [(0, "")]):
            if line.strip():
                begin, length = (begin, length + 1 + len(line)) if kept else (number, len(line))
                check_length(length, f"{self.name}, the paragraph at line {begin}")
                kept.append(line)
            elif kept:
                yield "\n".join(kept).strip()
                kept = []

    def records(self, field: str) -> Iterator[Example]:
        for number, line in self.filled():
            where = f"{self.name}, line {number}"
            value = boundary.parse(line, where, "Each line must be one JSON object, string or list.")
            yield example(value, field, where)

    def filled(self) -> Iterator[tuple[int, str]]:
        return ((number, line) for number, line in self.lines() if line.strip())


def rows(path: Path | str, field: str, first: int = 0) -> Iterator[Example]:
    """The examples of a column of a parquet file, here or behind a URL, from a row on. Row groups before it are not
    read."""
    with table(path) as file:
        names = file.schema_arrow.names
        if field not in names:
            raise UserError(f"{path} has no column {shown(field)}.{near(field, names)} Name another (--field).")
        groups, before = list(range(file.metadata.num_row_groups)), 0
        while groups and before + (size := file.metadata.row_group(groups[0]).num_rows) <= first:
            before += size
            groups.pop(0)
        # one column: threads only hold memory
        batches = file.iter_batches(ROWS, groups, columns=[field], use_threads=False) if groups else ()
        values = (value for batch in batches for value in batch.column(0))
        for number, value in enumerate(values, before + 1):
            if number > first:
                yield example(value.as_py(), field, f"{path}, row {number}, column {shown(field)}")


@contextlib.contextmanager
def table(path: Path | str) -> Iterator:
    """An open parquet file. Raises UserError if it, or what is read from it, is not valid parquet."""
    from pyarrow import parquet

    try:
        if isinstance(path, str):
            import fsspec

            path = fsspec.open(path, "rb").open()
        with parquet.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False) as file:
            yield file
    except UserError:
        raise
    except Exception as error:  # what is damaged shows as an error of any class, a date or a text that is none too
        raise UserError(f"{path} cannot be read as parquet: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind."""
    line = (str(error).splitlines() or [type(error).__name__])[0][:LONGEST_REASON]
    return "".join(c if c.isprintable() else "?" for c in line).rstrip()


def kind_of(path: Path | str) -> str:
    return READERS[os.path.splitext(path)[1].lower()]


def read(path: Path | str, field: str, place: Place = BEGIN, update: Update | None = None) -> Iterator[Example]:
    """The examples of a file from a place on, by its suffix. Raises UserError if it cannot be read."""
    if (kind := kind_of(path)) == "rows":
        yield from rows(path, field, place.at)
        return
    with opened(path) as file:
        lines = Reading(file, str(path), place, update)
        yield from lines.paragraphs() if kind == "paragraphs" else lines.records(field)


def ends(path: Path | str, update: Update) -> Iterator[Place]:
    """The place after each example of a file. Nothing is parsed, and of a parquet file only the footer is read."""
    if (kind := kind_of(path)) == "rows":
        with table(path) as file:
            count = file.metadata.num_rows
        yield from (Place(row + 1) for row in range(count))
        return
    with opened(path) as file:
        lines = Reading(file, str(path), update=update)
        for _ in lines.paragraphs() if kind == "paragraphs" else lines.filled():
            yield lines.place


def typed(field: str) -> Iterator[Example]:
    with readable("standard input"):
        yield from Reading(sys.stdin.buffer, "standard input").records(field)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file, open. Raises UserError if it, or what is read of it, cannot be read."""
    with readable(str(path)), path.open("rb") as file:
        yield file


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Raises UserError, naming it, for an OSError in the body."""
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot read {name}: {error.strerror or error}.") from error


def tail(path: Path) -> list:
    """[size, sha256 of the last bytes], of parquet the footer: most changes show in them."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        return [size, hashlib.sha256(file.read()).hexdigest()]


def digest(paths: Sequence[Path]) -> str:
    """sha256 of one file's contents as `sha256sum` prints it; of several, the sha256 of those, one a line, in order."""
    digests = []
    for path in paths:
        with opened(path) as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
