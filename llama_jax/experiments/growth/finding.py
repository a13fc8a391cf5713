"""How far the cost of a token follows the bytes that it must read: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def growth(points: dict[str, Sequence[dict]], over_bytes: dict[str, float], crossing: float) -> str:
    """How far the cost of a token follows the bytes that it must read."""
    said = []
    for axis, unit in (("layers", "layers"), ("width", "units of width"), ("context", "cache slots")):
        if len(points.get(axis, ())) > 1:
            first, last = points[axis][0]["value"], points[axis][-1]["value"]
            said.append(f"{over_bytes[axis]:.2f} times as much as its bytes from {first} to {last} {unit}")
    sentence = "A token's time grows " + ", ".join(said) if said else "No size was varied"
    batch = points.get("batch", ())
    if len(batch) > 1:
        first, last = batch[0], batch[-1]
        gain = int(last["value"]) * first["median"] / (int(first["value"]) * last["median"])
        sentence += (
            f"; a batch of {last['value']} makes {gain:.1f} times as many tokens/s as a batch of {first['value']}"
        )
        if np.isfinite(crossing):
            sentence += f", arithmetic being the limit from about {crossing:.0f} rows on"
    return sentence + "."
