"""The gate: a time counts only if the tokens are the reference's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llama_jax.bench import WRONG

PARTS = "parts from float32"  # how the reason of an approximate subject's trial begins
NEAR_TIE = 1e-3  # logits this close to the reference's best: float32 rounding may decide either way
# Where activations are rounded to 8 bits a float32 rounding takes one of them to its neighbour, and each layer makes
# more of it: at 1,024
# positions of two texts the distance of the two best logits moved by 0.09 (median) and up to 0.71 between step+gemv and
# layer+gemv.
FLIP = 0.75


def tokens_hash(tokens: np.ndarray) -> str:
    """SHA-256 of token ids [n B] as little-endian int32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(tokens.T, "<i4").tobytes()).hexdigest()


def behind(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """How far each token [n] is from the best under the reference's logits [n V], which it gives after the text up to
    there; infinite for what is no token."""
    logits, known = np.asarray(logits, np.float64), (tokens >= 0) & (tokens < logits.shape[1])
    chosen = logits[np.arange(len(tokens)), np.where(known, tokens, 0)]
    return np.where(known, logits.max(-1) - chosen, np.inf)


def approximate(quantisation: str) -> bool:
    """Whether a subject of this quantisation need not make the reference's tokens: another program computes on a file's
    quantised blocks ("gguf-q4_1"), or rounds activations itself ("int8-dynamic"). A placement of ours ("gguf+gemv") is
    held to the tokens of its own arithmetic."""
    return quantisation.startswith(("gguf-", "int8-"))


def near_tie(quantisation: str) -> float:
    """How close to the reference's best logit a token must be for both to be right under this quantisation."""
    return FLIP if set(quantisation.split("+")) & {"gemv", "fused"} else NEAR_TIE


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


def compare(
    tokens: np.ndarray, reference: np.ndarray, logits: Callable[[], np.ndarray], near: float = NEAR_TIE
) -> Verdict:
    """Compare one row of greedy tokens [n] with the reference's.

    logits(): the reference's [n V] before each of these tokens, asked for only where they differ. The first difference
    must stand at a near-tie (`near`): both tokens that close to the best. After it the two texts are different texts,
    and every token must come close to the reference's best there.
    """
    if len(tokens) != len(reference):
        return Verdict(False, f"{WRONG}{len(tokens)} tokens, the reference has {len(reference)}")
    differs = np.flatnonzero(tokens != reference)
    if not len(differs):
        return Verdict(True)
    k, known = int(differs[0]), np.asarray(logits())
    distances = behind(known, tokens)
    if not max(distances[k], *behind(known[k : k + 1], reference[k : k + 1])) <= near:
        return Verdict(False, f"{WRONG}token {k} is {tokens[k]}, the reference has {reference[k]}")
    far = k + np.flatnonzero(~(distances[k:] <= max(near, FLIP)))
    if len(far):
        return Verdict(
            False,
            f"{WRONG}after a near-tie at token {k}, token {far[0]} is {tokens[far[0]]}, far from the reference's best",
        )
    return Verdict(True, f"near-tie at token {k}")
