"""A grammar over a tokenizer's tokens: which token may follow in which state, and to which state it leads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np

from llama_jax.axes import Array, Int

FORBIDDEN = -1


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
