"""Taps: named points inside a layer at which a value can be looked at, or replaced, while the model runs.

`layer` and `attend` pass each of these values to `tap(name, value)` and continue with the result. The default returns
them unchanged and costs nothing in a compiled program.

resid_pre   the residual stream before the layer      [B T D]
q, k, v     queries, keys, values, before rotation    [B H T h], [B K T h], [B K T h]
pattern     attention weights                         [B K H/K T S]
attn_out    what attention adds to the stream         [B T D]
resid_mid   the stream between the two blocks         [B T D]
mlp_out     what the feed-forward network adds        [B T D]
resid_post  the stream after the layer                [B T D]
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def untapped(name: str, value: T) -> T:
    """Look at nothing."""
    return value
