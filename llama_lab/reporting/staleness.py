"""Which recorded tables are older than the code that their times depend on.

A headline is what the first lines of README and report rest on: every table of a notebook whose metadata say
`headline`, and the run that `make figures` repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_lab.bench import provenance
from llama_lab.experiments.headline.measure import NAME
from llama_lab.reporting import notebooks, overview


@dataclass(frozen=True)
class Table:
    """changed: modules that have changed since it was recorded, none where it is current; None where its meta does not
    say of which code it is."""

    name: str
    headline: bool
    changed: list[str] | None

    @property
    def wrong(self) -> bool:
        """Whether a headline is known to be of other code."""
        return self.headline and bool(self.changed)


def tables(home: Path) -> list[Table]:
    """All recorded tables in HOME/data, in the order in which their notebooks are read."""
    main = [NAME, *notebooks.saying("headline")]
    names = [NAME, *(source.stem for source in notebooks.sources())]
    found = [(name, path) for name in names for path in overview.tables(home / "data", name)]
    return [Table(path.stem, name in main, provenance.changed(overview.about(path))) for name, path in found]


def lines(found: Sequence[Table]) -> list[str]:
    """One line a stale table, one for all those of unknown code, one that says how many are current."""
    said = [f"{t.name}{' (headline)' * t.headline}: older than its code: {some(t.changed)}" for t in found if t.changed]
    unknown = [t.name for t in found if t.changed is None]
    current = sum(t.changed == [] for t in found)
    if unknown:
        said.append(f"recorded before code was hashed, {len(unknown)} of {len(found)} tables: {', '.join(unknown)}")
    return [*said, f"{current} of {len(found)} tables are of today's code"]


def some(names: Sequence[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
