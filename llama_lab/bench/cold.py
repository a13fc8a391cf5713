"""First requests of a process: what came before them, and which compilation comes before the first token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from llama_jax import generate, serialised
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_lab.bench import protocol
from llama_lab.bench.guard import Region
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload


class Start(Trial):
    """A request, and what came before it in its process. Fields of its own, in ns, are None if the process was warm.

    trace, lower and backend times and counts are those of the request.
    """

    to_first_ns: int | None = None  # from the parent's decision to start the process to the first token on the host
    imports_ns: int | None = None  # the part of it until the process ran its first own line, interpreter and imports
    bind_ns: int | None = None  # weights brought into the placement's layout; and executables read, where they are
    first_trace_ns: int | None = None  # the part of trace_ns that lies before the first token; so the next two
    first_lower_ns: int | None = None
    first_backend_ns: int | None = None
    script_ns: int | None = None  # before the first token in `torch.jit.script`; a part of first_backend_ns
    freeze_ns: int | None = None  # before the first token in `torch.jit.freeze`
    # all scripted functions' first calls together, their second ones, …; those after the first may belong to the
    # requests that followed
    script_calls_ns: list[int] = Field(default_factory=list)

    @property
    def compile_part(self) -> float:
        """Seconds that having the programs took: read from a file, or traced, lowered and compiled."""
        return self.bind_ns / 1e9 if self.phase == "serialised" else self.compile_seconds

    @property
    def cost(self) -> float:
        """Seconds from loaded weights to the last token."""
        return self.bind_ns / 1e9 + self.seconds


def subject(loaded: Checkpoint, name: str, file: Path | None = None) -> tuple[Subject, generate.Engine]:
    """A placement as a subject, and its engine; with the executables of a file where one is given."""
    placed = protocol.subject(loaded, parse(name))
    engine = serialised.load(loaded, name, file, trust=True) if file else generate.build(loaded, name)
    return replace(placed, run=protocol.answering(engine)), engine


def as_first(record: Trial, reason: str = "", **fields) -> Trial:
    """The trial as a first request, which may compile: void if it failed, or for the given reason."""
    reason = reason if record.token_times_ns else record.reason
    return record.model_copy(update=dict(valid=not reason, reason=reason, **fields))


def noting(run: Callable, guard: Region, first: dict[str, int], started: int) -> Callable:
    """The same run; when its first block is there, `first` holds what that took. The guard is open, its earlier events
    do not count."""

    def noted(ids: Sequence[int], work: Workload) -> Iterator:
        before = {kind: guard.seconds(kind) for kind in ("trace", "lower", "backend")}
        for block in run(ids, work):
            if not first:
                first["to_first_ns"] = time.monotonic_ns() - started
                first.update({f"first_{kind}_ns": round((guard.seconds(kind) - s) * 1e9) for kind, s in before.items()})
            yield block

    return noted
