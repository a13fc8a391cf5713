"""`llama-jax bench --suite gpu`: the ladder and PyTorch's modes on one GPU, on the same random weights, against the
clock.

There is one measuring process, because all subjects share the weights on the device. It reports each row as it is made,
and the journal FOLDER/19-gpu.jsonl has it on disk before the next begins; `data` makes a table from that, here or on
another machine. What there was no time for, and what could not run, is in there as a note.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import jax
import numpy as np

from llama_jax.checkpoint import Checkpoint
from llama_jax.checkpoint.random import hash_on_device, on_device
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import AGAIN, environment, memory, process, protocol
from llama_lab.bench.guard import TorchCounter, TorchGuard
from llama_lab.bench.journal import Journal
from llama_lab.bench.workload import Subject, Workload, shuffled
from llama_lab.experiments.gpu import device as gpudevice
from llama_lab.experiments.gpu.judge import Judge
from llama_lab.experiments.gpu.suite import BASELINE, FULL, GUESSES, NAME, REHEARSAL, GpuTrial, Shape, Suite
from llama_lab.peers import torch

STARTS, DECODE = 0.65, 0.8  # shares of a model's time after which no subject is started, and no block begun


def run(
    folder: Path,
    any_device: bool = False,
    tell: Callable[[str], None] = print,
    suite: Suite | None = None,
    deterministic: bool = False,
) -> Path:
    """Measure and write FOLDER/19-gpu.jsonl; returns its path. any_device: tiny shapes, on whatever there is.
    deterministic: under XLA's flag for that. A run that is there already is kept as 19-gpu.jsonl.old.

    Raises UserError if there is no GPU, the folder cannot be written, another measurement runs, or XLA_FLAGS
    contradict `deterministic`.
    """
    gpudevice.prepare(deterministic)
    device = gpudevice.describe(any_device)
    suite = replace(suite or (REHEARSAL if any_device else FULL), deterministic=deterministic)
    path, doing, end = Path(folder) / f"{NAME}.jsonl", "the start", time.monotonic() + suite.hard_s
    with protocol.alone() as lock:
        journal = new_journal(path, suite, device)

        def receive(kind: str, value) -> None:
            nonlocal doing
            journal.receive(kind, value, process=1)
            if kind == "progress":
                doing = value
                tell(value)

        arguments = dict(suite=asdict(suite), device=device)
        task, held = f"{__name__}:child", (lock.fileno(),)
        outcome = process.start(task, arguments, receive, lambda: end - time.monotonic(), held=held)
        if not outcome.ok:
            journal.note(process=1, left_out=dict(what=f"everything after: {doing}", reason=outcome.reason))
            tell(f"the measuring process was ended: {outcome.reason}")
    tell(f"{len(journal.trials)} records, {len(journal.notes)} things left out: {path}")
    return path


def new_journal(path: Path, suite: Suite, device: dict) -> Journal:
    """A journal of its own for this run: it goes against the clock, so one that was interrupted is not continued."""
    try:
        if path.exists():
            os.replace(path, path.with_name(f"{path.name}.old"))
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from error
    shapes = {
        shape.name: dict(subjects=shape.subjects, layers=shape.config.num_hidden_layers) for shape in suite.shapes
    }
    about = dict(device=device, environment=environment.capture(), parameters={}, baseline=BASELINE)
    return Journal(path, {}, kind=GpuTrial, suite=asdict(suite) | dict(shapes=shapes), **about)


# What the measuring process runs --------------------------------------------------------------------------------------


def child(say: Callable, suite: dict, device: dict) -> dict:
    session = Session(Suite.from_json(suite), device, say)
    gpudevice.prepare(session.suite.deterministic)
    for shape in session.suite.shapes:
        measure(session, shape)
    return {}


@dataclass
class Session:
    """A run as it goes on, against the clock.

    say: as a task of `process` is given it. clock: seconds, monotonic. took: seconds a layer that a thing took, the
    last time that it was done.
    """

    suite: Suite
    device: dict
    say: Callable[[str, object], None]
    clock: Callable[[], float] = time.monotonic
    took: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        self.began = self.clock()

    @property
    def spent(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.began

    def expected(self, name: str, layers: int) -> float:
        """Seconds that a thing will take: as the last time that it was done, else as `GUESSES` says of the longest
        prefix of its name. It grows with the layers."""
        like = max((beginning for beginning in GUESSES if name.startswith(beginning)), key=len)
        return layers * self.took.get(name, GUESSES[like])

    def begin(self, what: str) -> None:
        self.say("progress", f"{self.spent:4.0f} s  {what}")

    def leave_out(self, what: str, reason: str) -> None:
        self.begin(f"left out: {what}: {reason}")
        self.say("note", dict(left_out=dict(what=what, reason=reason)))

    def add(self, row: dict, **more) -> None:
        where = dict(process=1, device=self.device["kind"], platform=self.device["platform"])
        self.say("trial", {**row, **where, **more})


def measure(session: Session, shape: Shape) -> None:
    """All of one model: first requests, decode blocks, first tokens; an error ends this model and leaves what was
    recorded."""
    layers, began = shape.config.num_hidden_layers, session.spent
    room = shape.until * session.suite.limit_s - began
    if room < session.expected("weights", layers):
        return session.leave_out(shape.name, "the time was up before it")
    try:
        bench = opened(session, shape)
        session.took["weights"] = (session.spent - began) / layers
        subjects = bench.started(began + STARTS * room)
        if subjects:
            bench.decode(subjects, began + DECODE * room)
            bench.first_tokens(subjects, began + room)
    except Exception as error:  # such as memory that does not suffice: the next model may well run
        session.leave_out(f"the rest of {shape.name}", in_words(error))
    finally:
        bench = subjects = None  # the last references, so that the next model finds room
        gpudevice.forget()


def in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def opened(session: Session, shape: Shape) -> Bench:
    """Weights drawn on the device, and PyTorch's module on the same memory where PyTorch is there."""
    seed = session.suite.seed
    session.begin(f"{shape.name}: drawing {2 * shape.config.num_parameters / 1e9:.1f} GB of weights")
    params = jax.block_until_ready(on_device(shape.config, seed))
    digest = hash_on_device(shape.config, seed, "bfloat16")
    loaded, module = Checkpoint(shape.name, shape.config, params, None, digest, shape.name, "bfloat16"), None
    if where := gpudevice.torch_device(session.device["platform"]):
        try:
            from llama_lab.peers import torch_model

            module = torch_model.module(shape.config, params, where)
        except Exception as error:  # a PyTorch or transformers that does not fit: JAX's part goes on, judged by JAX
            session.leave_out(f"{shape.name}: all of PyTorch", in_words(error))
    return Bench(session, shape, loaded, module, Judge(loaded, module))


