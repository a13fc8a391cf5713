"""What the traces of one token say, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim
from llama_lab.experiments.what_may_be_jitted.measure import DEVICE, HOST, Traced


def token(rows: Sequence[Traced]) -> str:
    """The rule, the calls of each placement, and how much of its time the device computed."""
    return Claim("While jit traces, it sees shapes and no values.").text(
        "what depends on values must be computed by JAX, what is fixed may be a static argument",
        *(
            f"a token through {row.layers} layers under {row.subject}: {len(row.spans(HOST)):,} calls from Python,"
            f" {len(row.spans(DEVICE)):,} operations, device busy {row.busy_ms * 1e6 / row.total_ns:.0%} of the time"
            for row in rows
        ),
        *(f"{row.subject} compiled while it was traced" for row in rows if not row.valid),
    )
