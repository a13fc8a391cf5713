"""How far the cost of a token follows the bytes that it must read: the sentence of the notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llama_lab.bench.claim import Claim, stated

AXES = {"layers": "through more layers", "width": "in wider layers", "context": "of a longer text"}


def growths(points: Mapping[str, Sequence[dict]]) -> dict[str, dict[str, float]]:
    """Axis → how many times as many bytes a token reads at its last point as at its first, and how many times as long
    it takes."""
    ends = {axis: (points[axis][0], points[axis][-1]) for axis in AXES if len(points.get(axis, ())) > 1}
    return {
        axis: dict(more=last["bytes"] / first["bytes"], longer=last["median"] / first["median"])
        for axis, (first, last) in ends.items()
    }


def claim(points: Mapping[str, Sequence[dict]]) -> Claim:
    """How much longer a token takes that reads more."""
    axis, numbers = next(iter(growths(points).items()), ("", {}))
    if not axis:
        return Claim("No size that a token's bytes grow with was varied.")
    said = "A token that reads {more:.1f} times as many bytes, {noun}, takes {longer:.1f} times as long."
    other = "A token that reads {more:.1f} times as many bytes, {noun}, takes {longer:.2f} times the time."
    numbers |= dict(noun=AXES[axis])
    return stated(said, when=numbers["longer"] > 1, **numbers) or stated(other, **numbers)


def growth(points: Mapping[str, Sequence[dict]], crossing: float) -> str:
    """The claim, the same of every axis, and what a batch gains. crossing: rows at which the time to compute overtakes
    the time to read; NaN where it does not."""
    batch = points.get("batch", ())
    rates = [int(p["value"]) / p["median"] for p in batch]
    return claim(points).text(
        *(
            f"{axis}: {n['more']:.1f} times the bytes, {n['longer']:.1f} times the time"
            for axis, n in growths(points).items()
        ),
        f"a batch of {batch[-1]['value']} makes {rates[-1] / rates[0]:.1f} times the tokens/s"
        if len(rates) > 1
        else "",
        f"reading and arithmetic take equally long at about {crossing:.0f} rows" if math.isfinite(crossing) else "",
    )
