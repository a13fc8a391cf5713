"""Checks of arguments: whole numbers, numbers and lists of them, Python's or NumPy's, within stated bounds; one line
for anything else.

They are plain functions that take less than a microsecond, because every request runs them, even without pydantic.
"""

from __future__ import annotations

import contextlib
import numbers
import reprlib
from collections.abc import Sequence
from typing import Any

from llama_jax.plumbing.errors import UserError

LARGEST = 2**31 - 1  # of a whole number: what int32 holds

LONG = 200  # characters of a path in a message


def shown(value: Any, longest: int = 60) -> str:
    """A value for a message: both of its ends, however long or deep it is."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 2, longest, longest, 40
    try:
        return short.repr(value)
    except Exception:  # a repr of its own that fails, or a number of more digits than Python writes
        return f"a {type(value).__name__}"


def plain(value: Any) -> Any:
    """A scalar of NumPy or JAX as Python's own; anything else as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def integer(value: Any) -> int | None:
    """A whole number as an int; None for anything else, True and 1.0 among it."""
    if type(value) is int:
        return value
    number = plain(value)
    return int(number) if isinstance(number, int) and not isinstance(number, bool) else None


def whole(value: Any, name: str, least: int = 0, most: int = LARGEST) -> int:
    """A whole number from `least` to `most`. Raises UserError for anything else."""
    number = integer(value)
    if number is None or not least <= number <= most:
        bound = f"at most {most}" if number is not None and number > most else f"{least} or more"
        raise UserError(f"{name} is {shown(value)}; it must be a whole number, {bound}.")
    return number


def number(value: Any, name: str, least: float, most: float) -> float:
    """A number from `least` to `most` as a float. Raises UserError for anything else, NaN among it."""
    real = plain(value)
    if isinstance(real, bool) or not isinstance(real, numbers.Real) or not least <= real <= most:
        raise UserError(f"{name} is {shown(value)}; it must be a number from {least:g} to {most:g}.")
    return float(real)


def listed(value: Any, name: str, of: str) -> Sequence:
    """A list, a tuple, a range, or an array of one axis or more, as it is. Raises UserError for anything else, text
    and generators among it."""
    if type(value) in (list, tuple):
        return value
    axes = getattr(value, "ndim", None)
    if not isinstance(value, str | bytes | bytearray | memoryview) and (
        isinstance(value, Sequence) or (isinstance(axes, int) and axes > 0)
    ):
        with contextlib.suppress(OverflowError):  # a range may be longer than Python counts
            len(value)
            return value
    raise UserError(f"{name} is {shown(value)}; it must be a list of {of}.")
