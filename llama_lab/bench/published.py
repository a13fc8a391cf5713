"""What others published, and how they measured it."""

from __future__ import annotations

from llama_jax.plumbing import paths

COLD_LOOP = 5  # iterations, as published
FILE = paths.ROOT / "data" / "published.csv"


def table():
    """What was published, a pandas.DataFrame: claim, quantity, value, unit, system, and what was wrong with its
    measuring."""
    import pandas as pd

    return pd.read_csv(FILE)


def figure_of(claim: str, quantity: str) -> float:
    """One published figure. Raises KeyError when there is none."""
    known = table().set_index(["claim", "quantity"])["value"]
    return float(known.loc[(claim, quantity)])
