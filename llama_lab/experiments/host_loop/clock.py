"""Host strategies as subjects, with a clock around starting programs, waiting for tokens and making text."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from llama_jax import generate, pipeline
from llama_jax.checkpoint import Checkpoint
from llama_jax.generate import Engine
from llama_jax.placement import LADDER, parse
from llama_lab.bench import gate, protocol
from llama_lab.bench.protocol import Reference
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload

ONE_THREAD, THREADS = "one thread", "three threads"  # the two ways to serve


class HostTrial(Trial):
    """A trial, and where its time went from the first token to the last. ns, summed over the answer.

    A call may return long before its program is done (then `dispatch_ns` is the host's own) or only afterwards, as
    those with a callback do on a CPU (then it holds the device's work too).
    """

    weights_read: int  # weights that one token reads
    in_flight: int | None = None  # calls that may be started ahead, where the strategy bounds them
    calls: int  # that started a program
    dispatch_ns: int  # within those calls
    fetch_ns: int  # waiting for tokens and copying them to the host, in whichever thread does that
    text_ns: int  # turning tokens into text, in the reader's thread
    cpu_ns: int  # processor time of the process, all its threads
    reader_cpu_ns: int  # the reader's thread's part of it
    wall_ns: int

    @property
    def cores(self) -> float:
        """Processor cores kept busy, on average."""
        return self.cpu_ns / self.wall_ns if self.wall_ns else math.nan

    def per_token(self, field: str) -> float:
        """Microseconds of a field of times for each token after the first."""
        return getattr(self, field) / (self.new_tokens - 1) / 1e3 if self.new_tokens > 1 else math.nan


def now() -> tuple[int, int, int]:
    """Nanoseconds of the wall clock, of the process and of this thread."""
    return time.perf_counter_ns(), time.process_time_ns(), time.thread_time_ns()


class Clock:
    """Where a request's time goes, since its first token."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        self.spent, self.began = Counter(), now()
        self.ended = self.began

    def stop(self) -> None:
        self.ended = now()

    def around(self, what: str, function: Callable) -> Callable:
        """The function with its time added up. Each thing may be timed in one thread only."""

        def timed(*args, **named):
            start = time.perf_counter_ns()
            try:
                return function(*args, **named)
            finally:
                self.spent[what] += time.perf_counter_ns() - start
                self.spent[f"{what} calls"] += 1

        return timed

    def reading(self) -> dict:
        """The fields of a HostTrial that the clock knows."""
        wall, cpu, reader = (after - before for before, after in zip(self.began, self.ended, strict=True))
        spent = {f"{what}_ns": self.spent[what] for what in ("dispatch", "fetch", "text")}
        return dict(calls=self.spent["dispatch calls"], **spent, cpu_ns=cpu, reader_cpu_ns=reader, wall_ns=wall)


def engines(loaded: Checkpoint, names: Sequence[str]) -> dict[str, Engine]:
    """An engine of each name. Programs that are the same under several of them are one object, compiled once."""
    built: dict[str, Engine] = {}
    first = generate.build(loaded, LADDER["step"])
    for name in names:
        placement = parse(name)
        key = name.partition("+")[0] if placement.host != "callback" else name
        if key not in built:
            engine = generate.build(
                loaded, replace(placement, host=placement.host if key == name else "sync", in_flight=2)
            )
            shared = dict(prefill=first.programs.prefill, extend=first.programs.extend, step=first.programs.step)
            built[key] = replace(engine, programs=replace(engine.programs, **shared))
        built[name] = replace(built[key], placement=placement)
    return {name: built[name] for name in names}


def clocked(engine: Engine, clock: Clock) -> Engine:
    """The same engine with a clock around the calls that start programs and around fetching what they made."""
    parts = {name: getattr(engine.programs, name) for name in ("step", "decode")}
    timed = {name: program and clock.around("dispatch", program) for name, program in parts.items()}
    return replace(engine, programs=replace(engine.programs, **timed), fetch=clock.around("fetch", engine.fetch))


def subject(loaded: Checkpoint, engine: Engine, clock: Clock) -> Subject:
    """A strategy as a subject whose reader turns each token into text before it asks for the next."""
    timed, words = clocked(engine, clock), loaded.tokenizer or pipeline.Numbers()

    def run(ids, workload: Workload) -> Iterator[np.ndarray]:
        read = clock.around("text", pipeline.reader(words))
        exact = dict(length=workload.length, slots=workload.slots)
        for i, block in enumerate(generate.stream(timed, [ids] * workload.batch, workload.new_tokens, **exact)):
            read(block[:, 0])
            yield block
            if i == 0:
                clock.restart()
        clock.stop()

    return replace(protocol.subject(loaded, engine.placement), run=run)


def server(loaded: Checkpoint, name: str, clock: Clock) -> Subject:
    """Serving all prompts of a workload, as a subject: its tokens are those of all answers, one after the other."""
    engine, words = clocked(generate.build(loaded, LADDER["step"]), clock), loaded.tokenizer or pipeline.Numbers()
    bound = 0 if name == ONE_THREAD else pipeline.BOUND

    def run(ids, workload: Workload) -> Iterator[np.ndarray]:
        clock.restart()
        exact = dict(length=workload.length, slots=workload.slots, stop=(), allow_special_tokens=True)
        for piece in pipeline.serve(engine, words, workload.prompts, workload.new_tokens, bound, **exact):
            yield np.array(piece.token_ids, np.int32)[:, None]
        clock.stop()

    return replace(protocol.subject(loaded, engine.placement, name), run=run, encode=lambda prompt: [])


def measured(trial: Trial, clock: Clock, loaded: Checkpoint) -> HostTrial:
    """The trial with what the clock read in it."""
    placement = parse(trial.placement)
    in_flight = placement.in_flight if placement.host in ("async", "queue") else None
    weights = loaded.config.weights_read_per_token
    return HostTrial(**trial.model_dump(), **clock.reading(), in_flight=in_flight, weights_read=weights)


def judged(trial: Trial, tokens: np.ndarray, reference: Reference) -> Trial:
    """The record, void when any answer of those served is not the reference's."""
    n, verdicts = reference.workload.new_tokens, []
    for i in range(len(reference.workload.prompts)):
        answer = tokens[i * n : (i + 1) * n, 0]
        verdicts.append(gate.compare(answer, reference.tokens(i), partial(reference.logits, i, answer)))
    reasons = "; ".join(dict.fromkeys(filter(None, (trial.reason, *(v.reason for v in verdicts)))))
    return trial.model_copy(update=dict(valid=trial.valid and all(v.passed for v in verdicts), reason=reasons))
