"""What is measured of extraction, and the row that each pass leaves."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.plumbing.errors import UserError, near
from llama_lab import corpus
from llama_lab.activations import program
from llama_lab.activations.spec import DTYPES
from llama_lab.bench.experiment import check_counts
from llama_lab.bench.record import Compiled, Row
from llama_lab.experiments.activation_extraction import probing
from llama_lab.experiments.activation_extraction.pipeline import Example
from llama_lab.experiments.activation_extraction.rungs import BASE, CUT, FIRST, PRODUCT, SUBJECTS, TORCH

LADDER, SCALING, PROBE, SECOND = "ladder", "scaling", "probe", "second model"
PROBED = "every layer"
OF_SECOND = (BASE, FIRST, PRODUCT, TORCH, CUT)
SHORTEST = 2  # tokens of an example


class Extraction(Compiled, Row):
    """One pass over the whole source by one rung. Times in ns, sizes in bytes."""

    subject: str
    backend: str
    model: str
    weights_hash: str
    dtype: str  # that the model computes in
    kept: str  # that activations are kept in
    sites: int
    depth: int  # layers that run
    batch: int
    length: int
    unit: int
    examples: int
    tokens: int  # padding left out
    batches: int
    slots: int  # tokens that the model reads, padding included
    rows: int  # on the disk
    bytes: int  # all files of the store together
    wall_ns: int  # from the text to the last fsync
    trace_ns: int  # compilation, within the pass; of a first pass, what was compiled ahead of it as well
    lower_ns: int
    backend_ns: int
    lowered: int
    compiled: int
    workers: int = 1  # processes that shared the units
    error: float | None = None  # the furthest that a token's vector is from the reference, beyond rounding; relative

    @property
    def tg(self) -> float:
        """Tokens/s, padding not counted; NaN where there is no time."""
        return self.tokens / self.wall_ns * 1e9 if self.wall_ns else math.nan

    @property
    def fill(self) -> float:
        """Share of what the model reads that is no padding."""
        return self.tokens / self.slots if self.slots else math.nan


@dataclass(frozen=True)
class Plan:
    """What is measured.

    batch, length: rows and tokens of a batch. unit: examples of a shard. examples: of the source; eager: of them for
    N0, and for the check of values. blocks: passes of each rung in a process. scaling: numbers of processes; starts:
    runs of each. probe: examples for the linear probe, none for 0. second: a model that fewer rungs (`OF_SECOND`) are
    measured on as well; "" for none.
    """

    batch: int = 8
    length: int = 128
    unit: int = 24
    examples: int = 48
    eager: int = 3
    blocks: int = 3
    processes: int = 1
    scaling: tuple[int, ...] = (1, 2)
    starts: int = 2
    probe: int = 60
    second: str = ""
    seed: int = 0
    dtype: str = "bfloat16"
    subjects: tuple[str, ...] = field(default=SUBJECTS)


def check_plan(plan: Plan, config: ModelConfig) -> None:
    """Raises UserError for what cannot be measured, before anything is."""
    check_counts(
        batch=plan.batch,
        unit=plan.unit,
        examples=plan.examples,
        eager=plan.eager,
        blocks=plan.blocks,
        processes=plan.processes,
        starts=plan.starts,
        **{f"scaling[{i}]": n for i, n in enumerate(plan.scaling)},
    )
    if not SHORTEST <= plan.length <= config.max_position_embeddings:
        raise UserError(
            f"length is {plan.length}; it must be {SHORTEST} to {config.max_position_embeddings}, the model's context."
        )
    if plan.eager > plan.examples:
        raise UserError(f"eager is {plan.eager}; there are {plan.examples} examples.")
    if plan.probe and plan.probe < probing.FOLDS:
        raise UserError(f"probe is {plan.probe}; it must be 0, or {probing.FOLDS} examples or more.")
    if config.num_hidden_layers < 2:
        raise UserError("The model has one layer, of which no quarter can be selected; name another.")
    if plan.dtype not in DTYPES:
        raise UserError(f"dtype is {plan.dtype!r}; activations are kept as {', '.join(DTYPES)}.")
    if unknown := [name for name in plan.subjects if name not in SUBJECTS]:
        raise UserError(f"No such way of extracting: {unknown[0]!r}.{near(unknown[0], SUBJECTS)}")


def examples_of(loaded: Checkpoint, count: int, length: int, seed: int = 0) -> list[Example]:
    """Paragraphs of Python's own manual in seeded random order, none longer than `length` tokens; without a tokenizer
    random ids.

    The ids' lengths vary as paragraphs' do: log-normal, a quarter of `length` in the middle. Raises UserError for too
    many.
    """
    rng = random.Random(seed)
    if loaded.tokenizer is None:
        middle = math.log(max(SHORTEST, length / 4))
        sizes = [min(length, max(SHORTEST, round(rng.lognormvariate(middle, 0.8)))) for _ in range(count)]
        return [[rng.randrange(loaded.config.vocab_size) for _ in range(size)] for size in sizes]
    encode, texts = program.encode(loaded), corpus.paragraphs()
    found = (text for text in rng.sample(texts, len(texts)) if SHORTEST <= len(encode(text)) <= length)
    chosen = [text for text, _ in zip(found, range(count), strict=False)]
    if len(chosen) < count:
        raise UserError(
            f"{count} examples are asked for; the manual has {len(chosen)} paragraphs of at most {length} tokens."
        )
    return chosen
