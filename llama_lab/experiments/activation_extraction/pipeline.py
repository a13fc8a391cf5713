"""From the text to the last fsync: how a rung's batches become units on the disk, through the product's own writer."""

from __future__ import annotations

import contextlib
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.threads import ahead
from llama_lab import corpus
from llama_lab.activations import folder, program, store
from llama_lab.activations.batches import Batch, Unit
from llama_lab.activations.extraction import extract
from llama_lab.activations.folder import Folder
from llama_lab.activations.moments import Moments, joined
from llama_lab.activations.program import Extractor
from llama_lab.activations.spec import ActivationSpec, row_shape

Example = str | Sequence[int]
SHORTEST = 2  # tokens of an example
NO_MOMENTS = Moments(0, np.zeros(()), np.zeros(()))
# values [n ...] of a batch's kept tokens, and their moments where they are summed
Results = tuple[dict[str, np.ndarray], dict[str, Moments]]


@dataclass(frozen=True)
class Setting:
    """What all rungs share. batch, length: rows and tokens of a batch. unit: examples of a shard. depth, writers: as of
    `extract`."""

    loaded: Checkpoint
    batch: int
    length: int
    unit: int
    dtype: str = "bfloat16"
    depth: int = 2
    writers: int = 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch, self.length


def read(batch: Batch, results) -> Results:
    """Wait for one batch's results and bring them to the host."""
    values, moments = jax.device_get(results)
    kept = {site: value[batch.at] for site, value in values.items()}
    return kept, {
        site: Moments(len(batch.at), *(np.asarray(part, np.float64) for part in both)) for site, both in moments.items()
    }


def without_copy(extractor: Extractor, batch: Batch):
    """The extractor's own program, its results left on the device."""
    return extractor.executable(extractor.params, batch.ids, batch.positions, batch.segments, np.empty(0, np.int32))


@dataclass
class Filling:
    """A unit on its way to the disk: its tensors, filled batch by batch."""

    unit: Unit
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    batches: int = 0

    def take(self, batch: Batch, results: Results) -> None:
        values, moments = results
        for site, value in values.items():
            if site not in self.tensors:
                self.tensors[site] = np.empty((self.unit.size, *value.shape[1:]), value.dtype)
            self.tensors[site][batch.to] = value
        self.moments = joined(self.moments, moments)
        self.batches += 1


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
    fitting = (text for text in rng.sample(texts, len(texts)) if SHORTEST <= len(encode(text)) <= length)
    chosen = [text for text, _ in zip(fitting, range(count), strict=False)]
    if len(chosen) < count:
        raise UserError(
            f"{count} examples are asked for; the manual has {len(chosen)} paragraphs of at most {length} tokens."
        )
    return chosen


def units(setting: Setting, plan: Callable[..., Unit], examples: Sequence[Example]) -> Iterator[Unit]:
    """The units of a source, planned one at a time, its texts made tokens on the way."""
    encode = program.encode(setting.loaded)
    for number, first in enumerate(range(0, len(examples), setting.unit)):
        yield plan(number, first, [encode(example) for example in examples[first : first + setting.unit]])


def claimed(setting: Setting, spec: ActivationSpec, out: Path) -> Folder:
    """A new folder to write units into."""
    where, config = folder.open_folder(out), setting.loaded.config
    shapes = {str(site): row_shape(site, config, setting.length) for site in spec.resolve(config)}
    store.claim(where, {"spec": store.describe(spec, shapes), "made by": __name__}, resume=False)
    return where


def write(where: Folder, filling: Filling) -> None:
    """One unit through the product's own writer. A rung that sums no moments leaves empty ones."""
    unit = filling.unit
    about = dict(first=unit.first, examples=unit.count, tokens=unit.tokens, source_sha256="")
    moments = {site: filling.moments.get(site, NO_MOMENTS) for site in filling.tensors}
    store.write_unit(where, unit.number, {**unit.rows, **filling.tensors}, about, moments)


def pipeline(
    setting: Setting, spec: ActivationSpec, plan: Callable, dispatch: Callable, fetch: Callable, depth: int = 0
) -> Callable:
    """run(examples, out): units are planned, computed and written by one thread; up to `depth` batches are under way
    while one is read."""

    def run(examples: Sequence[Example], out: Path) -> None:
        where, under_way = claimed(setting, spec, out), deque()

        def collect() -> None:
            filling, batch, results = under_way.popleft()
            filling.take(batch, fetch(batch, results))
            if filling.batches == len(filling.unit.batches):
                write(where, filling)

        for unit in units(setting, plan, examples):
            filling = Filling(unit)
            for batch in unit.batches:
                under_way.append((filling, batch, dispatch(batch)))
                while len(under_way) > depth:
                    collect()
        while under_way:
            collect()
        store.finish(where)

    return run


def product(setting: Setting, extractor: Extractor, examples: Sequence[Example]) -> Callable:
    """run(examples, out) of `extract`, as anyone would call it."""

    def run(examples: Sequence[Example], out: Path) -> None:
        extract(extractor, examples, out, depth=setting.depth, writers=setting.writers, resume=False, unit=setting.unit)

    return run


def forward_only(setting: Setting, extractor: Extractor, examples: Sequence[Example]) -> Callable:
    """run(examples, out): every batch computed, nothing copied to the host, nothing written. As in `extract` a thread
    plans ahead."""

    def run(examples: Sequence[Example], out: Path) -> None:
        under_way = deque()
        with contextlib.closing(ahead(units(setting, extractor.plan, examples), setting.depth, "planner")) as planned:
            for unit in planned:
                for batch in unit.batches:
                    under_way.append(without_copy(extractor, batch))
                    if len(under_way) > setting.depth:
                        jax.block_until_ready(under_way.popleft())
        jax.block_until_ready(list(under_way))

    return run


def disk_only(setting: Setting, extractor: Extractor, examples: Sequence[Example]) -> Callable:
    """run(examples, out): the units of these examples, computed now, are written by as many threads as `extract`
    has."""
    made = []
    for unit in units(setting, extractor.plan, examples):
        made.append(Filling(unit))
        for batch in unit.batches:
            made[-1].take(batch, read(batch, without_copy(extractor, batch)))

    def run(examples: Sequence[Example], out: Path) -> None:
        where = claimed(setting, extractor.spec, out)
        with ThreadPoolExecutor(setting.writers) as writers:
            list(writers.map(partial(write, where), made))
        store.finish(where)

    return run
