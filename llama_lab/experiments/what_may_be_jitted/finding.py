"""What the traces of one token say, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.experiments.what_may_be_jitted.measure import DEVICE, HOST, Traced


def token(rows: Sequence[Traced]) -> str:
    """The calls of each placement, and how much of its time the device computed."""
    parts = []
    for row in rows:
        calls = len(row.spans(HOST))
        parts.append(
            f"{calls:,} call{'s' * (calls != 1)} from Python under {row.subject}, whose {len(row.spans(DEVICE)):,}"
            f" operations keep the device busy {row.busy_ms / (row.total_ns / 1e6):.0%} of the time"
        )
    void = "".join(f"; {row.subject} compiled while it was traced" for row in rows if not row.valid)
    return (
        "While jit traces, it sees shapes and no values. What depends on values must be computed by JAX, what is fixed"
        f" may be a static argument. A token through {rows[0].layers} layers takes {'; '.join(parts)}"
        f" (one trace each, so no interval){void}."
    )
