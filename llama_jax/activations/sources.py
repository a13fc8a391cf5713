"""Where examples come from: files of several formats, the packaged manual, Python iterables, Hugging Face datasets.

    manual                      the paragraphs of Python's own manual (`llama_jax.text.corpus`): nothing to download
    texts.txt texts.jsonl …     one file; `readers` says what an example is in each format
    texts/  texts/*.parquet     the files of a folder and those below, or of a glob (** too), in order of their names
    -                           standard input as JSON Lines, once
    hf:OWNER/NAME:CONFIG:SPLIT  a dataset of the hub, streamed, such as hf:HuggingFaceFW/fineweb:sample-10BT:train; see
                                `hub`
    a Python object             an iterable of texts or of lists of token ids, or a dataset of the `datasets` library

Examples are numbered from 0 in this order, whatever is done with them.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llama_jax import boundary
from llama_jax.activations import hub, readers
from llama_jax.activations.readers import READERS, Example, example
from llama_jax.activations.spec import Whole
from llama_jax.boundary import Declared, shown
from llama_jax.errors import UserError, near
from llama_jax.text import corpus
from llama_jax.values import LONG

FIELD = "text"  # the field of a record that is read where no other is named
LARGEST_UNIT = 64 << 20  # characters and token ids that are held at a time, as a list and as the JSON that is hashed
MOST = 300_000  # files and folders that are looked through for those that a source names


class Asked(Declared):
    """What is read of a source: the field of its records, and how many examples at most."""

    field: str | None
    limit: Annotated[Whole, Field(ge=1, lt=1 << 62)] | None


class Source:
    """Examples in a fixed order, each a text or a list of token ids.

    name: for messages. read: an iterator of the examples from the first on. describe: what `about` says. limit: at most
    so many.
    repeatable: False where the examples can be had only once. count: how many there are, None where only reading would
    tell.
    Raises UserError where there is no first example, or it is none.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Iterator[Example]],
        describe: Callable[[], dict],
        limit: int | None,
        repeatable: bool = True,
        count: Callable[[], int | None] = lambda: None,
    ):
        self.name, self.read, self.describe, self.limit, self.repeatable, self.count = (
            name,
            read,
            describe,
            limit,
            repeatable,
            count,
        )
        self.begun = False
        examples = read()
        try:
            first = next(examples)
        except StopIteration:
            raise UserError(f"{name} is empty: there is no example in it.") from None
        if not repeatable:
            self.read = lambda: itertools.chain([first], examples)

    @cached_property
    def about(self) -> dict:
        """JSON values that identify the source: kind, what it is called, limit, and a sha256 of the contents where
        there is one.

        Files are read whole for that, once. Their names are without folders: a source that was moved is the same
        source.
        """
        return {**self.describe(), "limit": self.limit}

    @cached_property
    def total(self) -> int | None:
        """How many examples there are, for a forecast; None where only reading them would tell."""
        known = self.count()
        return known if self.limit is None or known is None else min(known, self.limit)

    def __iter__(self) -> Iterator[Example]:
        """The examples from the first on. Raises UserError the second time where they can be had only once."""
        if self.begun and not self.repeatable:
            raise UserError(f"{self.name} can be gone through only once, and has been; open it again.")
        self.begun = True
        return itertools.islice(self.read(), self.limit)


@dataclass(frozen=True)
class Chunk:
    """Consecutive examples, `first` being the number of the first one."""

    number: int
    first: int
    examples: list[Example]

    @cached_property
    def sha256(self) -> str:
        """The hash of the examples as a JSON list."""
        return hashlib.sha256(json.dumps(self.examples).encode()).hexdigest()


