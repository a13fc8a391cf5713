"""How the cost of a token grows with one size of the model or the request at a time, against the physical limit.

Random weights at real shapes: right for time, never for text. Each point is a process of its own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from llama_jax import checkpoint, generate
from llama_jax.config import PRESETS, ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, passages, protocol, roofline
from llama_lab.bench.job import Job, check, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload

BASE = "smollm2-135m"
PLACEMENT, PROMPT = "chunk8+donate", 16
AXES = ("layers", "width", "context", "batch", "model")


def preset(model: str) -> str:
    """The preset that all axes start from, of a model `random:PRESET`. Raises UserError for any other model."""
    name = model.removeprefix("random:")
    if name == model or name not in PRESETS:
        raise UserError(
            f"model is {model!r}; growth starts from random weights at a preset's shapes, such as random:{BASE}."
        )
    return name


def point(axis: str, value: int | str, base: str = BASE) -> tuple[str, int, int]:
    """(model, slots of the cache, batch) of one point; all else is the base's, with a cache of 64 slots and one row.

    model: a name, or a name and after a space the placement that it is to run under where PLACEMENT would need more
    memory than there is. width: of the residual stream, with feed-forward and heads in the base's proportions and
    heads of its size.
    Raises UserError for an unknown axis or a value that the model cannot have.
    """
    if axis == "model":
        return check_model(str(value).partition(" ")[0]), 64, 1
    if axis not in AXES:
        raise UserError(f"No such axis of growth: {axis!r}; there are {', '.join(AXES)}.")
    if type(value) is not int:
        raise UserError(f"{axis} is {value!r}; it must be a whole number.")
    check(**{axis: value})
    if axis == "layers":
        return f"random:{base},num_hidden_layers={value}", 64, 1
    config = PRESETS[base]
    if axis == "width":
        share = config.num_attention_heads // config.num_key_value_heads
        if value % (config.head_dim * share):
            raise UserError(f"width is {value}; it must be a multiple of {config.head_dim * share}.")
        kv_heads = value // config.head_dim // share
        inner = round(config.intermediate_size * value / config.hidden_size)
        return (
            (
                f"random:{base},hidden_size={value},intermediate_size={inner},num_attention_heads={share * kv_heads},"
                f"num_key_value_heads={kv_heads}"
            ),
            64,
            1,
        )
    if axis == "context" and not 64 <= value <= config.max_position_embeddings:
        raise UserError(f"context is {value}; {base} has 64 to {config.max_position_embeddings} positions.")
    return f"random:{base}", value if axis == "context" else 64, value if axis == "batch" else 1


def check_model(name: str) -> str:
    checkpoint.load_config(name)
    return name


def measure(
    job: Job,
    axes: dict[str, Sequence[int | str]],
    answers: int,
    processes: int,
    new_tokens: int,
    seed: int,
    base: str = BASE,
) -> None:
    """Every point of every axis `processes` times, in seeded random order; points are checked before anything is
    measured."""
    check(answers=answers, processes=processes)
    if new_tokens < 9 or new_tokens % 8 != 1 or PROMPT + new_tokens > 64:
        raise UserError(
            f"new_tokens is {new_tokens}; it must be 9, 17, 25, 33 or 41: one token, then whole chunks, in 64 slots."
        )
    points = [(axis, value, *point(axis, value, base)) for axis, values in axes.items() for value in values]
    order = random.Random(seed)
    for block in range(processes):
        for i, (axis, value, model, slots, batch) in enumerate(order.sample(points, len(points))):
            job.progress(f"{axis} {value}", block * len(points) + i, processes * len(points))
            job.child(
                f"{axis} {value}",
                block,
                f"{__name__}:answers_of",
                answers,
                model=model,
                placement=placement_of(axis, value),
                slots=slots,
                batch=batch,
                answers=answers,
                new_tokens=new_tokens,
                seed=seed,
            )


def placement_of(axis: str, value: int | str) -> str:
    """The placement of a point. Raises UserError for an unknown one."""
    name = (axis == "model" and str(value).partition(" ")[2]) or PLACEMENT
    return parse(name).name


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    layers: Sequence[int],
    width: Sequence[int],
    context: Sequence[int],
    batch: Sequence[int],
    models: Sequence[str],
    answers: int,
    processes: int,
    new_tokens: int,
) -> tuple[list[Trial], dict]:
    """Every point of every axis. Raises UserError for one that cannot be, before anything is measured."""
    axes = dict(layers=layers, width=width, context=context, batch=batch, model=models)
    measure(Job(model, None, journal), axes, answers, processes, new_tokens, seed, preset(model))
    return whole(journal.trials), {}


def answers_of(
    say: Callable,
    job: dict,
    identity: dict,
    placement: str,
    slots: int,
    batch: int,
    answers: int,
    new_tokens: int,
    seed: int,
) -> dict:
    """Warm answers of one model, placement, cache size and batch; the bandwidth is probed between them."""
    with watched(say) as more:
        loaded, _, _, _ = opened(job | dict(dtype=available.loaded_as(placement, job["model"])))
        work = Workload(
            passages.random_prompts(loaded.config.vocab_size, PROMPT, seed), new_tokens, PROMPT, batch, seed
        )
        who = with_slots(loaded, placement, slots)
        probe, reference = roofline.Probe(), protocol.Reference(loaded, work)
        protocol.warm_up(who, work)
        for i in range(answers):
            bandwidth = probe.bandwidth()
            record, tokens = protocol.trial(who, work, i % len(work.prompts), **identity, phase="warm", order=i)
            record = reference.judge(record, tokens)
            sizes = reached(loaded.config, slots, batch, who.identity["weight_bytes"], who.identity["cache_bytes"])
            say(
                "trial",
                record.model_copy(update=dict(bandwidth_gbps=bandwidth, cache_slots=slots, **sizes)).model_dump(),
            )
        more["gflops"] = roofline.flops()
    return {}


def with_slots(loaded: checkpoint.Checkpoint, placement: str, slots: int) -> Subject:
    """A placement with a cache of so many slots: a fixed cache attends over all of them, however few are in use."""
    engine, base = generate.build(loaded, parse(placement)), protocol.subject(loaded, parse(placement))

    def run(ids, work: Workload):
        return generate.stream(engine, [ids] * work.batch, work.new_tokens, length=work.length, slots=slots)

    return replace(base, run=run)


def reached(config: ModelConfig, slots: int, batch: int, weight_bytes: float, cache_bytes: float) -> dict:
    """Bytes and operations of one step over a cache of `slots`, all rows together; bytes of a weight and of a number
    kept."""
    return dict(
        bytes_per_token=roofline.bytes_per_token(config, slots, weight_bytes, cache_bytes, batch=batch),
        flops_per_token=roofline.flops_per_token(config, slots),
        kv_bytes=round(batch * slots * config.kv_bytes_per_position(cache_bytes)),
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
        if t.run.startswith(axis + " "):
            points.setdefault(t.run.removeprefix(axis + " "), []).append(t)
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


def as_frame(points: dict[str, Sequence[dict]]):
    """All points as a pandas.DataFrame: milliseconds a step beside both limits. points: axis → `axis_of`."""
    import pandas as pd

    lines = [
        dict(axis=axis, value=p["value"], ms=p["median"], bytes_ms=p["bytes_ms"], flops_ms=p["flops_ms"])
        | dict(MB=p["bytes"] / 1e6, n=p["n"])
        for axis, found in points.items()
        for p in found
    ]
    return pd.DataFrame(lines).set_index(["axis", "value"]).round(2)


def crossing(points: Sequence[dict]) -> float:
    """Where along an axis the arithmetic limit overtakes the bandwidth's, by interpolation; NaN where it does not."""
    over = [(int(p["value"]), p["flops_ms"] / p["bytes_ms"]) for p in points if p["flops_ms"]]
    for (a, low), (b, high) in itertools.pairwise(over):
        if low < 1 <= high:
            return float(np.exp(np.interp(0.0, [np.log(low), np.log(high)], [np.log(a), np.log(b)])))
    return float("nan")
