"""How decode rates go with one size at a time, on the checkpoint itself: tokens in the cache, and threads. Each point
is a process of its own. How they go with the model's size is told by `sizes.py`.

context   tokens of prompt and answer together
threads   cores that the process may use
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_lab.bench import (
    available,
    footprints,
    frames,
    gate,
    passages,
    process,
    protocol,
    roofline,
    summary,
)
from llama_lab.bench.experiment import Experiment, Point, Runner, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Trial

AXES = ("context", "threads")


@dataclass(frozen=True)
class Scaling(Experiment):
    """Every point of two axes `scale_processes` times, each in a process of its own, in seeded random order.

    scaled: placements and peers. Where the context is not the axis it is the smallest one. A subject that cannot run is
    said to be missing in the journal's notes.
    """

    model: str
    seed: int
    scaled: tuple[str, ...]
    scale_contexts: tuple[int, ...]
    scale_threads: tuple[int, ...]
    scale_tokens: int
    scale_answers: int
    scale_processes: int

    def check(self) -> None:
        from llama_lab import peers

        check_counts(answers=self.scale_answers, processes=self.scale_processes)
        for name in self.scaled:
            if name not in peers.PEERS:
                parse(name)
        passages.check_contexts(self.model, self.scale_contexts, self.scale_tokens)
        for threads in self.scale_threads:
            process.check_threads(threads)

    def points(self, runner: Runner) -> list[Point]:
        here, order, found = runner.present(self.scaled), random.Random(self.seed), []
        axes = dict(zip(AXES, (self.scale_contexts, self.scale_threads), strict=True))
        wanted = [(axis, value, name) for axis, values in axes.items() for value in values for name in here]
        for block in range(self.scale_processes):
            for axis, value, name in order.sample(wanted, len(wanted)):
                context = value if axis == "context" else min(self.scale_contexts)
                asked, what = dict(subject=name, context=context), f"{name} at {axis} {value}"
                threads = value if axis == "threads" else None
                run = f"{axis} {value} {name}"
                found.append(Point(run, block, self.answering, self.scale_answers, asked, what, threads=threads))
        return found

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def answering(self, lab: Lab, subject: str, context: int) -> None:
        """Warm answers of one subject alone in its process; the bandwidth is probed between them."""
        for library in footprints.LIBRARIES.get(available.backend_of(subject), ()):
            import_module(library)
        load = lab.without_weights if reads_file(subject) else lab.load
        loaded = load(available.loaded_as(subject, lab.model))
        work = passages.filling(loaded, context, self.scale_tokens, self.seed)
        for who in available.built(lab, loaded, [subject]):
            judge = (
                judging(loaded, work)
                if not gate.approximate(who.identity.get("quantisation", "none"))
                else lambda record, tokens: record
            )
            probe = roofline.Probe()
            # a minute each at 8k tokens; the guard still listens
            protocol.warm_up(who, work, lab.announce, enough=1)
            for i in range(self.scale_answers):
                lab.announce()
                bandwidth = probe.bandwidth()
                trial, tokens = lab.trial(who, work, i % len(work.prompts), phase="warm", order=i)
                lab.keep(judge(trial, tokens), bandwidth_gbps=bandwidth)
        lab.notes["subject"] = subject


def reads_file(name: str) -> bool:
    return available.backend_of(name) in footprints.READS_FILE


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
