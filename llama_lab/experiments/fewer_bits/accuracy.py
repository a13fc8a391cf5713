"""Multiple choice under each subject's arithmetic: how often it finds the right one of a sentence's endings.

As lm-eval's `acc` (https://github.com/EleutherAI/lm-evaluation-harness): the model's choice is the ending with the
highest log-likelihood, the sum over its tokens, each given the sentence and what is before it, a space between both.
Nothing is timed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from llama_jax import checkpoint, generate, scoring
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.tokenizer import Tokenizer
from llama_lab import peers
from llama_lab.bench import available, quality
from llama_lab.bench.experiment import Experiment, Point, Runner
from llama_lab.bench.lab import Lab
from llama_lab.bench.quality import ALONE, REFERENCE
from llama_lab.bench.record import Row
from llama_lab.experiments.fewer_bits.reading import Readings, likelihood

ITEMS = Path(__file__).parent / "endings.jsonl"  # a line each: {context, endings, label: the right one's place}


class Choice(Row):
    """One sentence under one subject."""

    subject: str
    backend: str
    model: str
    weights_hash: str
    item: int  # line of the file, the first is 0
    label: int  # place of the right ending
    nll_pnat: list[int]  # minus the log-likelihood of each ending, in 1e-12 nats
    text_sha256: str  # of the file

    @property
    def chosen(self) -> int:
        """Place of the most likely ending, the first of several."""
        return int(np.argmin(self.nll_pnat))

    @property
    def right(self) -> bool:
        return self.chosen == self.label


@cache
def items() -> list[dict]:
    return [json.loads(line) for line in ITEMS.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, kw_only=True)
class Accuracy(Experiment):
    """Every sentence under float32 and under all that reads the texts of `Readings`. What is not `ALONE` shares one
    process."""

    kind = Choice

    model: str
    placements: tuple[str, ...]
    peers: tuple[str, ...]

    names = Readings.names  # of the same subjects

    @property
    def also(self) -> object:
        return items()

    def check(self) -> None:
        peers.check(self.peers)
        for name in self.placements:
            parse(name)

    def measure(self, runner: Runner) -> tuple[list[Choice], dict]:
        if checkpoint.find(self.model).tokenizer() is None:
            why = dict(reason="It has no tokenizer, so it reads no sentence.", remedy="Name a model that has one.")
            return [], dict(missing=[dict(name=self.model) | why])
        return super().measure(runner)

    def points(self, runner: Runner) -> list[Point]:
        here = [REFERENCE, *runner.present(self.names[1:])]
        groups = [[name for name in here if name not in ALONE], *([name] for name in here if name in ALONE)]
        return [
            Point(f"choosing {' '.join(group)}", 0, self.choosing, len(items()) * len(group), dict(names=group),
                  f"choosing under {', '.join(group)}")
            for group in groups
        ]  # fmt: skip

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def choosing(self, lab: Lab, names: Sequence[str]) -> None:
        """Every sentence under each of these subjects; a peer that cannot be built is reported as missing."""
        loaded = lab.load()
        common = dict(lab.identity, seed=0, phase="choose", valid=True, model=loaded.name)
        common |= dict(weights_hash=loaded.weights_hash, text_sha256=hashlib.sha256(ITEMS.read_bytes()).hexdigest())
        pairs = [encoded(loaded.tokenizer, item) for item in items()]
        for place, name in enumerate(names):
            lab.announce(what=f"choosing under {name}")
            try:
                totals = iter(scorer(loaded, name)([pair for each in pairs for pair in each]))
            except peers.UnavailableError as error:
                lab.missing(name, error.reason, error.remedy)
                continue
            for i, item in enumerate(items()):
                nll = quality.pnat(-np.array([next(totals) for _ in item["endings"]]))
                where = dict(order=place * len(pairs) + i, subject=name, backend=available.backend_of(name))
                lab.keep(Choice(**common, **where, item=i, label=item["label"], nll_pnat=nll))


def encoded(tokenizer: Tokenizer, item: dict) -> list[tuple[list[int], list[int]]]:
    """(ids of what both begin with, ids that are scored) of a sentence with each of its endings."""
    before = tokenizer.encode(item["context"])
    whole = [tokenizer.encode(f"{item['context']} {ending}") for ending in item["endings"]]
    return [(ids[: (fixed := scoring.alike(ids, before))], ids[fixed:]) for ids in whole]


def scorer(loaded: Checkpoint, name: str) -> Callable[[Sequence[tuple[list[int], list[int]]]], list[float]]:
    """pairs of `encoded` → the log-likelihood of each ending in nats, under a placement, or by a peer's logits.

    Raises UnavailableError for a peer that cannot run.
    """
    if name in peers.PEERS:
        logits_of = quality.reader(loaded, name)

        def total(before: list[int], ending: list[int]) -> float:
            return -likelihood(logits_of(before + ending)[len(before) - 1 : -1], ending).sum()

        return lambda pairs: [total(*pair) for pair in pairs]
    engine = generate.build(loaded, quality.PLACEMENTS.get(name, name))

    def totals(pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        before, endings = zip(*pairs, strict=True)
        return [one.total for one in scoring.score(engine, endings, before)]

    return totals
