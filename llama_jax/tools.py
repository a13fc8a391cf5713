"""Small conveniences for a notebook of your own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TypeVar

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown

T = TypeVar("T")


def default_arg(value: T | None, default: T | None = None, default_factory: Callable[[], T] | None = None) -> T | None:
    """The value; if it is None, `default` or else the result of `default_factory`.

    0, False and empty lists are values. The factory is called only if it is needed.
    """
    if value is not None:
        return value
    return default_factory() if default is None and default_factory is not None else default


def prompt(text: str) -> str:
    '''A text that was written between triple quotes, without the indentation that its lines share and the empty lines
    before it.

        ll.tools.prompt(f"""
            Name {n} colours.
            Answer in one line.
        """)

    Raises UserError for what is no text.
    '''
    if not isinstance(text, str):
        raise UserError(f"The prompt is {shown(text)}; it must be text.")
    return textwrap.dedent(text).lstrip("\n")
