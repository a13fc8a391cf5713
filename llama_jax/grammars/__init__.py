"""Answers that are valid JSON: a JSON schema as an automaton over a tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from llama_jax.grammars.tables import Table, TableWalker, Walker
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

__all__ = ["Grammar", "Table", "Walker", "compile"]


@dataclass(frozen=True, eq=False)
class Grammar:
    """A grammar over a tokenizer's tokens. table: its automaton, numpy arrays, or None where its language is not
    regular."""

    table: Table | None

    def host(self) -> Walker:
        """A new place at the beginning of an answer."""
        return TableWalker(self.table)


def compile(grammar: dict | str, tokenizer: Tokenizer, vocab_size: int, stop: Collection[int]) -> Grammar:
    """The grammar of a JSON schema, or of any JSON object ("json"). vocab_size: ids of the model, which may be more
    than the tokenizer's. stop: ids that end an answer.

    Raises UserError for a schema that is not supported, that no value satisfies, or that is too large.
    """
    raise UserError("Schemas are not read yet.")
