"""Numbers and their intervals as text."""

from __future__ import annotations

import math
from collections.abc import Callable


def ends(estimate, name: str = "") -> tuple[float, float]:
    """(low, high) of a summary or a ratio, or of an entry with such keys, which may begin with a name."""
    return tuple(
        estimate[name + end] if isinstance(estimate, dict) else getattr(estimate, end) for end in ("low", "high")
    )


def interval(estimate, form: str | Callable[[float], str] = ".2f", name: str = "") -> str:
    """`[low, high]` of what `ends` takes. form: of a number, or what says it."""
    low, high = (form(end) if callable(form) else f"{end:{form}}" for end in ends(estimate, name))
    return f"[{low}, {high}]"


def within(estimate, form: str | Callable[[float], str] = ".2f", name: str = "") -> str:
    """The same after a space; "" where there is no interval."""
    return f" {interval(estimate, form, name)}" if math.isfinite(ends(estimate, name)[0]) else ""


def round_ratio(value: float) -> str:
    """A ratio in two digits, `2.5`, `11`, `0.35`."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}" if value >= 0.995 else f"{value:.2f}"
