"""Numbers that others published, where they were published, and what was wrong with their measurement."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from llama_jax.plumbing import paths
from llama_lab.bench import frames

COLD_LOOP = 5  # iterations, as published
FILE = paths.ROOT / "data" / "published.csv"
STANDINGS = {  # as they stand beside a value → in words
    "document": "stands in the document",
    "repository": "stands in the stored results of the document's repository",
    "computed": "computed here from rows of the one or the other",
}
COLUMNS = frames.Columns(
    frames.same("claim", "quantity", "value", "unit", "standing", "source", "wrong"), index=("claim", "quantity")
)


@dataclass(frozen=True)
class Published:
    """One published figure. source: file, section and repository. standing: of `STANDINGS`. wrong: with its
    measuring."""

    claim: str
    quantity: str
    value: float
    unit: str
    system: str
    source: str
    standing: str
    wrong: str


def table():
    """What was published, a pandas.DataFrame with the fields of `Published`, one line each."""
    import pandas as pd

    return pd.read_csv(FILE, keep_default_na=False)


@functools.cache
def by_name() -> dict[tuple[str, str], Published]:
    """(claim, quantity) → each published figure; the file is read once."""
    figures = (Published(**row) for row in table().to_dict("records"))
    return {(figure.claim, figure.quantity): figure for figure in figures}


def of(claim: str, quantity: str) -> Published:
    """One published figure. Raises KeyError if there is none."""
    return by_name()[claim, quantity]


def figure_of(claim: str, quantity: str) -> float:
    """One published figure's value. Raises KeyError if there is none."""
    return of(claim, quantity).value


def standing(claim: str, *quantities: str) -> str:
    """Where these figures of a claim stand, as it is written beside them: `document`, or `document, computed`. Raises
    KeyError if there is none."""
    return ", ".join(dict.fromkeys(of(claim, quantity).standing for quantity in quantities))


def ends(claim: str, quantity: str) -> list[Published]:
    """One figure, or its least and most where these were published. Raises KeyError if there is none."""
    try:
        return [of(claim, quantity)]
    except KeyError:
        return [of(claim, f"{quantity}, {end}") for end in ("least", "most")]