def units(source: Iterable[Example], size: int) -> Iterator[Chunk]:
    """A source cut into chunks of `size` examples, the last one shorter: the same ones whoever asks. Raises UserError
    for one that is too large to be held."""
    if size < 1:
        raise UserError(f"A unit of {size} examples is none; give at least 1.")
    examples = iter(source)
    for number in itertools.count():
        chunk, length = [], 0
        for one in itertools.islice(examples, size):
            chunk.append(one)
            length += len(one)
            if length > LARGEST_UNIT:
                raise UserError(
                    f"Unit {number} has more than {LARGEST_UNIT:,} characters or token ids; make units smaller"
                    " (--unit)."
                )
        if not chunk:
            return
        yield Chunk(number, number * size, chunk)


def open_source(source, field: str | None = None, limit: int | None = None) -> Source:
    """The examples of `source`, one of the kinds above; the first of them is read here, so that mistakes show before
    any work.

    field: of records and columns, "text" unless named. limit: at most so many examples. Raises UserError for what is
    not there, is empty or of no known format; iterating raises it for an example that is none, naming file and line.
    """
    if isinstance(source, Source):
        if field is None and limit is None:
            return source
        raise UserError("This source is open already; give field and limit to open_source.")
    asked = boundary.read(Asked, dict(field=field, limit=limit), "What is asked of the source")
    field, limit = asked.field or FIELD, asked.limit
    if isinstance(source, str | os.PathLike):
        return named(os.fsdecode(source), field, limit)
    if hub.is_dataset(source):
        name = hub.name_of(source)
        return Source(
            name,
            partial(hub.rows, source, field, name),
            partial(hub.about, source, field),
            limit,
            count=partial(sized, source),
        )
    return of_objects(source, field, limit)


def named(source: str, field: str, limit: int | None) -> Source:
    """A source that a word on the command line names."""
    if source == "manual":
        return Source(
            "manual", lambda: iter(corpus.paragraphs()), manual, limit, count=lambda: len(corpus.paragraphs())
        )
    if source == "-":
        if sys.stdin is None:
            raise UserError("Standard input is closed.")
        read = lambda: readers.told(readers.parsed(sys.stdin.buffer, "standard input", field), "standard input")  # noqa: E731
        return Source("Standard input", read, lambda: dict(kind="stdin", field=field), limit, repeatable=False)
    if source.startswith("hf:"):
        loaded = hub.load(source)
        return Source(
            source, partial(hub.rows, loaded.dataset, field, source), lambda: dict(loaded.about(), field=field), limit
        )
    paths = find(source)
    read = lambda: itertools.chain.from_iterable(readers.read(p, field) for p in paths)  # noqa: E731
    return Source(source, read, partial(files, paths, field), limit, count=partial(readers.count, paths))


def manual() -> dict:
    """What identifies the manual: Python's version shows in its contents."""
    return dict(kind="manual", sha256=hashlib.sha256(json.dumps(corpus.paragraphs()).encode()).hexdigest())


def files(paths: list[Path], field: str) -> dict:
    """What identifies files: their names and contents; the field where they have fields."""
    fields = dict(field=field) if {p.suffix.lower() for p in paths} & {".jsonl", ".parquet"} else {}
    return dict(kind="files", files=[p.name for p in paths], **fields, sha256=readers.digest(paths))


def find(source: str) -> list[Path]:
    """The files that a path, a folder or a glob names, in order of their names. Raises UserError where there are none,
    and for what is no regular file: a pipe or a device would be waited for."""
    if not source:
        raise UserError("The source has no name; the folder that you are in is '.'.")
    path = Path(source)
    try:
        if path.is_dir():
            return inside(path)
        found = [path] if path.exists() else matches(source)
        if not found:
            raise UserError(f"No such source: {shown(source, LONG)}.{neighbours(path)}")
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that may not be read
        raise UserError(f"Cannot read {shown(source, LONG)}: {getattr(error, 'strerror', None) or error}.") from error
    for p in found:
        if p.suffix.lower() not in READERS:
            raise UserError(f"{shown(str(p), LONG)} is of no known format.{near(p.suffix, READERS)}")
        if not p.is_file():
            raise UserError(f"{p} is no regular file; standard input is the source '-'.")
    return found


