"""How decode rates go with one size at a time, on the checkpoint itself: tokens in the cache, and threads. Each point
is a process of its own. How they go with the model's size is told by `sizes.py`.

context   tokens of prompt and answer together
threads   cores that the process may use
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from llama_jax.placement import parse
from llama_lab.bench import available, footprints, frames, gate, passages, process, protocol, roofline, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Trial

AXES = ("context", "threads")


@dataclass(frozen=True)
class Scaling(Experiment):
    """Every point of two axes `scale_processes` times, each in its own process, in seeded random order.

    scaled: placements and peers. Where the context is not the axis it is the smallest one. A subject that cannot run is
    said to be missing in the journal's notes.
    """

    model: str
    seed: Seed
    scaled: tuple[str, ...]
    scale_contexts: tuple[int, ...]
    scale_threads: tuple[int, ...]
    scale_tokens: int
    scale_answers: int
    scale_processes: int

    def check(self) -> None:
        check_counts(answers=self.scale_answers, processes=self.scale_processes)
        for name in self.scaled:
            if name not in available.peer_names():
                parse(name)
        passages.check_contexts(self.model, self.scale_contexts, self.scale_tokens)
        for threads in self.scale_threads:
            process.check_threads(threads)

    def points(self, runner: Runner) -> list[Point]:
        order, points = random.Random(self.seed), []
        axes, here = (("context", self.scale_contexts), ("threads", self.scale_threads)), runner.present(self.scaled)
        wanted = [(axis, value, name) for axis, values in axes for value in values for name in here]
        for block in range(self.scale_processes):
            for axis, value, name in order.sample(wanted, len(wanted)):
                asked = dict(subject=name, context=value if axis == "context" else min(self.scale_contexts))
                run, what = f"{axis} {value} {name}", f"{name} at {axis} {value}"
                threads = value if axis == "threads" else None
                points.append(Point(run, block, self.answering, self.scale_answers, asked, what, threads=threads))
        return points

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def answering(self, lab: Lab, subject: str, context: int) -> None:
        """Warm answers of one subject alone in its process; the bandwidth is probed between them."""
        for library in footprints.LIBRARIES.get(available.backend_of(subject), ()):
            import_module(library)
        loaded = available.load_alone(lab, subject)
        work = passages.filling(loaded, context, self.scale_tokens, self.seed)
        for engine in available.built(lab, loaded, [subject]):
            # no reference computes on weights that were not loaded as floats
            as_floats = loaded.dtype in ("float32", "bfloat16")
            exact = as_floats and not gate.approximate(engine.identity.get("quantisation", "none"))
            judge = protocol.Reference(loaded, work).judge if exact else lambda record, tokens: record
            probe = roofline.Probe()
            # a minute each at 8k tokens; the guard still listens
            protocol.warm_up(engine, work, lab.announce, enough=1)
            for i in range(self.scale_answers):
                lab.announce()
                bandwidth = probe.bandwidth()
                trial, tokens = lab.trial(engine, work, i % len(work.prompts), phase="warm", order=i)
                lab.keep(judge(trial, tokens), bandwidth_gbps=bandwidth)
        lab.notes["subject"] = subject


# What the rows say ----------------------------------------------------------------------------------------------------


def axis_of(trials: Sequence[Trial], axis: str, seed: int = 0) -> dict[str, list[dict]]:
    """Subject → its points in the order of their size: {axis, value, rate: Summary of tokens/s, points: each answer's,
    limit: tokens/s that the bandwidth allows, mbu}. Subjects without a valid answer are left out."""
    rows = [t for t in whole(trials) if t.valid and t.run.split(" ", 2)[0] == axis]
    by = {name: (lambda t, i=i: t.run.split(" ", 2)[i]) for i, name in enumerate(("axis", "value", "name"))}
    entries = summary.tally(rows, by, dict(rate="tg"), seed=seed).to_dict("records")
    for e in entries:
        e |= {name: float(np.median([getattr(t, name) for t in e["rows"]])) for name in ("limit", "mbu")}
        e["points"] = e["points"]["rate"]
    grown = summary.grouped(entries, lambda e: e["name"])
    return {name: sorted(points, key=lambda point: int(point["value"])) for name, points in grown.items()}


def all_points(grown: dict[str, dict[str, list[dict]]]) -> list[dict]:
    """The points of all axes and subjects. grown: axis → `axis_of`."""
    return [p for subjects in grown.values() for points in subjects.values() for p in points]


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
