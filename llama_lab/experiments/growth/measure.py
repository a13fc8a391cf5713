"""How the cost of a token grows with one size of the model or the request at a time, against the physical limit.

Random weights at real shapes: right for time, never for text. Each point is a process of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from llama_jax import checkpoint, generate
from llama_jax.config import PRESETS, ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, passages, protocol, roofline
from llama_lab.bench.experiment import Experiment, Point, Runner, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Run
from llama_lab.bench.workload import Subject, Workload

BASE = "smollm2-135m"
PLACEMENT, PROMPT = "chunk8+donate", 16
AXES = ("layers", "width", "context", "batch", "model")
SLOTS = 64  # of the cache, where the context is not the axis


@dataclass(frozen=True)
class Size:
    """One point of an axis: all that is measured there. slots: of the cache. batch: rows."""

    model: str
    slots: int = SLOTS
    batch: int = 1
    placement: str = PLACEMENT


@dataclass(frozen=True)
class Growth(Experiment):
    """Every point of every axis in `processes` of its own, `answers` in each, in seeded random order.

    model: `random:PRESET`, from which all axes start. models: names, or a name and after a space the placement that it
    is to run under where PLACEMENT would need more memory than there is.
    """

    model: str
    seed: int
    layers: tuple[int, ...]
    width: tuple[int, ...]
    context: tuple[int, ...]
    batch: tuple[int, ...]
    models: tuple[str, ...]
    answers: int
    processes: int
    new_tokens: int

    @property
    def values(self) -> list[Run]:
        """Axis and value of each point."""
        axes = dict(zip(AXES, (self.layers, self.width, self.context, self.batch, self.models), strict=True))
        return [Run(axis, value) for axis, values in axes.items() for value in values]

    def check(self) -> None:
        base = preset(self.model)
        check_counts(answers=self.answers, processes=self.processes)
        if self.new_tokens < 9 or self.new_tokens % 8 != 1 or PROMPT + self.new_tokens > SLOTS:
            possible = "it must be 9, 17, 25, 33 or 41: one token, then whole chunks, in 64 slots."
            raise UserError(f"new_tokens is {self.new_tokens}; {possible}")
        for run in self.values:
            size(run, base)

    def points(self, runner: Runner) -> list[Point]:
        order, runs, found = random.Random(self.seed), self.values, []
        for block in range(self.processes):
            for run in order.sample(runs, len(runs)):
                asked = dict(axis=run.kind, value=run.what)
                model = size(run, preset(self.model)).model
                found.append(Point(str(run), block, self.answering, self.answers, asked, model=model))
        return found

    def answering(self, lab: Lab, axis: str, value: int | str) -> None:
        """Warm answers at one point; the bandwidth is probed between them."""
        here = size(Run(axis, value), preset(self.model))
        loaded = lab.load(available.loaded_as(here.placement, lab.model))
        prompts = passages.random_prompts(loaded.config.vocab_size, PROMPT, self.seed)
        work = Workload(prompts, self.new_tokens, PROMPT, here.batch, self.seed)
        who = with_slots(loaded, here.placement, here.slots)
        probe, reference = roofline.Probe(), protocol.Reference(loaded, work)
        # bytes and operations of one step over the whole cache, all rows together
        config, (weight_bytes, cache_bytes) = loaded.config, (who.identity[k] for k in ("weight_bytes", "cache_bytes"))
        sizes = dict(
            bytes_per_token=roofline.bytes_per_token(config, here.slots, weight_bytes, cache_bytes, batch=here.batch),
            flops_per_token=roofline.flops_per_token(config, here.slots),
            kv_bytes=round(here.batch * here.slots * config.kv_bytes_per_position(cache_bytes)),
        )
        protocol.warm_up(who, work)
        for i in range(self.answers):
            bandwidth = probe.bandwidth()
            trial, tokens = lab.trial(who, work, i % len(work.prompts), phase="warm", order=i)
            lab.keep(reference.judge(trial, tokens), bandwidth_gbps=bandwidth, cache_slots=here.slots, **sizes)
        lab.notes["gflops"] = roofline.flops()


def preset(model: str) -> str:
    """The preset that all axes start from, of a model `random:PRESET`. Raises UserError for any other model."""
    name = model.removeprefix("random:")
    if name == model or name not in PRESETS:
        known = f"growth starts from random weights at a preset's shapes, such as random:{BASE}."
        raise UserError(f"model is {model!r}; {known}")
    return name


def size(run: Run, base: str = BASE) -> Size:
    """What a value of an axis means; all else is the base's.

    width: of the residual stream, with feed-forward and heads in the base's proportions and heads of its size.
    Raises UserError for an unknown axis or a value that the model cannot have.
    """
    axis, value = run.kind, run.what
    if axis == "model":
        name, _, placement = str(value).partition(" ")
        checkpoint.load_config(name)
        return Size(name, placement=parse(placement or PLACEMENT).name)
    if axis not in AXES:
        raise UserError(f"No such axis of growth: {axis!r}; there are {', '.join(AXES)}.")
    if type(value) is not int:
        raise UserError(f"{axis} is {value!r}; it must be a whole number.")
    check_counts(**{axis: value})
    config, model = PRESETS[base], f"random:{base}"
    if axis == "layers":
        return Size(f"{model},num_hidden_layers={value}")
    if axis == "width":
        return Size(f"{model},{of_width(config, value)}")
    if axis == "batch":
        return Size(model, batch=value)
    if not SLOTS <= value <= config.max_position_embeddings:
        raise UserError(f"context is {value}; {base} has {SLOTS} to {config.max_position_embeddings} positions.")
    return Size(model, slots=value)


def of_width(config: ModelConfig, value: int) -> str:
    """The fields of a configuration that follow from its width. Raises UserError for a width without whole heads."""
    share = config.num_attention_heads // config.num_key_value_heads
    if value % (config.head_dim * share):
        raise UserError(f"width is {value}; it must be a multiple of {config.head_dim * share}.")
    kv_heads = value // config.head_dim // share
    inner = round(config.intermediate_size * value / config.hidden_size)
    heads = f"num_attention_heads={share * kv_heads},num_key_value_heads={kv_heads}"
    return f"hidden_size={value},intermediate_size={inner},{heads}"


def with_slots(loaded: checkpoint.Checkpoint, placement: str, slots: int) -> Subject:
    """A placement with a cache of so many slots: a fixed cache attends over all of them, however few are in use."""
    engine, base = generate.build(loaded, parse(placement)), protocol.subject(loaded, parse(placement))

    def run(ids, work: Workload):
        return generate.stream(engine, [ids] * work.batch, work.new_tokens, length=work.length, slots=slots)

    return replace(base, run=run)
