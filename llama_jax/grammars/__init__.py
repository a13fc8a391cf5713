"""Answers that are valid JSON: a JSON schema as an automaton over a tokenizer's tokens.

`schemas` makes a language of bytes of a schema, `automata` an automaton of that, `tables` a table over tokens: what may
follow in a state is a row of it, so a compiled loop masks logits without leaving the device. Values of any depth are
no regular language; `host` walks through them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from llama_jax.grammars import schemas, tables
from llama_jax.grammars.automata import automaton
from llama_jax.grammars.languages import Budget, ImpossibleError, TooLargeError
from llama_jax.grammars.tables import Table, TableWalker, Walker
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.tokenizer import Tokenizer

__all__ = ["Grammar", "ImpossibleError", "Table", "TooLargeError", "Walker", "compile"]
OBJECT = {"type": "object"}


@dataclass(frozen=True, eq=False)
class Grammar:
    """A grammar over a tokenizer's tokens. table: its automaton, numpy arrays, or None where its language is not
    regular."""

    table: Table | None
    start: Callable[[], Walker] = field(repr=False)

    def host(self) -> Walker:
        """A new place at the beginning of an answer."""
        return self.start()


def compile(grammar: dict | str, tokenizer: Tokenizer, vocab_size: int, stop: Collection[int]) -> Grammar:
    """The grammar of a JSON schema, or of any JSON object ("json"). vocab_size: ids of the model, which may be more
    than the tokenizer's. stop: ids that end an answer, at least one.

    `schemas` and docs/structured-answers.md say what a schema may hold and how values are laid out. Raises UserError
    for a schema that is not supported, that no value satisfies (ImpossibleError), or that is too large (TooLargeError),
    and for a tokenizer without a vocabulary. https://json-schema.org/draft/2020-12
    """
    schema = OBJECT if grammar == "json" else grammar
    if not isinstance(schema, dict):
        raise UserError(f'The grammar is {boundary.shown(grammar)}; it must be a JSON schema, or "json".')
    stop = sorted(i for i in {*stop} if i < vocab_size)
    if not isinstance(tokenizer, Tokenizer) or not stop:
        raise UserError("A grammar needs a tokenizer, and a token that ends an answer; this model has none.")
    try:
        with schemas.named(""):
            schemas.check_written(schema)
            budget = Budget()
            node = schemas.node(schema, budget)
            if node is None:
                return hosted(schema, tokenizer, vocab_size, stop)
            table = tables.create(automaton(node, budget), tokenizer.spellings, vocab_size, stop)
            return Grammar(table, partial(TableWalker, table))
    except RecursionError:
        raise TooLargeError("The schema has a pattern or value that is nested too deep.") from None


def hosted(schema: dict, tokenizer: Tokenizer, vocab_size: int, stop: Collection[int]) -> Grammar:
    """The grammar of a language that is not regular."""
    from llama_jax.grammars import host  # only such schemas wait for the library

    start = partial(host.walker, schema, tokenizer, vocab_size, stop)
    start()  # which refuses what it does not support
    return Grammar(None, start)
