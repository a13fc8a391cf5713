"""The header of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and the table of its
tensors.

Every length and count is compared with the remaining bytes before it is used, and the tensors must fill the rest of the
file, one after the other.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from llama_jax.plumbing.errors import UserError

MAGIC, VERSIONS = b"GGUF", (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # of `struct`
BOOL, STRING, ARRAY = 7, 8, 9
BYTES = 64 << 20  # of a header: the largest vocabulary known, Gemma's, takes a quarter of them
ITEMS = 1 << 21  # of an array, and of the metadata and the tensors: Gemma has 580,604 merges
ALIGNMENT = 32

T = TypeVar("T")


class Place(NamedTuple):
    """A tensor's place: its shape, outermost axis first; GGML's number of its type; the bytes of the file it takes."""

    shape: tuple[int, ...]
    kind: int
    offset: int
    size: int


@dataclass(frozen=True)
class Header:
    metadata: dict[str, Any]
    tensors: dict[str, Place]


class BigEndianError(ValueError):
    """The file is big-endian."""


class DamagedError(ValueError):
    """What is wrong with the bytes; `read` adds the file's name."""


def read(path: Path) -> Header:
    """A file's header. Raises UserError if it is unreadable, not a GGUF, truncated or damaged."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # opening a pipe would wait for its writer
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{path} is not a regular file.")
            if (magic := file.read(len(MAGIC))) != MAGIC:
                raise UserError(f"{path}: not a GGUF file (it starts with {magic!r}, not {MAGIC!r}).")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse(Cursor(data, len(MAGIC)), status.st_size)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from None
    except BigEndianError:
        raise UserError(
            f"{path} is a big-endian GGUF file; fetch the little-endian one, or convert this one:"
            f" gguf-convert-endian {path} little."
        ) from None
    except DamagedError as error:
        raise UserError(f"{path}: the GGUF file is truncated or damaged: {error}.") from None


class Cursor:
    """Reads little-endian values from bytes, one after the other."""

    def __init__(self, data: bytes | mmap.mmap, at: int = 0):
        self.data, self.at, self.end = data, at, min(len(data), BYTES)

    def skip(self, size: int) -> int:
        """Where the next `size` bytes begin."""
        if size > self.end - self.at:
            raise DamagedError(f"its header goes on beyond byte {self.end:,}")
        self.at += size
        return self.at - size

    def numbers(self, form: str, count: int = 1) -> tuple:
        return struct.unpack_from(f"<{count}{form}", self.data, self.skip(count * struct.calcsize(f"<{form}")))

    def number(self, form: str):
        return self.numbers(form)[0]

    def count(self) -> int:
        """The number of items that follow, each of at least one byte."""
        if (count := self.number("Q")) > min(ITEMS, self.end - self.at):
            raise DamagedError(f"a count in its header is {count:,}")
        return count

    def text(self) -> str:
        return self.texts(1)[0]

    def texts(self, count: int) -> list[str]:
        data, at, texts, size = self.data, self.at, [], struct.Struct("<Q").unpack_from
        for _ in range(count):  # a hundred thousand of them: no call of ours in between
            start = at + 8
            at = start + size(data, at)[0] if start <= self.end else start
            if at > self.end:
                raise DamagedError(f"its header goes on beyond byte {self.end:,}")
            texts.append(data[start:at])
        self.at = at
        try:
            return [text.decode() for text in texts]
        except UnicodeDecodeError:
            raise DamagedError(f"a text before byte {at:,} of its header is not UTF-8") from None

    def value(self, kind: int):
        """A value of the metadata: a number, a text, or a list of either."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.scalars(kind, 1)[0]
        kind, count = self.number("I"), self.count()
        return self.texts(count) if kind == STRING else list(self.scalars(kind, count))

    def scalars(self, kind: int, count: int) -> tuple:
        if kind not in SCALARS:
            raise DamagedError(f"a value in its header has the unknown type {kind}")
        if kind != BOOL:
            return self.numbers(SCALARS[kind], count)
        if set(flags := self.numbers("B", count)) - {0, 1}:
            raise DamagedError("a truth value in its header is neither 0 nor 1")
        return tuple(map(bool, flags))


def parse(cursor: Cursor, length: int) -> Header:
    """The header of a file of `length` bytes."""
    version = cursor.number("I")
    if int.from_bytes(version.to_bytes(4, "little")) in VERSIONS:
        raise BigEndianError
    if version not in VERSIONS:
        raise DamagedError(f"its version is {version}; versions {VERSIONS[0]} and {VERSIONS[1]} can be read")
    tensors, pairs = cursor.count(), cursor.count()
    metadata = named(cursor, pairs, "value", lambda: cursor.value(cursor.number("I")))
    places = named(cursor, tensors, "tensor", lambda: (cursor.numbers("Q", dimensions(cursor)), *cursor.numbers("IQ")))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise DamagedError(f"general.alignment is {alignment!r:.40}, no power of two")
    return Header(metadata, placed(places, cursor.at, alignment, length))


def named(cursor: Cursor, count: int, what: str, read: Callable[[], T]) -> dict[str, T]:
    """`count` items, each after its name."""
    items = {}
    for _ in range(count):
        if (name := cursor.text()) in items:
            raise DamagedError(f"it has two {what}s of the name {name[:60]!r}")
        items[name] = read()
    return items


def dimensions(cursor: Cursor) -> int:
    if not 1 <= (count := cursor.number("I")) <= 4:
        raise DamagedError(f"a tensor has {count} dimensions")
    return count


def placed(entries: dict, end: int, alignment: int, length: int) -> dict[str, Place]:
    """Name → place of tensors given as (innermost axis first, type, offset after the header)."""
    start = end = padded(end, alignment)
    places = {}
    for name, (axes, kind, offset) in entries.items():
        shown = f"tensor {name[:60]}"
        if kind not in GGML_QUANT_SIZES:
            raise DamagedError(f"{shown} has the unknown type {kind}")
        block, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if not prod(axes) or axes[0] % block:
            raise DamagedError(f"{shown} has shape {list(axes[::-1])}, which blocks of {block} cannot fill")
        expected = padded(end, alignment)
        if start + offset != expected:
            raise DamagedError(f"{shown} begins at byte {offset:,} of the weights, not where the one before it ends")
        size = prod(axes) // block * width
        if (end := expected + size) > length:
            raise DamagedError(f"it has {length:,} bytes and {shown} ends at byte {end:,}")
        places[name] = Place(axes[::-1], int(kind), expected, size)
    if length > padded(end, alignment):
        raise DamagedError(f"{length - end:,} bytes follow its last tensor")
    return places


def padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
