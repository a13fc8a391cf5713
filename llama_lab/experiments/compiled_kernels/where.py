"""Where a token's time goes, from differences that can be measured on every placement, whatever is inside its programs.

Four models of one shape with random weights, alike but for one thing, answer in turn in one process: the whole one, one
with fewer layers, one with a smaller vocabulary, and the whole one with a long context. What the missing layers take by
themselves, the missing rows of the head, and the further positions, is each time a difference of two times of the same
block; what none of them accounts for is the rest: dispatch, sampling, the calls of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from llama_jax import checkpoint
from llama_jax.config import ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, frames, passages, phases, protocol, roofline, statistics
from llama_lab.bench.job import Job, check, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.order import shuffled
from llama_lab.bench.record import Trial

WHOLE, SHALLOW, NARROW, LONG = "whole", "fewer layers", "smaller vocabulary", "long context"
VARIANTS = (WHOLE, SHALLOW, NARROW, LONG)
SMALLEST = 64  # tokens of a vocabulary
PARTS = ("layers", "attention", "head", "rest")
WORDS = {
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
    return Sizes(
        config.num_hidden_layers,
        max(1, config.num_hidden_layers // 3),
        config.vocab_size,
        max(SMALLEST, config.vocab_size // 8),
        short,
        long,
    )


def measure(
    job: Job, names: Sequence[str], short: int, long: int, new_tokens: int, blocks: int, seed: int = 0
) -> list[Trial]:
    """Each placement in a process of its own, its variants in turn in every block. The job's model is `random:PRESET`.

    Raises UserError before anything is measured: another model, contexts that leave nothing to subtract, an unknown
    placement.
    """
    check(blocks=blocks)
    if not job.model.startswith("random:") or job.model.count(":") > 1:
        raise UserError(
            f"{job.model!r}: only of random weights (random:PRESET) is there a model that is alike but for its layers."
        )
    if short >= long:
        raise UserError(f"The long context ({long}) must be longer than the short one ({short}).")
    passages.check_contexts(job.model, [short, long], new_tokens)
    for name in names:
        parse(name)
    config = checkpoint.load_config(job.model)
    if config.num_hidden_layers < 2 or config.vocab_size <= SMALLEST:
        raise UserError(
            f"{job.model} is too small to leave anything out: two layers and {SMALLEST + 1} tokens are the least."
        )
    here = available.present(job, names)
    for i, name in enumerate(here):
        job.progress(f"where the time of {name} goes", i, len(here))
        job.child(
            f"where {name}",
            blocks - 1,
            f"{__name__}:differences",
            len(VARIANTS),
            subject=name,
            short=short,
            long=long,
            new_tokens=new_tokens,
            blocks=blocks,
            seed=seed,
        )
    return whole(job.journal.trials)


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    split: Sequence[str],
    split_contexts: Sequence[int],
    split_blocks: int,
    new_tokens: int,
) -> tuple[list[Trial], dict]:
    """All variants of a model of random weights, and for the meta file what could not run."""
    rows = measure(Job(model, None, journal), split, *split_contexts, new_tokens, split_blocks, seed)
    return rows, dict(missing=phases.missing(journal))


def differences(
    say: Callable,
    job: dict,
    identity: dict,
    subject: str,
    short: int,
    long: int,
    new_tokens: int,
    blocks: int,
    seed: int,
) -> dict:
    """Blocks of all variants in random order; `subject` of a row is the variant, `placement` whose time it is."""
    with watched(say) as more:
        of = sizes(checkpoint.load_config(job["model"]), short, long)
        changes = {WHOLE: "", SHALLOW: f",num_hidden_layers={of.fewer}", NARROW: f",vocab_size={of.smaller}", LONG: ""}
        dtype, loaded, variants = available.loaded_as(subject, job["model"]), {}, {}
        for variant in VARIANTS:
            model = job["model"] + changes[variant]
            loaded[model] = loaded.get(model) or checkpoint.load(model, dtype)
            who = replace(protocol.subject(loaded[model], parse(subject)), name=variant)
            variants[variant] = (
                who,
                passages.filling(loaded[model], long if variant == LONG else short, new_tokens, seed),
            )
            protocol.warm_up(*variants[variant], partial(say, "starting", {}))
        probe = roofline.Probe()
        for block in range(blocks):
            bandwidth = probe.bandwidth()
            for order, variant in enumerate(shuffled(VARIANTS, seed, block)):
                say("starting", {})
                who, work = variants[variant]
                record, _ = protocol.trial(
                    who, work, block % len(work.prompts), **{**identity, "block": block}, phase="warm", order=order
                )
                say("trial", record.model_copy(update=dict(bandwidth_gbps=bandwidth)).model_dump())
        more["subject"] = subject
    return {}


# What the rows say ----------------------------------------------------------------------------------------------------


def parts(times: dict[str, float], of: Sizes) -> dict[str, float]:
    """PARTS of a token's time at the long context, from the times of the variants; they add up to that of the long
    one."""
    position = (times[LONG] - times[WHOLE]) / (of.long - of.short)
    layers = (times[WHOLE] - times[SHALLOW]) / (of.layers - of.fewer) * of.layers - position * of.short
    head = (times[WHOLE] - times[NARROW]) / (of.vocabulary - of.smaller) * of.vocabulary
    attention = position * of.long
    return dict(layers=layers, attention=attention, head=head, rest=times[LONG] - layers - attention - head)


def table(trials: Sequence[Trial], model: str, short: int, long: int, seed: int = 0) -> list[dict]:
    """One entry a placement: {name, dtype, n, total (ms a token at the long context), limit (ms that the bandwidth
    allows), and of each of
    PARTS: PART, PART_low, PART_high, in ms}. Blocks without all variants are left out; a part that noise makes negative
    stays so."""
    of, found = sizes(checkpoint.load_config(model), short, long), []
    for name in dict.fromkeys(t.placement for t in whole(trials)):
        mine = [t for t in whole(trials) if t.placement == name and t.valid]
        blocks: dict[int, dict[str, float]] = {}
        for t in mine:
            blocks.setdefault(t.block, {})[t.subject] = t.tpot * 1e3
        split = [parts(times, of) for times in blocks.values() if len(times) == len(VARIANTS)]
        if not split:
            continue
        known = [t for t in mine if t.subject == LONG]
        entry = dict(
            name=name,
            dtype=mine[0].dtype,
            n=len(split),
            total=float(np.mean([t.tpot * 1e3 for t in known])),
            limit=float(np.median([1e3 / t.limit for t in known])),
        )
        for part in PARTS:
            mean = statistics.mean([pieces[part] for pieces in split], seed)
            entry |= {part: mean.value, f"{part}_low": mean.low, f"{part}_high": mean.high}
        found.append(entry)
    return found


SHOWN = ("name", "dtype", "n", "total", "limit", *(f"{part}{end}" for part in PARTS for end in ("", "_low", "_high")))
COLUMNS = frames.Columns(frames.same(*SHOWN), index="name", digits=3)
