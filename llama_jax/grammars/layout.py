"""How a value is written: what may stand between its parts, and values of which there is one."""

from __future__ import annotations

import json
from functools import lru_cache

from llama_jax.grammars.languages import EMPTY, Choice, Members, Sequence, TooLargeError, optional, text
from llama_jax.plumbing.errors import UserError

DEEPEST = 24  # levels of values in values
COLON = Sequence((text(":"), optional(text(" "))))


@lru_cache(maxsize=DEEPEST + 2)
def gap(depth: int) -> Choice:
    """What may stand before a part at this level."""
    return Choice((EMPTY, text(" "), text("\n" + "  " * depth)))


@lru_cache(maxsize=DEEPEST + 2)
def comma(depth: int) -> Sequence:
    return Sequence((text(","), gap(depth)))


def spelled(value) -> Sequence:
    """A text, number, true, false or null. Raises UserError for what JSON cannot write."""
    try:
        return text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, TypeError):  # also half a surrogate pair
        raise UserError("holds a value that JSON has no text for") from None


def enclosed(marks: str, depth: int, parts, **options) -> Sequence:
    """An object or array of parts (node, whether it must be there), at a level."""
    close = Sequence((gap(depth), text(marks[1])))
    return Sequence((text(marks[0]), Members(tuple(parts), gap(depth + 1), comma(depth + 1), text(marks[1]), close,
                                             **options)))  # fmt: skip


def literal(value, depth: int) -> Sequence:
    """This value, at a level."""
    if depth > DEEPEST:
        raise TooLargeError(f"is deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        parts = [(Sequence((spelled(str(k)), COLON, literal(v, depth + 1))), True) for k, v in value.items()]
        return enclosed("{}", depth, parts)
    if isinstance(value, list):
        return enclosed("[]", depth, [(literal(v, depth + 1), True) for v in value], skips=False)
    return spelled(value)
