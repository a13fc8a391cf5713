"""Where a token's time goes, from differences that can be measured on every placement, whatever is inside its programs.

Four models of one shape with random weights, alike but for one thing, answer in turn in one process: the whole one, one
with fewer layers, one with a smaller vocabulary, and the whole one with a long context. What the missing layers take by
themselves, the missing rows of the head, and the further positions, is each time a difference of two times of the same
block; what none of them accounts for is the rest: dispatch, sampling, the calls of a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from llama_jax import checkpoint
from llama_jax.config import ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, frames, passages, protocol, roofline, statistics, summary
from llama_lab.bench.experiment import Experiment, Named, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import shuffled

WHOLE, SHALLOW, NARROW, LONG = "whole", "fewer layers", "smaller vocabulary", "long context"
VARIANTS = (WHOLE, SHALLOW, NARROW, LONG)
SMALLEST = 64  # tokens of a vocabulary
WORDS = {  # the parts of a token's time
    "layers": "layers, without attention over the cache",
    "attention": "attention over the cache",
    "head": "head",
    "rest": "rest",
}


@dataclass(frozen=True)
class Sizes:
    """What the variants have: layers and vocabulary of the whole and of the smaller ones, and the two contexts."""

    layers: int
    fewer: int
    vocabulary: int
    smaller: int
    short: int
    long: int


def sizes(config: ModelConfig, short: int, long: int) -> Sizes:
    """A third of the layers and an eighth of the vocabulary, so that the differences are far above the noise."""
    layers, vocabulary = config.num_hidden_layers, config.vocab_size
    return Sizes(layers, max(1, layers // 3), vocabulary, max(SMALLEST, vocabulary // 8), short, long)


@dataclass(frozen=True)
class PartsOfAToken(Experiment):
    """Each placement in its own process, its variants in turn in every block. The model is `random:PRESET`.
    split_contexts: a short and a long one."""

    model: Annotated[str, Named("shapes")]
    seed: Seed
    split: tuple[str, ...]
    split_contexts: tuple[int, int]
    split_blocks: int
    new_tokens: Annotated[int, Named("scale_tokens")]

    def check(self) -> None:
        check_counts(blocks=self.split_blocks)
        if not self.model.startswith("random:") or self.model.count(":") > 1:
            raise UserError(
                f"{self.model!r}: only of random weights (random:PRESET) is there a model that is alike but for its"
                " layers."
            )
        short, long = self.split_contexts
        if short >= long:
            raise UserError(f"The long context ({long}) must be longer than the short one ({short}).")
        passages.check_contexts(self.model, [short, long], self.new_tokens)
        for name in self.split:
            parse(name)
        config = checkpoint.load_config(self.model)
        if config.num_hidden_layers < 2 or config.vocab_size <= SMALLEST:
            raise UserError(
                f"{self.model} is too small to leave anything out: two layers and {SMALLEST + 1} tokens are the least."
            )

    def points(self, runner: Runner) -> list[Point]:
        last, rows = self.split_blocks - 1, len(VARIANTS)
        return [
            Point(f"where {name}", last, self.differences, rows, dict(subject=name), f"where the time of {name} goes")
            for name in runner.present(self.split)
        ]

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def differences(self, lab: Lab, subject: str) -> None:
        """Blocks of all variants in random order; `subject` of a row is the variant, `placement` whose time it is."""
        short, long = self.split_contexts
        made = sizes(checkpoint.load_config(lab.model), short, long)
        changes = {SHALLOW: f",num_hidden_layers={made.fewer}", NARROW: f",vocab_size={made.smaller}"}
        dtype, loaded, variants = available.loaded_as(subject, lab.model), {}, {}
        for variant in VARIANTS:
            model = lab.model + changes.get(variant, "")
            loaded[model] = loaded.get(model) or checkpoint.load(model, dtype)
            engine = replace(protocol.subject(loaded[model], parse(subject)), name=variant)
            context = long if variant == LONG else short
            variants[variant] = engine, passages.filling(loaded[model], context, self.new_tokens, self.seed)
            protocol.warm_up(*variants[variant], lab.announce)
        probe = roofline.Probe()
        for block in range(self.split_blocks):
            bandwidth = probe.bandwidth()
            for order, variant in enumerate(shuffled(VARIANTS, self.seed, block)):
                lab.announce()
                engine, work = variants[variant]
                trial, _ = lab.trial(engine, work, block % len(work.prompts), block=block, phase="warm", order=order)
                lab.keep(trial, bandwidth_gbps=bandwidth)
        lab.notes["subject"] = subject


# What the rows say ----------------------------------------------------------------------------------------------------


def parts(times: dict[str, float], of: Sizes) -> dict[str, float]:
    """The parts of a token's time at the long context, from the variants' times. They add up to it."""
    position = (times[LONG] - times[WHOLE]) / (of.long - of.short)
    layers = (times[WHOLE] - times[SHALLOW]) / (of.layers - of.fewer) * of.layers - position * of.short
    head = (times[WHOLE] - times[NARROW]) / (of.vocabulary - of.smaller) * of.vocabulary
    attention = position * of.long
    return dict(layers=layers, attention=attention, head=head, rest=times[LONG] - layers - attention - head)


def table(trials: Sequence[Trial], model: str, short: int, long: int, seed: int = 0) -> list[dict]:
    """One entry per placement: {name, dtype, n, total (ms per token at the long context), limit (ms that the bandwidth
    allows), and of each part of WORDS: PART, PART_low, PART_high, in ms}. Blocks without all variants are left out; a
    part that noise makes negative stays so."""
    of, entries = sizes(checkpoint.load_config(model), short, long), []
    for name, mine in summary.grouped([t for t in whole(trials) if t.valid], "placement").items():
        blocks = [{t.subject: t.tpot * 1e3 for t in rows} for rows in summary.grouped(mine, "block").values()]
        split = [parts(times, of) for times in blocks if len(times) == len(VARIANTS)]
        if not split:
            continue
        known = [t for t in mine if t.subject == LONG]
        total, limit = np.mean([t.tpot * 1e3 for t in known]), np.median([1e3 / t.limit for t in known])
        entry = dict(name=name, dtype=mine[0].dtype, n=len(split), total=float(total), limit=float(limit))
        for part in WORDS:
            mean = statistics.mean([pieces[part] for pieces in split], seed)
            entry |= {part: mean.value, f"{part}_low": mean.low, f"{part}_high": mean.high}
        entries.append(entry)
    return entries


SHOWN = ("name", "dtype", "n", "total", "limit", *(f"{part}{end}" for part in WORDS for end in ("", "_low", "_high")))
COLUMNS = frames.Columns(frames.same(*SHOWN), index="name", digits=3)
