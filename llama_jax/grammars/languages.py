"""Languages of bytes: what a tree of nodes is made of, and the bounds on what is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from llama_jax.plumbing.errors import UserError

LARGEST = 16_384  # states of an automaton
WORK = 1_000_000  # steps that making one may take: about a second
DEAD = -1


class TooLargeError(UserError):
    """An automaton beyond the bounds."""


class ImpossibleError(UserError):
    """A language without a text."""


@dataclass(frozen=True, eq=False)
class Bytes:
    """One byte of a set."""

    values: frozenset[int]


@dataclass(frozen=True, eq=False)
class Sequence:
    parts: tuple


@dataclass(frozen=True, eq=False)
class Choice:
    options: tuple


@dataclass(frozen=True, eq=False)
class Repeat:
    """From `least` to `most` times a part, without a limit if `most` is None."""

    part: object
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Members:
    """Parts of an object or array: (part, whether it must be there), then from `least` to `most` times `more`. skips:
    a part may follow one that is left out. `empty` closes when there is none, `close` after the last."""

    parts: tuple[tuple[object, bool], ...]
    opening: object
    separator: object
    empty: object
    close: object
    skips: bool = True
    more: object = None
    least: int = 0
    most: int | None = None


@dataclass(frozen=True, eq=False)
class Edge:
    """No byte, but the start of the text, or its end. The text is that of `automaton`'s node."""

    end: bool


@dataclass(frozen=True, eq=False)
class Automaton:
    """next: int32 [S 256], the state after a byte, or DEAD. accepts: bool [S]. State 0 is the start."""

    next: np.ndarray = field(repr=False)
    accepts: np.ndarray = field(repr=False)

    @cached_property
    def arrows(self) -> list[list[tuple[frozenset[int], int]]]:
        """Of each state: (bytes, the state after any of them)."""
        targets = [np.unique(row[row != DEAD]).tolist() for row in self.next]
        return [
            [(frozenset(np.flatnonzero(row == target).tolist()), target) for target in some]
            for row, some in zip(self.next, targets, strict=True)
        ]


EMPTY = Sequence(())


def text(value: str | bytes) -> Sequence:
    """Exactly this text."""
    return Sequence(tuple(BYTES[byte] for byte in (value.encode() if isinstance(value, str) else value)))


BYTES = [Bytes(frozenset([byte])) for byte in range(256)]


def choice(options: Iterable) -> object:
    options = tuple(options)
    return options[0] if len(options) == 1 else Choice(options)


def optional(part: object) -> Choice:
    return Choice((part, EMPTY))


class Budget:
    """Counts work. Raises TooLargeError when it is spent."""

    def __init__(self, left: int = WORK):
        self.left = left

    def take(self, work: int = 1) -> None:
        self.left -= work
        if self.left < 0:
            raise TooLargeError("describes an automaton that is too large")