def matches(pattern: str) -> list[Path]:
    """The files that a glob names, hidden ones only where it asks for them. No link to a folder is followed by **:
    several that lead back up have no end."""
    parts = Path(re.sub(r"(\*\*/+)+", "**/", pattern)).parts
    at = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root, wanted = Path(*parts[:at]), parts[at:]
    check_size(root, None if "**" in wanted else len(wanted))
    found = root.glob(str(Path(*wanted))) if wanted else ()
    hidden = any(part.startswith(".") for part in wanted)
    seen = (p for p in found if hidden or not any(part.startswith(".") for part in p.relative_to(root).parts))
    return sorted((p for p in seen if p.is_file()), key=str)


def check_size(folder: Path, depth: int | None = None) -> None:
    """Raises UserError for a folder that holds so much, down to a depth, that looking through it has no end for who
    waits."""
    seen, above = 0, len(folder.parts)
    for home, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MOST:
            raise UserError(f"{folder} holds more than {MOST:,} files and folders; name what is further down.")
        if depth is not None and len(Path(home).parts) - above >= depth - 1:
            folders.clear()


def inside(folder: Path) -> list[Path]:
    """The files of known formats in a folder and below, hidden ones left out. Raises UserError for none, or several
    kinds."""
    check_size(folder)
    kept = (p.relative_to(folder) for p in folder.rglob("*") if p.suffix.lower() in READERS and p.is_file())
    found = sorted((p for p in kept if not any(part.startswith(".") for part in p.parts)), key=lambda p: p.parts)
    kinds = {READERS[p.suffix.lower()]: f"*{p.suffix}" for p in found}
    if not found:
        raise UserError(f"{folder} has no file in a known format ({', '.join(READERS)}).")
    if len(kinds) > 1:
        raise UserError(
            f"{folder} has files of several kinds: {', '.join(sorted(kinds.values()))}. Say which, such as"
            f" {folder / '**' / sorted(kinds.values())[0]}"
        )
    return [folder / p for p in found]


def neighbours(path: Path) -> str:
    """A hint at sources with similar names, or at the kinds that there are."""
    beside = [p.name for p in path.parent.iterdir() if p.suffix.lower() in READERS] if path.parent.is_dir() else []
    if close := difflib.get_close_matches(path.name, [*beside, "manual"], cutoff=0.55):
        return f" Did you mean {' or '.join(repr(c) for c in close)}?"
    return (
        f" A source is 'manual', a file ({', '.join(READERS)}), a folder or a glob of such files, '-', or"
        " 'hf:OWNER/NAME:CONFIG:SPLIT'."
    )


def of_objects(source, field: str, limit: int | None) -> Source:
    """A Python iterable of texts, of lists of token ids, or of records."""
    kind = type(source).__name__
    if not isinstance(source, Iterable) or isinstance(source, Mapping | Set) or getattr(source, "ndim", 1) == 0:
        # these have no order, or keys first; or they are one number
        raise UserError(
            f"A {kind} is no source: give a name, a path, a list or generator of texts or of token ids, or a dataset."
        )
    once = iter(source) is source
    name = getattr(source, "__name__", kind) if once else kind
    where = f"{name} (a Python {kind})" if name != kind else f"The {kind}"

    def read() -> Iterator[Example]:
        return (example(value, field, f"{where}, example {i}") for i, value in enumerate(source))

    def describe() -> dict:
        contents = isinstance(source, list | tuple)  # at hand: what they hold identifies them
        return dict(kind="iterable", name=name, **(dict(sha256=Chunk(0, 0, list(read())).sha256) if contents else {}))

    return Source(where, read, describe, limit, repeatable=not once, count=partial(sized, source))


def sized(source) -> int | None:
    """The length of an object that has one."""
    return len(source) if hasattr(source, "__len__") else None