@dataclass(frozen=True)
class Bench:
    """One model on the device. module: PyTorch's, on the same memory. judge: of its texts. expected: the baseline's
    tokens by what was asked."""

    session: Session
    shape: Shape
    loaded: Checkpoint
    module: object | None
    judge: Judge
    expected: dict = field(default_factory=dict)

    def workload(self, tokens: int, new_tokens: int) -> Workload:
        return self.session.suite.workload(self.shape.config, tokens, new_tokens)

    def leave_out(self, what: str, reason: str) -> None:
        self.session.leave_out(f"{self.shape.name}: {what}", reason)

    def judged(self, row: dict, subject: Subject, work: Workload, tokens: np.ndarray, baseline: Subject) -> dict:
        """The record with the verdict on its tokens, and where a right text is another one than the baseline's. A
        compilation's reason stays, and so does a failure's."""
        if not len(tokens):
            return row
        ids, text = work.prompts[row["prompt"]], tokens[:, 0]
        if (ids, work.new_tokens) not in self.expected:
            self.expected[ids, work.new_tokens] = np.concatenate(list(baseline.run(list(ids), work)))[:, 0]
        verdict, gap = self.judge.verdict(ids, text)
        agreed = int((text == self.expected[ids, work.new_tokens]).cumprod().sum())
        parts = f"parts from {baseline.name} at token {agreed}" if verdict.passed and agreed < len(text) else ""
        reason = "; ".join(filter(None, (row["reason"], verdict.reason, parts)))
        return row | dict(valid=row["valid"] and verdict.passed, reason=reason, agreed=agreed, gap=gap)

    def build(self, name: str) -> Subject:
        """A placement, or a way of PyTorch's. Raises UnavailableError if it cannot run here."""
        config, loaded = self.shape.config, self.loaded
        if name not in peers.PEERS:
            weights, free = 2 * config.num_parameters, gpudevice.free_bytes()
            if parse(name).layers == "scan" and free is not None and free < 1.3 * weights:
                raise peers.UnavailableError(
                    f"its stacked copy of the weights needs {weights / 1e9:.0f} GB more than there is room for"
                )
            return protocol.subject(loaded, parse(name))
        if self.module is None:
            raise peers.UnavailableError("PyTorch is not installed, or does not see the device")
        ways = peers.module(name)
        if gap := ways.missing(name, loaded.name):
            raise peers.UnavailableError(*gap)
        identity = dict(model=loaded.name, weights_hash=loaded.weights_hash, dtype="bfloat16", weight_bytes=2,
                        config=config, cache=ways.cache_kind(name))  # fmt: skip
        run = ways.runner(self.module, config, name)
        return Subject(name, "torch", name, run, list, identity, guard=TorchGuard, counter=TorchCounter)

    def started(self, until: float) -> list[Subject]:
        """The subjects whose first request succeeded, warmed up; the baseline is the first of them. until: seconds of
        the run."""
        session, layers, subjects = self.session, self.shape.config.num_hidden_layers, []
        work = self.workload(session.suite.prompt_tokens, session.suite.new_tokens)
        for order, name in enumerate(self.shape.subjects):
            began, expected = session.spent, session.expected(name, layers)
            if session.suite.rehearsal and torch.compiles(name) and session.device["platform"] == "cpu":
                self.leave_out(name, "on a processor Inductor compiles for minutes, too long for a rehearsal")
                continue
            if began + expected > until:
                self.leave_out(name, f"it may take {expected:.0f} s to start, and the time for starts is over then")
                continue
            session.begin(f"{self.shape.name}: first request of {name}")
            before = gpudevice.mark()
            try:
                subject = self.build(name)
                good = self.first_request(subject, work, (subjects or [subject])[0], order, before, "decode")
            except Exception as error:  # a subject that cannot be built here is a gap, like one that is not installed
                unavailable = isinstance(error, peers.UnavailableError)
                self.leave_out(name, error.reason if unavailable else in_words(error))
                continue
            if good:
                protocol.warm_up(subject, work)
                subjects.append(subject)
            session.took[name] = (session.spent - began) / layers
        return subjects

    def first_request(
        self, subject: Subject, work: Workload, baseline: Subject, order: int, before: gpudevice.Before, run: str
    ) -> bool:
        """A request that may compile and capture, recorded as phase `first`, and whether it made tokens that are right.

        before: what was there before the subject was built, so that its memory is known.
        """
        row, tokens = protocol.timed(replace(subject, guard=subject.counter), work, 0)
        answered = bool(len(tokens))  # what was compiled here is what is measured, and voids nothing
        row |= dict(valid=answered, reason="" if answered else row["reason"])
        row = self.judged(row, subject, work, tokens, baseline)
        row |= gpudevice.taken_since(before, subject.backend, row["weights_bytes"])
        peak = memory.device_peak()
        self.session.add(row, phase="first", block=0, order=order, run=run, device_peak_bytes=peak)
        if not row["valid"]:
            self.leave_out(f"{subject.name} ({run})", row["reason"])
        return row["valid"]

    def decode(self, subjects: Sequence[Subject], until: float) -> None:
        """Whole answers: in each block every subject once, the baseline twice, in seeded random order."""
        suite = self.session.suite
        twin = replace(subjects[0], name=subjects[0].name + AGAIN)
        probe = gpudevice.Probe(suite.probe_bytes, gpudevice.torch_device(self.session.device["platform"]))
        work = self.workload(suite.prompt_tokens, suite.new_tokens)
        self.interleaved([*subjects, twin], work, suite.blocks, until, "decode", probe)

    def first_tokens(self, subjects: Sequence[Subject], until: float) -> None:
        """Requests of one new token at each prompt length; each length's own compilation or capture is recorded
        first."""
        session, layers = self.session, self.shape.config.num_hidden_layers
        chosen = [subject for subject in subjects if subject.name in self.shape.first_token]
        for tokens in session.suite.lengths:
            began, run = session.spent, f"first token {tokens}"
            if began + session.expected("first token", layers) > until:
                self.leave_out(run, "the time for this model was over")
                continue
            work, ready = self.workload(tokens, 1), []
            for order, subject in enumerate(chosen):
                session.begin(f"{self.shape.name}: {run}: first request of {subject.name}")
                if self.first_request(subject, work, chosen[0], order, gpudevice.mark(), run):
                    protocol.warm_up(subject, work)
                    ready.append(subject)
            if ready:
                self.interleaved(ready, work, session.suite.answers, until, run)
            session.took["first token"] = (session.spent - began) / layers

    def interleaved(
        self,
        subjects: Sequence[Subject],
        work: Workload,
        blocks: int,
        until: float,
        run: str,
        probe: gpudevice.Probe | None = None,
    ) -> None:
        """Warm, timed, judged requests, block by block, as long as another block fits."""
        session, longest = self.session, 0.0
        for block in range(blocks):
            began = session.spent
            if began + longest > until:
                return self.leave_out(f"{run}: blocks {block + 1} to {blocks}", "the time for this was over")
            session.begin(f"{self.shape.name}: {run}: block {block + 1} of {blocks}")
            rate = dict(bandwidth_gbps=probe.bandwidth()) if probe else {}
            for order, subject in enumerate(shuffled(list(subjects), work.seed, run, block)):
                row, tokens = protocol.timed(subject, work, block % len(work.prompts))
                row = self.judged(row, subject, work, tokens, subjects[0])
                session.add(row, run=run, phase="warm", block=block, order=order, **rate)
            longest = max(longest, session.spent - began)
