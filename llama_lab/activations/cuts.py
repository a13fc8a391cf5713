"""Cutting a source into units without making its examples, so that any unit can be read alone afterwards.

A start is where a unit begins, as numbers that mean something to its source only; it is kept as JSON.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import readers
from llama_lab.activations.readers import BEGIN, Example, Hash, Place

Start = tuple[int, ...]


class Part(NamedTuple):
    """A unit of a source: its number, its first example, how many it has, where these begin, and the sha256 of the
    lines that hold them; of what has no lines, of nothing."""

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

    def read(self, start: Start = begin, digest: Hash | None = None) -> Iterator[Example]:
        """The examples from a start on. Of what is before it nothing is read, or of parquet no row group."""
        number, *place = start
        for path in self.paths[number:]:
            yield from readers.read(path, self.field, Place(*place), digest)
            place = BEGIN

    def ends(self, digest: Hash) -> Iterator[Start]:
        """The start of what follows, after each example."""
        return ((i, *place) for i, path in enumerate(self.paths) for place in readers.ends(path, digest))


class Items:
    """Examples that can be had by number; a start is (number,)."""

    begin = (0,)

    def __init__(self, count: int, read_from: Callable[[int], Iterator[Example]]):
        self.count, self.read_from = count, read_from

    def read(self, start: Start = begin, digest: Hash | None = None) -> Iterator[Example]:
        return self.read_from(start[0])

    def ends(self, digest: Hash) -> Iterator[Start]:
        return ((number,) for number in range(1, self.count + 1))


class Digest:
    """A sha256 that begins anew each time it is taken. What comes after the last example, blank lines or files without
    any, is no part of a unit: so what is taken is what was kept at an example."""

    def __init__(self):
        self.found = self.kept = hashlib.sha256()

    def update(self, content: bytes) -> None:
        self.found.update(content)

    def keep(self) -> None:
        self.kept = self.found.copy()

    def take(self) -> str:
        self.found = hashlib.sha256()
        return self.kept.hexdigest()


def parts(contents: Files | Items, size: int, limit: int | None) -> Iterator[Part]:
    """The units of `size` examples, the last one shorter, of `limit` examples at most. Files of lines are read to find
    where lines end; of parquet the footers."""
    if size < 1:
        raise UserError(f"A unit of {size} examples is none; give at least 1.")
    digest, numbers, first, start = Digest(), itertools.count(), 0, contents.begin
    seen = end = 0
    for seen, end in enumerate(itertools.islice(contents.ends(digest), limit), 1):
        digest.keep()
        if seen - first == size:
            yield Part(next(numbers), first, size, start, digest.take())
            first, start = seen, end
    if seen > first:
        yield Part(next(numbers), first, seen - first, start, digest.take())
