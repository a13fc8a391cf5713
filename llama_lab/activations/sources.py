"""Where examples come from: files of several formats, the packaged manual, Python iterables, Hugging Face datasets.

    manual                      the paragraphs of Python's own manual (`llama_lab.corpus`): nothing to download
    texts.txt texts.jsonl …     one file; `readers` says what an example is in each format
    texts/  texts/*.parquet     the files of a folder and those below, or of a glob (** too), in order of their names
    -                           standard input as JSON Lines, once
    hf:OWNER/NAME:CONFIG:SPLIT  a dataset of the hub, streamed, such as hf:HuggingFaceFW/fineweb:sample-10BT:train; see
                                `hub`
    a Python object             an iterable of texts or of lists of token ids, or a dataset of the `datasets` library

Examples are numbered from 0 in this order. A source is divided into units without making its examples, so that any unit
can be read alone afterwards. A start is where a unit begins, as numbers that only its source understands; it is kept as
JSON.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError
from llama_lab import corpus
from llama_lab.activations import hub, readers
from llama_lab.activations.readers import BEGIN, Example, Place, Update, example
from llama_lab.activations.spec import Whole

FIELD = "text"  # the field of a record that is read where no other is named
LARGEST_UNIT = 64 << 20  # characters and token ids that are held at a time, as a list and as the JSON that is hashed

Start = tuple[int, ...]
Read = Callable[[], Iterator[Example]]


class Part(NamedTuple):
    """A unit of a source: its number, its first example, its number of examples, where they begin, and the sha256 of
    their lines, if they have lines."""

    number: int
    first: int
    examples: int
    start: Start
    sha256: str


class Files:
    """Examples in files, one file after the other; a start is (file, byte, lines before it) or (file, row, 0)."""

    begin = (0, *BEGIN)

    def __init__(self, paths: Sequence[Path | str], field: str):
        self.paths, self.field = paths, field

    def read(self, start: Start = begin, update: Update | None = None) -> Iterator[Example]:
        """The examples from a start on. Nothing before it is read; of parquet, no earlier row group."""
        number, *place = start
        for path in self.paths[number:]:
            yield from readers.read(path, self.field, Place(*place), update)
            place = BEGIN

    def ends(self, update: Update) -> Iterator[Start]:
        """The start of what follows, after each example."""
        return ((i, *place) for i, path in enumerate(self.paths) for place in readers.ends(path, update))


class Items:
    """Examples that can be read by number; a start is (number,)."""

    begin = (0,)

    def __init__(self, count: int, read_from: Callable[[int], Iterator[Example]]):
        self.count, self.read_from = count, read_from

    def read(self, start: Start = begin, update: Update | None = None) -> Iterator[Example]:
        return self.read_from(start[0])

    def ends(self, update: Update) -> Iterator[Start]:
        return ((number,) for number in range(1, self.count + 1))


class Source:
    """Examples in a fixed order, each a text or a list of token ids.

    name: for messages. contents: reads the examples from any unit on, or a function that reads them in order only.
    describe: the value of `about`. limit: most examples. repeatable: False if the examples can be read only once.
    stamp: reveals a changed source without reading it whole.
    Raises UserError if there is no first example, or it is invalid.
    """

    def __init__(
        self,
        name: str,
        contents: Files | Items | Read,
        describe: Callable[[], dict],
        limit: int | None,
        repeatable: bool = True,
        stamp: Callable[[], dict] | None = None,
    ):
        self.contents = contents if isinstance(contents, Files | Items) else None
        self.name, self.read, self.describe = name, contents.read if self.contents else contents, describe
        self.limit, self.repeatable, self.marks, self.begun = limit, repeatable, stamp or describe, False
        examples = self.read()
        try:
            first = next(examples)
        except StopIteration:
            raise UserError(f"{name} is empty: it has no examples.") from None
        if not repeatable:
            self.read = lambda: itertools.chain([first], examples)

    @cached_property
    def about(self) -> dict:
        """JSON values that identify the source: kind, name, limit, and a sha256 of the contents where there is one.
        Files are read whole for that, once. Their names are without folders: a source that was moved is the same
        source."""
        return {**self.describe(), "limit": self.limit}

    @cached_property
    def stamp(self) -> dict:
        """JSON values that differ for another source; of files, their sizes and ends."""
        return {**self.marks(), "limit": self.limit}

    def __iter__(self) -> Iterator[Example]:
        """The examples from the first on. Raises UserError the second time if they can be read only once."""
        if self.begun and not self.repeatable:
            raise UserError(f"{self.name} can be gone through only once, and has been; open it again.")
        self.begun = True
        return itertools.islice(self.read(), self.limit)

    def parts(self, size: int) -> Iterator[Part]:
        """Its units of `size` examples, the last one shorter; of lines their ends are read, of parquet the footers.
        Raises UserError if it can be read in order only."""
        if self.contents is None:
            raise UserError(
                f"{self.name} can be read in order only: which units it has shows at its end. Run it in one process, or"
                " by shards, or write it to a file first."
            )
        return cut(self.contents, checked_size(size), self.limit)

    def chunk(self, part: Part) -> Chunk:
        """The examples of one unit; nothing of the others is read. Raises UserError if they have changed since the
        source was divided."""
        digest = hashlib.sha256()
        examples = taken(self.contents.read(part.start, digest.update), part.examples, part.number)
        if len(examples) != part.examples or digest.hexdigest() != part.sha256:
            raise UserError(changed(part.number, part.first, part.examples))
        return Chunk(part.number, part.first, examples)


def checked_size(size: int) -> int:
    if size < 1:
        raise UserError(f"A unit needs at least 1 example; {size} were given.")
    return size


def cut(contents: Files | Items, size: int, limit: int | None) -> Iterator[Part]:
    """See `Source.parts`; `limit` examples at most."""
    first, start, seen = 0, contents.begin, 0
    lines = kept = hashlib.sha256()
    ends = contents.ends(lambda line: lines.update(line))
    for seen, end in enumerate(itertools.islice(ends, limit), 1):
        kept = lines.copy()  # blank lines and empty files after the last example are no part of its unit
        if seen - first == size:
            yield Part(first // size, first, size, start, kept.hexdigest())
            first, start, lines = seen, end, hashlib.sha256()
    if seen > first:
        yield Part(first // size, first, seen - first, start, kept.hexdigest())


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


def changed(unit: int, first: int, examples: int) -> str:
    return (
        f"The source has changed: examples {first} to {first + examples - 1} are not those of unit {unit}. Bring the"
        " old source back, or extract into a new folder."
    )


def taken(examples: Iterator[Example], count: int, unit: int) -> list[Example]:
    """The next `count` examples, or all there are. Raises UserError for more than can be held."""
    held, length = [], 0
    for value in itertools.islice(examples, count):
        held.append(value)
        length += len(value)
        if length > LARGEST_UNIT:
            raise UserError(f"Unit {unit} has over {LARGEST_UNIT:,} characters or token ids; make it smaller (--unit).")
    return held


def chunks(source: Iterable[Example], size: int) -> Iterator[Chunk]:
    """A source cut into chunks of `size` examples while it is read in order, the last one shorter."""
    checked_size(size)
    examples = iter(source)
    for number in itertools.count():
        if not (held := taken(examples, size, number)):
            return
        yield Chunk(number, number * size, held)


class Asked(Declared):
    """The part of a source to read: the field of its records, and the most examples."""

    field: str | None
    limit: Annotated[Whole, Field(ge=1, lt=1 << 62)] | None


def open_source(source, field: str | None = None, limit: int | None = None) -> Source:
    """The examples of `source`, one of the kinds above; the first of them is read here, so that mistakes show before
    any work.

    field: of records and columns, "text" unless named. limit: most examples. Raises UserError for a source that is
    missing, empty or of unknown format; iterating raises it for an invalid example, naming file and line.
    """
    if isinstance(source, Source):
        if field is None and limit is None:
            return source
        raise UserError("This source is open already; give field and limit to open_source.")
    asked = boundary.read(Asked, dict(field=field, limit=limit), "What is asked of the source")
    field, limit = asked.field or FIELD, asked.limit
    if isinstance(source, str | os.PathLike):
        return named(os.fsdecode(source), field, limit)
    if not hub.is_dataset(source):
        return object_source(source, field, limit)
    name, describe = hub.name_of(source), partial(hub.about, source, field)
    read_from = partial(hub.rows, source, field, name)
    return Source(name, Items(len(source), read_from) if hasattr(source, "__len__") else read_from, describe, limit)


def named(source: str, field: str, limit: int | None) -> Source:
    """A source that a word on the command line names."""
    if source == "manual":
        texts = corpus.paragraphs()
        items = Items(len(texts), lambda first: iter(texts[first:]))
        # Python's version shows in the contents
        return Source("manual", items, lambda: dict(kind="manual", sha256=Chunk(0, 0, texts).sha256), limit)
    if source == "-":
        if sys.stdin is None:
            raise UserError("Standard input is closed.")
        about = dict(kind="stdin", field=field)
        return Source("Standard input", partial(readers.typed, field), lambda: about, limit, repeatable=False)
    if source.startswith("hf:"):
        loaded = hub.load(source, field)
        # of parquet files a process needs only the row groups of its units
        contents = Files(loaded.parquet, field) if loaded.parquet else partial(hub.rows, loaded.dataset, field, source)
        return Source(source, contents, loaded.about, limit, stamp=partial(loaded.about, tails))
    paths = readers.find(source)
    about = partial(files, paths, field)
    return Source(source, Files(paths, field), about, limit, stamp=partial(about, tails))


def files(paths: Sequence[Path], field: str, sha256: Callable[[Sequence[Path]], object] = readers.digest) -> dict:
    """What identifies files: their names and contents; the field where they have fields."""
    fields = dict(field=field) if {p.suffix.lower() for p in paths} & {".jsonl", ".parquet"} else {}
    return dict(kind="files", files=[p.name for p in paths], **fields, sha256=sha256(paths))


def tails(paths: Sequence[Path]) -> list:
    """Instead of a sha256 of the contents, for a stamp."""
    return [readers.tail(path) for path in paths]


def object_source(source, field: str, limit: int | None) -> Source:
    """A Python iterable of texts, of lists of token ids, or of records."""
    kind = type(source).__name__
    if not isinstance(source, Iterable) or isinstance(source, Mapping | Set) or getattr(source, "ndim", 1) == 0:
        # these have no order, or keys first; or they are one number
        raise UserError(
            f"A {kind} is not a source; give a name, a path, a dataset, or an iterable of texts or token ids."
        )
    once = iter(source) is source
    name = getattr(source, "__name__", kind) if once else kind
    where = f"{name} (a Python {kind})" if name != kind else f"The {kind}"
    at_hand = isinstance(source, list | tuple | np.ndarray)

    def read_from(first: int = 0) -> Iterator[Example]:
        values = itertools.islice(source, first, None) if at_hand else source
        return (example(value, field, f"{where}, example {i}") for i, value in enumerate(values, first))

    def describe() -> dict:
        contents = isinstance(source, list | tuple)  # what they hold identifies them
        sha256 = dict(sha256=Chunk(0, 0, list(read_from())).sha256) if contents else {}
        return dict(kind="iterable", name=name, **sha256)

    return Source(where, Items(len(source), read_from) if at_hand else read_from, describe, limit, repeatable=not once)
