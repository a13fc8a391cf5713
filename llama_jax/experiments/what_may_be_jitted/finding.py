"""What the traces of one token say, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.experiments.what_may_be_jitted.measure import DEVICE, HOST, Traced


def token(rows: Sequence[Traced]) -> str:
    """The calls of each placement, and how much of its time the device computed."""
    parts = []
    for row in rows:
        calls = len(row.spans(HOST))
        parts.append(
            f"under {row.subject} {calls:,} call{'s' * (calls != 1)} from Python for {len(row.spans(DEVICE)):,}"
            f" operations, which fill {row.busy_ms / (row.total_ns / 1e6):.0%} of its time"
        )
    void = "".join(f"; {row.subject} compiled while it was traced" for row in rows if not row.valid)
    return (
        "What jit compiles sees shapes and no values, so whatever depends on values must be computed inside, and"
        f" whatever is fixed may be static. One token of {rows[0].layers} layers is {'; '.join(parts)}"
        f" (one trace each, so no interval){void}."
    )
