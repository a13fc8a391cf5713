"""Entries of a table as a readable frame: which values are shown, under which names, with how many digits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_lab.bench import statistics


def interval(name: str, where: str, middle: str = "median", ends: str = "") -> dict[str, str]:
    """Three columns: the `middle` of what stands at a path, and its interval's `low` and `high`, named after `ends`."""
    return {name: f"{where}.{middle}", f"{ends}low": f"{where}.low", f"{ends}high": f"{where}.high"}


def same(*names: str) -> dict[str, str]:
    """Columns named after the values that they show."""
    return dict(zip(names, names, strict=True))


RATIO = interval("ratio", "ratio", "value")


@dataclass(frozen=True)
class Columns:
    """What is shown of each entry.

    shown: the column's name → where its value stands, as a path such as `rate.median` through keys and attributes, or
    a function of the entry. index: the columns that name a line. digits: of all columns, or of some.
    """

    shown: Mapping[str, str | Callable[[Any], Any]]
    index: str | Sequence[str] = ()
    digits: int | Mapping[str, int] | None = None


def show(entries: Iterable, columns: Columns):
    """The entries as a pandas.DataFrame, one line each, rounded for reading."""
    import pandas as pd

    lines = [[value(entry, where) for where in columns.shown.values()] for entry in entries]
    frame = pd.DataFrame(lines, columns=list(columns.shown))
    if columns.index:
        frame = frame.set_index(columns.index if isinstance(columns.index, str) else list(columns.index))
    return frame if columns.digits is None else frame.round(columns.digits)


def value(entry, where: str | Callable):
    """What stands in an entry at a path, None behind a None; or what a function makes of the entry."""
    if callable(where):
        return where(entry)
    for name in where.split("."):
        if entry is not None:
            entry = entry[name] if isinstance(entry, Mapping) else getattr(entry, name)
    return entry


def scaled(where: str, by: float) -> Callable:
    """A column's value over `by`, such as bytes in megabytes; None and 0 stay."""
    return lambda entry: (known := value(entry, where)) and known / by


def percentile(p: int, where: str) -> Callable:
    """A percentile with one digit; where its sample is too small to hold it, how many values it needs."""

    def words(entry) -> str:
        known = value(entry, where)
        return f"needs n ≥ {statistics.enough(p):,}" if known is None else f"{known:.1f}"

    return words
