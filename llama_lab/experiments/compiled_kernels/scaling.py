"""How decode rates go with one size at a time, on the checkpoint itself: tokens in the cache, and threads. Each point
is a process of its own. How they go with the model's size is told by `sizes.py`.

context   tokens of prompt and answer together
threads   cores that the process may use
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from importlib import import_module

import numpy as np

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import (
    available,
    footprints,
    frames,
    gate,
    passages,
    phases,
    process,
    protocol,
    roofline,
    summary,
)
from llama_lab.bench.job import Job, check, opened, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Trial

AXES = ("context", "threads")


def measure(
    job: Job,
    names: Sequence[str],
    axes: dict[str, Sequence[int]],
    base: int,
    new_tokens: int,
    answers: int,
    processes: int,
    seed: int = 0,
) -> list[Trial]:
    """Every point `processes` times, in seeded random order; all are checked before anything is measured.

    names: placements and peers. axes: axis → its values. base: context where it is not the axis. A subject that cannot
    run is said to be missing in the journal's notes.
    """
    check(answers=answers, processes=processes)
    check_axes(job.model, names, axes, base, new_tokens)
    here = available.present(job, names)
    points = [(axis, value, name) for axis, values in axes.items() for value in values for name in here]
    order = random.Random(seed)
    for block in range(processes):
        for i, (axis, value, name) in enumerate(order.sample(points, len(points))):
            job.progress(f"{name} at {axis} {value}", block * len(points) + i, processes * len(points))
            where = dict(context=value if axis == "context" else base, threads=value if axis == "threads" else None)
            job.child(
                f"{axis} {value} {name}",
                block,
                f"{__name__}:answers_of",
                answers,
                threads=where["threads"],
                subject=name,
                context=where["context"],
                new_tokens=new_tokens,
                answers=answers,
                seed=seed,
            )
    return whole(job.journal.trials)


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    scaled: Sequence[str],
    scale_contexts: Sequence[int],
    scale_threads: Sequence[int],
    scale_tokens: int,
    scale_answers: int,
    scale_processes: int,
) -> tuple[list[Trial], dict]:
    """Every point of the two axes, and for the meta file what could not run."""
    axes = dict(context=scale_contexts, threads=scale_threads)
    counts = scale_tokens, scale_answers, scale_processes
    rows = measure(Job(model, None, journal), scaled, axes, min(scale_contexts), *counts, seed)
    return rows, dict(missing=phases.missing(journal))


def check_axes(model: str, names: Sequence[str], axes: dict, base: int, new_tokens: int) -> None:
    """Raises UserError for an axis, a value or a subject that does not exist."""
    from llama_lab import peers

    for name in names:
        if name not in peers.PEERS:
            parse(name)
    for axis, values in axes.items():
        if axis not in AXES:
            raise UserError(f"No such axis: {axis!r}.{near(axis, AXES)}")
        for value in values:
            if axis == "threads":
                process.check_threads(value)
            passages.check_contexts(model, [value if axis == "context" else base], new_tokens)


def reads_file(name: str) -> bool:
    return available.backend_of(name) in footprints.READS_FILE


def answers_of(
    say: Callable, job: dict, identity: dict, subject: str, context: int, new_tokens: int, answers: int, seed: int
) -> dict:
    """Warm answers of one subject alone in its process; the bandwidth is probed between them."""
    with watched(say) as more:
        for library in footprints.LIBRARIES.get(available.backend_of(subject), ()):
            import_module(library)
        job = job | dict(dtype=available.loaded_as(subject, job["model"]))
        loaded, *_ = available.bare(job) if reads_file(subject) else opened(job)
        work = passages.filling(loaded, context, new_tokens, seed)
        for who in available.built(say, loaded, [subject]):
            judge = (
                judging(loaded, work)
                if not gate.approximate(who.identity.get("quantisation", "none"))
                else lambda record, tokens: record
            )
            probe = roofline.Probe()
            # a minute each at 8k tokens; the guard still listens
            protocol.warm_up(who, work, lambda: say("starting", {}), enough=1)
            for i in range(answers):
                say("starting", {})
                bandwidth = probe.bandwidth()
                record, tokens = protocol.trial(who, work, i % len(work.prompts), **identity, phase="warm", order=i)
                say("trial", judge(record, tokens).model_copy(update=dict(bandwidth_gbps=bandwidth)).model_dump())
        more["subject"] = subject
    return {}


def judging(loaded: checkpoint.Checkpoint, work) -> Callable:
    """A judge by the reference's tokens; where the weights were not loaded as floats there is none here to be equal
    to."""
    if loaded.dtype not in ("float32", "bfloat16"):
        return lambda record, tokens: record
    return protocol.Reference(loaded, work).judge


# What the rows say ----------------------------------------------------------------------------------------------------


def axis_of(trials: Sequence[Trial], axis: str, seed: int = 0) -> dict[str, list[dict]]:
    """Subject → its points in the order of their size: {value, rate: Summary of tokens/s, points: each answer's, limit:
    tokens/s that the bandwidth allows, mbu}. Subjects without a valid answer are left out."""
    rows = [t for t in whole(trials) if t.valid and t.run.split(" ", 2)[0] == axis]
    by = dict(value=lambda t: t.run.split(" ", 2)[1], name=lambda t: t.run.split(" ", 2)[2])
    found: dict[str, list[dict]] = {}
    for e in summary.tally(rows, by, dict(rate="tg"), seed=seed).to_dict("records"):
        limit, share = (float(np.median([getattr(t, name) for t in e["rows"]])) for name in ("limit", "mbu"))
        found.setdefault(e["name"], []).append(e | dict(points=e["points"]["rate"], limit=limit, mbu=share))
    return {name: sorted(points, key=lambda point: int(point["value"])) for name, points in found.items()}


def all_points(grown: dict[str, dict[str, list[dict]]]) -> list[dict]:
    """The points of all axes and subjects, each with its `axis`. grown: axis → `axis_of`."""
    return [p | dict(axis=axis) for axis, found in grown.items() for points in found.values() for p in points]


COLUMNS = frames.Columns(
    {
        "axis": "axis",
        "subject": "name",
        "value": "value",
        **frames.interval("rate", "rate"),
        "MBU": "mbu",
        "n": "rate.n",
    },
    digits=3,
)


def kept(points: Sequence[dict]) -> float:
    """What is left of the first point's rate at the last one."""
    return points[-1]["rate"].median / points[0]["rate"].median
