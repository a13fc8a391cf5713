"""How far the cost of a token follows the bytes that it must read: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def growth(points: dict[str, Sequence[dict]], crossing: float) -> str:
    """How far the cost of a token follows the bytes that it must read."""
    said = []
    for axis, unit in (("layers", "layers"), ("width", "numbers of width"), ("context", "cache slots")):
        if len(points.get(axis, ())) > 1:
            first, last = points[axis][0], points[axis][-1]
            more = last["bytes"] / first["bytes"], last["median"] / first["median"]
            said.append(
                f"from {first['value']} to {last['value']} {unit} a token's bytes become {more[0]:.1f} times as many"
                f" and its time {more[1]:.1f} times as long"
            )
    sentence = "; ".join(said) if said else "no size was varied"
    sentence = " ".join(filter(None, [claim(points), sentence[0].upper() + sentence[1:]]))
    batch = points.get("batch", ())
    if len(batch) > 1:
        first, last = batch[0], batch[-1]
        gain = int(last["value"]) * first["median"] / (int(first["value"]) * last["median"])
        sentence += (
            f"; a batch of {last['value']} makes {gain:.1f} times as many tokens/s as a batch of {first['value']}"
        )
        if np.isfinite(crossing):
            sentence += f", the two limits, reading and arithmetic, crossing at about {crossing:.0f} rows"
    return sentence + "."


def claim(points: dict[str, Sequence[dict]]) -> str:
    """How much longer a token takes that reads more; "" where no size was varied."""
    for axis, noun in (
        ("layers", "through more layers"),
        ("width", "in wider layers"),
        ("context", "of a longer text"),
    ):
        if len(points.get(axis, ())) > 1:
            first, last = points[axis][0], points[axis][-1]
            more, longer = last["bytes"] / first["bytes"], last["median"] / first["median"]
            return f"A token that reads {more:.1f} times as many bytes, {noun}, takes {longer:.1f} times as long."
    return "Of what a token's cost grows with only the batch was varied." if len(points.get("batch", ())) > 1 else ""
