"""Two texts of different kinds read under each subject's arithmetic: how far its next-token distribution is from
float32's, and how well it predicts the text itself.

As `quality`, window by window with every true token given; beside the distance, the negative log-likelihood of each
true next token, whose mean's exponential is the perplexity. The reference is the float32 model on the weights of the
checkpoint, whatever a peer made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab import corpus
from llama_lab.bench import passages, quality, standings
from llama_lab.bench.quality import PICO, REFERENCE, Window

PROSE, CODE = "manual", "code"
TEXTS = {PROSE: "Python's manual", CODE: "Python's library"}
ALL = "both texts"


class Reading(Window):
    """One window of one text under one subject."""

    text: str  # a name of TEXTS
    nll_pnat: list[int]  # -ln p(the true next token) of each position, in 1e-12 nats

    @property
    def nll(self) -> np.ndarray:
        """Nats, one a position."""
        return np.asarray(self.nll_pnat, float) / PICO

    @staticmethod
    def more(text: str, logits: np.ndarray, following: Sequence[int]) -> dict:
        return dict(text=text, nll_pnat=quality.pnat(likelihood(logits, following)))


def texts(loaded: Checkpoint, tokens: int, seed: int = 0) -> dict[str, list[int]]:
    """`tokens` + 1 ids of each text, so that each of the first `tokens` has a successor; random ids for a model without
    a tokenizer."""
    if loaded.tokenizer is None:
        vocabulary, count = loaded.config.vocab_size, tokens + 1
        return {t: list(passages.random_prompts(vocabulary, count, seed + i, 1)[0]) for i, t in enumerate(TEXTS)}
    whole = {PROSE: corpus.manual(), CODE: corpus.code()}
    ids = {name: loaded.tokenizer.encode(text[: 12 * (tokens + 1)])[: tokens + 1] for name, text in whole.items()}
    if short := [name for name in ids if len(ids[name]) <= tokens]:
        there = len(ids[short[0]]) - 1
        raise UserError(f"quality_tokens is {tokens}; the text {short[0]!r} has {there}. Ask for fewer.")
    return ids


def likelihood(logits: np.ndarray, following: Sequence[int]) -> np.ndarray:
    """-ln p [T] of the true next tokens under logits [T V]."""
    from scipy.special import log_softmax  # here, as in `quality.against`

    return -log_softmax(logits.astype(np.float64), axis=-1)[np.arange(len(following)), list(following)]


@dataclass(frozen=True)
class Readings(quality.Texts):
    """Both texts under float32, the control, and under every subject that reads weights of its own."""

    kind = Reading
    title: ClassVar[str] = "reading under"
    count: ClassVar[int] = len(TEXTS)

    placements: tuple[str, ...]
    peers: tuple[str, ...]

    @property
    def names(self) -> Sequence[str]:
        own = [name for name in self.peers if read_as(name) == name and name != "ollama"]
        return [REFERENCE, *self.placements, *own]

    def texts(self, loaded: Checkpoint) -> dict[str, list[int]]:
        return texts(loaded, self.quality_tokens, self.seed)

    def check(self) -> None:
        from llama_lab import peers

        for name in self.names[1:]:
            if name not in peers.PEERS:
                parse(name)
        super().check()


def read_as(name: str) -> str:
    """The subject under which a text is read for one that is timed: a generator of llama.cpp's computes what its bare
    calls do."""
    return "llamacpp" if name in standings.SAME_FILE else name


def windows_of(rows: Sequence[Reading], subject: str, text: str = ALL) -> list[Reading]:
    """A subject's windows, in the order of the text."""
    return sorted((r for r in rows if r.subject == subject and text in (ALL, r.text)), key=lambda r: (r.text, r.first))


def table(rows: Sequence[Reading], seed: int = 0) -> list[dict]:
    """One entry per subject and text, `ALL` included: {subject, text, …} of `quality.distance`, and ppl, ppl_low and
    ppl_high, the perplexity and its 95% interval."""
    entries = []
    for subject in dict.fromkeys(r.subject for r in rows):
        for text in (*TEXTS, ALL):
            if windows := windows_of(rows, subject, text):
                nll = np.concatenate([w.nll for w in windows])
                ppl = quality.with_interval("ppl", nll, quality.neighbours(windows), seed)
                entries.append(
                    dict(subject=subject, text=text)
                    | quality.distance(windows, seed)
                    | dict(zip(ppl, np.exp([*ppl.values()]), strict=True))
                )
    return entries
