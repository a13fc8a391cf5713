"""What a measuring process needs: the model, timed requests, and a way to keep its rows.

A task is a function `task(lab, **arguments)`, or a method of an `Experiment`. It runs in a fresh process that
`experiment.Runner` starts. Each row that it keeps is in the journal before the task goes on.
Imports only what running a model needs, so that a release of JAX without the other packages can run a task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import jax

from llama_jax import checkpoint
from llama_jax.checkpoint import Checkpoint
from llama_jax.plumbing import progress
from llama_lab.bench import environment, process, protocol
from llama_lab.bench.workload import Subject, Workload

if TYPE_CHECKING:
    import numpy as np

    from llama_lab.bench.record import Row, Trial


@dataclass
class Lab:
    """A measuring process.

    say(kind, value): sends a message to the process that started this one. identity: run, block and process of its
    rows. workload: None if the task makes its own. notes: what the note of this process says beside the usual.
    load_ns: what the last `load` took.
    """

    say: Callable[[str, object], None]
    identity: dict
    model: str
    workload: Workload | None = None
    notes: dict = field(default_factory=dict)
    load_ns: int = 0

    @property
    def block(self) -> int:
        return self.identity["block"]

    def load(self, dtype: str = "float32", model: str | None = None) -> Checkpoint:
        """The checkpoint, its arrays ready. model: another one than the process's."""
        began = time.perf_counter_ns()
        with progress.heard(progress.lines(lambda line: self.announce(what=line), every_s=1.0)):
            loaded = checkpoint.load(model or self.model, dtype)
        jax.block_until_ready(loaded.params)
        self.load_ns = time.perf_counter_ns() - began
        return loaded

    def without_weights(self, dtype: str = "float32") -> Checkpoint:
        """The checkpoint without its arrays, for a subject that reads the file by itself."""
        self.load_ns = 0
        return without_weights(self.model, dtype)

    def trial(self, subject: Subject, workload: Workload, prompt: int, /, **more) -> tuple[Trial, np.ndarray]:
        """One timed request, as `protocol.trial`, under this process's identity, which gives way to `more`."""
        return protocol.trial(subject, workload, prompt, **{**self.identity, **more})

    def blocks(
        self,
        subjects: Sequence[Subject],
        numbers: Sequence[int],
        baseline: str,
        reference: protocol.Reference,
        keep: Callable[[Trial], None] | None = None,
        **more,
    ) -> None:
        """Interleaved blocks, as `protocol.measure`. keep(trial): instead of `Lab.keep`. more: fields of `Caller`."""
        where = {k: v for k, v in self.identity.items() if k != "block"}
        caller = protocol.Caller(where, keep or self.keep, **dict(starting=self.announce) | more, locked=True)
        protocol.measure(subjects, self.workload, numbers, reference, baseline, caller)

    def keep(self, row: Row, **changes) -> None:
        """Put a row into the journal, with these fields changed."""
        self.say("trial", (row.model_copy(update=changes) if changes else row).model_dump())

    def note(self, **about) -> None:
        """Put a note about the process as a whole into the journal."""
        self.say("note", about)

    def missing(self, name: str, reason: str, remedy: str) -> None:
        """Say that a subject cannot be measured here."""
        self.note(missing=dict(name=name, reason=reason, remedy=remedy))

    def progress(self, what: str, done: int, total: int) -> None:
        self.say("progress", [what, done, total])

    def peer(self, loaded: Checkpoint, name: str, block: int = 0) -> list[Subject]:
        """A peer as a subject, in a list; an empty list where it cannot be built, which then is reported as missing."""
        from llama_lab import peers

        self.announce(what=f"building {name}", subject=name, block=block, order=0)
        try:
            return [peers.subject(loaded, name)]
        except peers.UnavailableError as error:
            self.missing(name, error.reason, error.remedy)
            return []

    def announce(self, **what) -> None:
        """Report what begins now. A process that stays silent for long is assumed to hang."""
        self.say("starting", what)


def without_weights(model: str, dtype: str = "float32") -> Checkpoint:
    source = checkpoint.find(model)
    return Checkpoint(
        source.config.home.name, source.config, None, source.tokenizer(), source.hash(), source.where, dtype
    )


@contextlib.contextmanager
def watched(lab: Lab) -> Iterator[None]:
    """Leave a note afterwards: what else the machine did meanwhile, what this process was given, and `Lab.notes`."""
    with environment.Watch() as watch:
        yield
    given = dict(blas=environment.blas_threads(), settings=environment.settings())
    lab.note(watch=watch.result, affinity=process.allowed_cores(), **given, **lab.notes)


def main(
    say: Callable, task: str, lab: dict, arguments: dict, experiment: dict | None = None, is_watched: bool = True
) -> dict:
    """The child's entry. task: `module:function`, or the name of a method where an experiment is given, as {kind:
    `module:class`, fields}. lab: fields of `Lab`, as JSON values."""
    here = Lab(say, **lab | dict(workload=lab["workload"] and Workload.from_json(lab["workload"])))
    owner = experiment and resolve_name(experiment["kind"])(**experiment["fields"])
    function = getattr(owner, task) if owner else resolve_name(task)
    with watched(here) if is_watched else contextlib.nullcontext():
        function(here, **arguments)
    return {}
