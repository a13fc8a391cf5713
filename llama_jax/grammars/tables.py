"""A grammar over a tokenizer's tokens: which token may follow in which state, and to which state it leads."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np

from llama_jax.axes import Array, Int
from llama_jax.grammars.automata import alike, leading
from llama_jax.grammars.languages import Automaton, ImpossibleError, TooLargeError

FORBIDDEN = -1
STATES, CLASSES = (64, 256, 1024, 4096, 16_384), (64, 256, 1024, 4096)  # sizes of a table
ENTRIES = 1 << 24  # of a table: 32 MiB
COLUMNS = 3 << 25  # entries of all columns while it is made: 200 MB


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """A deterministic automaton whose letters are classes of tokens. State 0 is the start.

    next: int16 [S C], the state after a token of a class, or FORBIDDEN. classes: int32 [V], the class of each id of the
    model's vocabulary. S and C are rounded up to one of a few, so a new grammar is no new program. Stop tokens are
    allowed where the answer may end, and lead to a state in which only they are allowed.
    """

    next: Int[Array, "S C"]
    classes: Int[Array, " V"]


class Walker(Protocol):
    """A place in one answer, on the host."""

    def mask(self) -> np.ndarray:
        """Which tokens may follow, bool [V]."""

    def advance(self, token: int) -> None:
        """Goes on by a token. Raises ValueError for one that may not follow."""


@dataclass
class TableWalker:
    """A place in one answer, as a state of a table."""

    table: Table = field(repr=False)
    state: int = 0

    def mask(self) -> np.ndarray:
        return np.asarray(self.table.next[self.state] != FORBIDDEN)[self.table.classes]

    def advance(self, token: int) -> None:
        following = int(self.table.next[self.state, self.table.classes[token]])
        if following == FORBIDDEN:
            raise ValueError(f"Token {token} may not follow here.")
        self.state = following


def create(automaton: Automaton, spellings: list[bytes], vocab_size: int, stop: Collection[int]) -> Table:
    """The table of an automaton over bytes, in numpy. spellings: the bytes of each token, none for one that may never
    follow.

    What a token does is a column: the state after it, for each state. Columns of tokens that begin alike are computed
    once, and tokens of equal columns are a class. Raises TooLargeError for more states or classes than a table has,
    ImpossibleError where the tokens cannot write any of its texts.
    """
    columns, column_of = walked(automaton, [spellings[i] if i < len(spellings) else b"" for i in range(vocab_size)])
    used, classes = np.unique(column_of, return_inverse=True)
    states, many = len(automaton.accepts), len(used)  # a state more, in which the answer has ended, a class more: stop
    rounded(states + 1, many + 1)
    following = np.full((states + 1, many + 1), FORBIDDEN, np.int16)
    following[:states, :many] = columns[used, :states].T
    following[following == states] = FORBIDDEN  # which `walked` calls so
    following[:states, many] = np.where(automaton.accepts, states, FORBIDDEN)
    following[states, many] = states
    classes[list(stop)] = many
    return padded(ending(following), classes.astype(np.int32))


def rounded(states: int, classes: int) -> tuple[int, int]:
    """(S, C) of a table that has room for so many. Raises TooLargeError where none has."""
    sizes = [next((n for n in known if n >= size), 0) for known, size in ((STATES, states), (CLASSES, classes))]
    if not 0 < sizes[0] * sizes[1] <= ENTRIES:
        raise TooLargeError(f"has {states:,} states and {classes:,} kinds of tokens, which is too large")
    return sizes[0], sizes[1]


def ending(following: np.ndarray) -> np.ndarray:
    """The same states without those from which no tokens lead to the last, where the answer has ended: a vocabulary
    need not have a token for each byte."""
    sources, letters = np.nonzero(following != FORBIDDEN)
    ends = np.arange(len(following)) == len(following) - 1
    alive = leading(sources, following[sources, letters], ends)
    if not alive[0]:
        raise ImpossibleError("has no value that the model's tokens write")
    numbers = np.append(np.where(alive, np.cumsum(alive) - 1, FORBIDDEN), FORBIDDEN).astype(np.int16)
    return numbers[following[alive]]  # FORBIDDEN is the last number


def padded(following: np.ndarray, classes: np.ndarray) -> Table:
    """The table with states and classes rounded up."""
    table = np.full(rounded(*following.shape), FORBIDDEN, np.int16)
    table[: following.shape[0], : following.shape[1]] = following
    return Table(table, classes)


def walked(automaton: Automaton, spellings: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(columns int16 [N S+1], each token's column [V]). State S is that of no text."""
    lengths = np.array([len(spelling) for spelling in spellings])
    order, starts = np.argsort(-lengths, kind="stable"), np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join(spellings), np.uint8)
    columns, at = Columns(automaton), np.where(lengths > 0, Columns.BEGIN, Columns.DEAD)
    for depth in range(lengths.max(initial=0)):
        longer = order[: np.count_nonzero(lengths > depth)]
        longer = longer[at[longer] != Columns.DEAD]
        at[longer] = columns.after(at[longer], data[starts[longer] + depth])
    return columns.rows[: len(columns.known)], at


class Columns:
    """The columns of texts: after none, then after a byte more. Equal ones have the same number."""

    BEGIN, DEAD = 0, 1

    def __init__(self, automaton: Automaton):
        states = len(automaton.accepts)
        steps, self.letter = alike(automaton.next)
        self.steps = np.full((steps.shape[1], states + 1), states, np.int16)
        self.steps[:, :-1] = np.where(steps < 0, states, steps).T
        self.rows = np.array([np.arange(states + 1), np.full(states + 1, states)], np.int16)
        self.known = {row.tobytes(): n for n, row in enumerate(self.rows)}
        self.memo = np.full((2, len(self.steps)), FORBIDDEN, np.int32)

    def after(self, numbers: np.ndarray, data: np.ndarray) -> np.ndarray:
        """The columns after these and a byte each."""
        letters, many = self.letter[data], len(self.steps)
        found = self.memo[numbers, letters]
        unknown = np.unique((numbers * many + letters)[found < 0])
        for some in np.array_split(unknown, len(unknown) * self.rows.shape[1] // (1 << 20) + 1):
            self.add(some // many, some % many)
        return self.memo[numbers, letters]

    def add(self, numbers: np.ndarray, letters: np.ndarray) -> None:
        rows = self.steps[letters[:, None], self.rows[numbers]]
        before = len(self.known)
        self.memo[numbers, letters] = [self.known.setdefault(row.tobytes(), len(self.known)) for row in rows]
        if len(self.known) * self.rows.shape[1] > COLUMNS:
            raise TooLargeError("tells too many tokens apart")
        fresh = [np.frombuffer(row, np.int16) for row in list(self.known)[before:]]
        if fresh:
            self.rows = np.vstack([self.rows, fresh])
            self.memo = np.vstack([self.memo, np.full((len(fresh), self.memo.shape[1]), FORBIDDEN, np.int32)])
