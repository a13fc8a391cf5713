"""Rows of a file's blocks into groups of 16."""

from __future__ import annotations

import numpy as np


def apart(rows: np.ndarray, head: int) -> np.ndarray:
    """Rows [N, ...] with the interleaved rotary pairs of each head of so many rows apart again; as they are where head
    is 0."""
    return rows.reshape(-1, head // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) if head else rows
