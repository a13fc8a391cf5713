"""Results in words: intervals, counts, lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.bench.statistics import Ratio


def with_n(ratio: Ratio) -> str:
    """`1.31x [1.22, 1.40] (n = 6)`."""
    return f"{ratio.words} (n = {ratio.n})"


def standing(found: Ratio, label: str, other: dict) -> str:
    """One ratio in words; one that these trials do not decide is said to be so."""
    kind = "" if other["dtype"] == "float32" else f" on {other['dtype']} weights"
    words = f"{found.words} of {label} ({other['name']}{kind})"
    undecided = found.verdict in ("inconclusive", "unstable")
    return words + (
        f", which n = {found.n} {'blocks do' if found.n > 1 else 'block does'} not decide" if undecided else ""
    )


def within(found, digits: int, name: str = "", form: str = "f") -> str:
    """` [low, high]` of a summary, a ratio or an entry; "" where there is no interval."""
    low, high = (found[f"{name}_{end}"] if name else getattr(found, end) for end in ("low", "high"))
    return f" [{low:.{digits}{form}}, {high:.{digits}{form}}]" if np.isfinite(low) else ""


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def short_model(model: str) -> str:
    """A model's name for a label; one with other sizes than its preset's by that preset."""
    preset, _, changes = model.partition(",")
    return f"{preset} (changed)" if changes else model
