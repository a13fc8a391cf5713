"""The gate: a time counts only if the tokens are the reference's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

PARTS = "parts from float32"  # how the reason of an approximate subject's trial begins
NEAR_TIE = 1e-3  # the reference's two best logits this close: float32 rounding may decide either way


def tokens_hash(tokens: np.ndarray) -> str:
    """SHA-256 of token ids [n B] as little-endian int32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(tokens.T, "<i4").tobytes()).hexdigest()


def margin(logits: np.ndarray) -> float:
    """How far the best of these logits [V] is ahead of the second."""
    second, best = np.sort(np.asarray(logits))[-2:]
    return float(best - second)


def approximate(quantisation: str) -> bool:
    """Whether a subject of this quantisation need not make the reference's tokens: it computes on a file's quantised blocks."""
    return quantisation.startswith("gguf")


def parting(tokens: np.ndarray, reference: np.ndarray) -> str:
    """Where an approximate subject's row of tokens [n] parts from the reference's, in words; "" where it never does."""
    shared = min(len(tokens), len(reference))
    differs = np.flatnonzero(tokens[:shared] != reference[:shared])
    if len(differs):
        return f"{PARTS} at token {int(differs[0])}"
    return "" if len(tokens) == len(reference) else f"{PARTS} at token {shared}"


@dataclass(frozen=True)
class Verdict:
    passed: bool
    reason: str = ""


def compare(tokens: np.ndarray, reference: np.ndarray, margin: Callable[[int], float]) -> Verdict:
    """Compare one row of greedy tokens [n] with the reference's.

    margin(k): difference of the reference's two best logits where it chose token k. After a near-tie the two texts are
    different texts, so nothing later is compared.
    """
    if len(tokens) != len(reference):
        return Verdict(False, f"wrong: {len(tokens)} tokens, the reference has {len(reference)}")
    differs = np.flatnonzero(tokens != reference)
    if not len(differs):
        return Verdict(True)
    k = int(differs[0])
    if margin(k) <= NEAR_TIE:
        return Verdict(True, f"near-tie at token {k}")
    return Verdict(False, f"wrong: token {k} is {tokens[k]}, the reference has {reference[k]}")
