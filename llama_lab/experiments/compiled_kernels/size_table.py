"""What rows of engines on files of several sizes say: each engine's rate, its share of the limit, and how far it is
from the best peer on the same file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, standings, summary
from llama_lab.bench.experiment import whole
from llama_lab.bench.record import Trial
from llama_lab.experiments.compiled_kernels.sizes import PROMPT

DECODE, PREFILL = "decode", "prefill"


def shape_of(trial: Trial) -> tuple[str, int]:
    """(DECODE, context) or (PREFILL, tokens of the prompt)."""
    if trial.new_tokens > PROMPT:
        return DECODE, trial.prompt_tokens + trial.new_tokens
    return PREFILL, trial.prompt_tokens


def table(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """One entry a file, shape and subject, by bytes a token: {file, what (DECODE or PREFILL), tokens, name, backend,
    bytes: that a token reads, rate: Summary of tokens/s (of a prompt: its tokens until the next one is there), mbu:
    median share of the limit, nan of a prompt's, best: the peer with the highest median rate there, ratio: over that
    peer, None without one, void: answers that do not count}."""
    rows = [t for t in whole(trials) if t.valid or t.new_tokens]  # of one that failed nobody knows at what
    by = dict(file="run", what=lambda t: shape_of(t)[0], tokens=lambda t: shape_of(t)[1], name="subject")
    frame = summary.tally(rows, by, dict(rate=rate_of), seed=seed, clusters=None)
    entries = [
        e | dict(backend=e["first"].backend, bytes=e["first"].bytes_per_token, mbu=share_of_limit(e))
        for e in frame.to_dict("records")
        if e["n"]
    ]
    for e in entries:
        peers = [other for other in entries if shape(other) == shape(e) and other["backend"] != standings.JAX]
        best = max(peers, key=lambda peer: peer["rate"].median, default=None)
        sides = [{summary.in_block(t): rate_of(t) for t in side["rows"]} for side in (e, best) if side]
        e |= dict(best=best and best["name"], ratio=summary.over(*sides, seed) if best else None)
    return sorted(entries, key=lambda e: (e["what"], e["tokens"], e["bytes"], e["file"]))


def shape(entry: dict) -> tuple[str, str, int]:
    """What engines are compared within."""
    return entry["file"], entry["what"], entry["tokens"]


def rate_of(trial: Trial) -> float:
    """Tokens/s: of the answer, or of the prompt."""
    return trial.tg if shape_of(trial)[0] == DECODE else trial.pp


def share_of_limit(entry: dict) -> float:
    """The median of the answers' shares of the limit, nan of a prompt's."""
    return float(np.median([t.mbu for t in entry["rows"]])) if entry["what"] == DECODE else float("nan")


def ours(entries: Sequence[dict]) -> list[dict]:
    """The entries of placements that have a peer beside them."""
    return [e for e in entries if e["backend"] == standings.JAX and e["ratio"] is not None and e["ratio"].n]


COLUMNS = frames.Columns(
    {
        **frames.same("file", "what", "tokens"),
        "subject": "name",
        "MB a token": frames.scaled("bytes", 1e6),
        "tokens/s": "rate.median",
        "share of the limit": "mbu",
        "best peer": "best",
        **frames.interval("over it", "ratio", "value"),
        "n": "rate.n",
        "void": "void",
    },
    digits={"MB a token": 1, "tokens/s": 1, "share of the limit": 3, "over it": 2, "low": 2, "high": 2},
)
