"""How the cost of a token grows with one size of the model or the request at a time, against the physical limit.

Random weights at real shapes: right for time, never for text. Each point is a process of its own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.config import PRESETS, ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, frames, passages, protocol, roofline
from llama_lab.bench.experiment import Experiment, Point, Runner, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Run, Trial
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
            raise UserError(
                f"new_tokens is {self.new_tokens}; it must be 9, 17, 25, 33 or 41: one token, then whole chunks, in 64"
                " slots."
            )
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
        protocol.warm_up(who, work)
        for i in range(self.answers):
            bandwidth = probe.bandwidth()
            trial, tokens = lab.trial(who, work, i % len(work.prompts), phase="warm", order=i)
            sizes = sizes_at(here, loaded.config, who)
            lab.keep(reference.judge(trial, tokens), bandwidth_gbps=bandwidth, cache_slots=here.slots, **sizes)
        lab.notes["gflops"] = roofline.flops()


def preset(model: str) -> str:
    """The preset that all axes start from, of a model `random:PRESET`. Raises UserError for any other model."""
    name = model.removeprefix("random:")
    if name == model or name not in PRESETS:
        raise UserError(
            f"model is {model!r}; growth starts from random weights at a preset's shapes, such as random:{BASE}."
        )
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


def sizes_at(here: Size, config: ModelConfig, who: Subject) -> dict:
    """Bytes and operations of one step over the whole cache, all rows together."""
    weight_bytes, cache_bytes = who.identity["weight_bytes"], who.identity["cache_bytes"]
    return dict(
        bytes_per_token=roofline.bytes_per_token(config, here.slots, weight_bytes, cache_bytes, batch=here.batch),
        flops_per_token=roofline.flops_per_token(config, here.slots),
        kv_bytes=round(here.batch * here.slots * config.kv_bytes_per_position(cache_bytes)),
    )


# What the trials say --------------------------------------------------------------------------------------------------


def step_ms(trial: Trial) -> float:
    """Milliseconds of one step, which makes one token for each row."""
    return trial.tpot * 1e3


def axis_of(trials: Sequence[Trial], axis: str, gflops: float | None = None) -> list[dict]:
    """One entry a point, in the order of its size: {value, ms: list, median, bytes_ms, flops_ms, parameters, n,
    processes}.

    bytes_ms: what the bandwidth allows, the most that any probe of any point read. flops_ms: what the machine's
    arithmetic allows.
    """
    points: dict[str, list[Trial]] = {}
    trials = whole(trials)
    bandwidth = max((t.bandwidth_gbps for t in trials if t.bandwidth_gbps), default=float("nan"))
    for t in trials:
        run = Run.read(t.run)
        if run.kind == axis:
            points.setdefault(run.what, []).append(t)
    found = []
    for value, measured in points.items():
        good = [t for t in measured if t.valid]
        if not good:
            continue
        ms = [step_ms(t) for t in good]
        flops = good[0].flops_per_token * good[0].batch
        found.append(dict(
            value=value, ms=ms, median=float(np.median(ms)), bytes=good[0].bytes_per_token,
            bytes_ms=good[0].bytes_per_token / bandwidth / 1e6, flops_ms=flops / gflops / 1e6 if gflops else None,
            n=len(good), processes=len({t.process for t in good}), weights_bytes=good[0].weights_bytes,
        ))  # fmt: skip
    return sorted(found, key=lambda e: e["weights_bytes"] if axis == "model" else int(e["value"]))


def all_points(points: dict[str, Sequence[dict]]) -> list[dict]:
    """The points of all axes, each with its `axis`. points: axis → `axis_of`."""
    return [p | dict(axis=axis) for axis, found in points.items() for p in found]


COLUMNS = frames.Columns(
    {
        "axis": "axis",
        "value": "value",
        "ms": "median",
        "bytes_ms": "bytes_ms",
        "flops_ms": "flops_ms",
        "MB": frames.scaled("bytes", 1e6),
        "n": "n",
    },
    index=("axis", "value"),
    digits=2,
)


def crossing(points: Sequence[dict]) -> float:
    """Where along an axis the arithmetic limit overtakes the bandwidth's, by interpolation; NaN where it does not."""
    over = [(int(p["value"]), p["flops_ms"] / p["bytes_ms"]) for p in points if p["flops_ms"]]
    for (a, low), (b, high) in itertools.pairwise(over):
        if low < 1 <= high:
            return float(np.exp(np.interp(0.0, [np.log(low), np.log(high)], [np.log(a), np.log(b)])))
    return float("nan")
