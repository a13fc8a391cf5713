"""Results in words: intervals, counts, lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def ends(found, name: str = "") -> tuple[float, float]:
    """(low, high) of a summary or a ratio, or of an entry with such keys, which may begin with a name."""
    return tuple(found[name + end] if isinstance(found, dict) else getattr(found, end) for end in ("low", "high"))


def interval(found, form: str | Callable[[float], str] = ".2f", name: str = "") -> str:
    """`[low, high]` of what `ends` takes. form: of a number, or what says it."""
    low, high = (form(end) if callable(form) else f"{end:{form}}" for end in ends(found, name))
    return f"[{low}, {high}]"


def within(found, form: str | Callable[[float], str] = ".2f", name: str = "") -> str:
    """The same after a space; "" where there is no interval."""
    return f" {interval(found, form, name)}" if math.isfinite(ends(found, name)[0]) else ""


def times(ratio: dict) -> str:
    """`5.21x [4.83, 5.62]` of a ratio's entry."""
    return f"{ratio['value']:.2f}x {interval(ratio)}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def short_model(model: str) -> str:
    """A model's name for a label; one with other sizes than its preset's by that preset."""
    preset, _, changes = model.partition(",")
    return f"{preset} (changed)" if changes else model
