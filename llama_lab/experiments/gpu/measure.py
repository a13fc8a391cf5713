"""`llama-jax bench --suite gpu`: the ladder and PyTorch's modes on one GPU, on the same random weights, against the
clock.

One measuring process, since all subjects share the weights on the device. It says each row as it makes it, and the
journal FOLDER/12-gpu.jsonl has it on the disk before the next begins; `data` makes a table of that, here or elsewhere.
What the time did not allow, and what could not run, is in there as a note.
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
from llama_lab.experiments.gpu.deadline import Budget, Costs
from llama_lab.experiments.gpu.judge import Judge, verdict
from llama_lab.experiments.gpu.suite import (
    BASELINE,
    FULL,
    GUESSES,
    NAME,
    REHEARSAL,
    GpuTrial,
    Shape,
    Suite,
    workload,
)
from llama_lab.peers import torch

STARTS, DECODE = 0.65, 0.8  # shares of a model's time after which no subject is started, and no block begun


@dataclass
class Session:
    """A run as it goes on, in the measuring process. say: as a task of `process` is given it."""

    suite: Suite
    device: dict
    budget: Budget
    say: Callable[[str, object], None]
    costs: Costs = field(default_factory=lambda: Costs(GUESSES, 0.8))

    def begin(self, what: str) -> None:
        self.say("progress", f"{self.budget.spent:4.0f} s  {what}")

    def leave_out(self, what: str, reason: str) -> None:
        self.begin(f"left out: {what}: {reason}")
        self.say("note", dict(left_out=dict(what=what, reason=reason)))

    def add(self, row: dict, **more) -> None:
        where = dict(process=1, device=self.device["kind"], platform=self.device["platform"])
        self.say("trial", {**row, **where, **more})


@dataclass(frozen=True)
class Bench:
    """One model on the device, and who judges its texts. expected: the baseline's tokens by what was asked."""

    shape: Shape
    loaded: Checkpoint
    module: object | None  # PyTorch's, on the same memory
    judge: Judge
    expected: dict = field(default_factory=dict)

    def judged(self, seen: dict, who: Subject, work: Workload, tokens: np.ndarray, baseline: Subject) -> dict:
        """The record with the verdict on its tokens; a compilation's reason stays, and so does a failure's."""
        if not len(tokens):
            return seen
        ids = work.prompts[seen["prompt"]]
        if (ids, work.new_tokens) not in self.expected:
            self.expected[ids, work.new_tokens] = np.concatenate(list(baseline.run(list(ids), work)))[:, 0]
        found = verdict(
            tokens[:, 0], self.expected[ids, work.new_tokens], self.judge.gap(ids, tokens[:, 0]), baseline.name
        )
        reason = "; ".join(filter(None, (seen["reason"], found["reason"])))
        return {**seen, **found, "valid": seen["valid"] and found["valid"], "reason": reason}


def run(
    folder: Path, any_device: bool = False, tell: Callable[[str], None] = print, suite: Suite | None = None
) -> Path:
    """Measure and write FOLDER/12-gpu.jsonl; returns its path. any_device: tiny shapes, on whatever there is. A run
    that is there already is kept as 12-gpu.jsonl.old.

    Raises UserError where there is no GPU, the folder cannot be written, or another measurement runs.
    """
    gpudevice.prepare()
    device = gpudevice.describe(any_device)
    suite = suite or (REHEARSAL if any_device else FULL)
    path, doing, end = Path(folder) / f"{NAME}.jsonl", "the start", time.monotonic() + suite.hard_s
    with protocol.alone() as lock:
        journal = begun(path, suite, device)

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


def begun(path: Path, suite: Suite, device: dict) -> Journal:
    """A journal of its own for this run: it goes against the clock, so one that was interrupted is not continued."""
    try:
        if path.exists():
            os.replace(path, path.with_name(f"{path.name}.old"))
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror}.") from error
    settings = {name: value for name, value in asdict(suite).items() if name != "shapes"}
    shapes = {
        shape.name: dict(subjects=shape.subjects, layers=shape.config.num_hidden_layers) for shape in suite.shapes
    }
    about = dict(device=device, environment=environment.capture(), parameters={}, baseline=BASELINE)
    return Journal(path, {}, kind=GpuTrial, suite={**settings, "shapes": shapes}, **about)


def child(say: Callable, suite: dict, device: dict) -> dict:
    """The measuring process."""
    gpudevice.prepare()
    session = Session(Suite.from_json(suite), device, Budget(suite["limit_s"]), say)
    for shape in session.suite.shapes:
        measure(session, shape)
    return {}


def measure(session: Session, shape: Shape) -> None:
    """All of one model: first requests, decode blocks, first tokens; an error ends this model and leaves what was
    recorded."""
    layers, began = shape.config.num_hidden_layers, session.budget.spent
    if session.budget.left(shape.until) < session.costs.expected("weights", layers):
        return session.leave_out(shape.name, "the time was up before it")
    room = session.budget.left(shape.until)
    try:
        bench = opened(session, shape)
        session.costs.learn("weights", layers, session.budget.spent - began)
        subjects = started(session, bench, began + STARTS * room)
        if subjects:
            decode(session, bench, subjects, began + DECODE * room)
            first_tokens(session, bench, subjects, began + room)
    except Exception as error:  # such as memory that does not suffice: the next model may well run
        session.leave_out(f"the rest of {shape.name}", told(error))
    finally:
        bench = subjects = None  # the last references, so that the next model finds room
        gpudevice.forget()


def told(error: BaseException) -> str:
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
            session.leave_out(f"{shape.name}: all of PyTorch", told(error))
    return Bench(shape, loaded, module, Judge(loaded, module))


def build(bench: Bench, name: str) -> Subject:
    """A placement, or a way of PyTorch's. Raises UnavailableError where it cannot run here."""
    if name not in peers.PEERS:
        weights, free = 2 * bench.shape.config.num_parameters, gpudevice.free_bytes()
        if parse(name).layers == "scan" and free is not None and free < 1.3 * weights:
            raise peers.UnavailableError(
                f"its stacked copy of the weights needs {weights / 1e9:.0f} GB more than there is room for"
            )
        return protocol.subject(bench.loaded, parse(name))
    if bench.module is None:
        raise peers.UnavailableError("PyTorch is not installed, or does not see the device")
    ways = peers.module(name)
    if gap := ways.missing(name, bench.loaded.name):
        raise peers.UnavailableError(*gap)
    identity = dict(model=bench.loaded.name, weights_hash=bench.loaded.weights_hash, dtype="bfloat16", weight_bytes=2,
                    config=bench.shape.config, cache=ways.cache_kind(name))  # fmt: skip
    run = ways.runner(bench.module, bench.shape.config, name)
    return Subject(name, "torch", name, run, list, identity, guard=TorchGuard, counter=TorchCounter)


def started(session: Session, bench: Bench, until: float) -> list[Subject]:
    """The subjects whose first request succeeded, warmed up; the baseline is the first of them. until: seconds of the
    run."""
    suite, shape, subjects = session.suite, bench.shape, []
    work = workload(suite, shape.config, suite.prompt_tokens, suite.new_tokens)
    for order, name in enumerate(shape.subjects):
        layers = shape.config.num_hidden_layers
        if suite.rehearsal and torch.compiles(name) and session.device["platform"] == "cpu":
            session.leave_out(
                f"{shape.name}: {name}", "on a processor Inductor compiles for minutes, too long for a rehearsal"
            )
            continue
        if session.budget.spent + (expected := session.costs.expected(name, layers)) > until:
            session.leave_out(
                f"{shape.name}: {name}", f"it may take {expected:.0f} s to start, and the time for starts is over then"
            )
            continue
        session.begin(f"{shape.name}: first request of {name}")
        began, before = session.budget.spent, gpudevice.mark()
        try:
            who = build(bench, name)
            good = first_request(session, bench, who, work, (subjects or [who])[0], order, before, run="decode")
        except peers.UnavailableError as error:
            session.leave_out(f"{shape.name}: {name}", error.reason)
            continue
        except Exception as error:  # a subject that cannot be built here is a gap, like one that is not installed
            session.leave_out(f"{shape.name}: {name}", told(error))
            continue
        if good:
            protocol.warm_up(who, work)
            subjects.append(who)
        session.costs.learn(name, layers, session.budget.spent - began)
    return subjects


def first_request(
    session: Session,
    bench: Bench,
    who: Subject,
    work: Workload,
    baseline: Subject,
    order: int,
    before: gpudevice.Mark,
    **where,
) -> bool:
    """A request that may compile and capture, recorded as phase `first`, and whether it made tokens that are right.

    before: what was there before the subject was built, so that its memory is known.
    """
    seen, tokens = protocol.timed(replace(who, guard=who.counter), work, 0)
    compiled = bool(len(tokens))  # what was compiled here is what is measured, and voids nothing
    seen = bench.judged(
        {**seen, "valid": compiled, "reason": "" if compiled else seen["reason"]}, who, work, tokens, baseline
    )
    taken = gpudevice.taken_since(before, who.backend, seen["weights_bytes"])
    session.add(seen, phase="first", block=0, order=order, **where, **taken, device_peak_bytes=memory.device_peak())
    if not seen["valid"]:
        session.leave_out(f"{bench.shape.name}: {who.name} ({where['run']})", seen["reason"])
    return seen["valid"]


def decode(session: Session, bench: Bench, subjects: Sequence[Subject], until: float) -> None:
    """Whole answers: in each block every subject once, the baseline twice, in seeded random order."""
    suite = session.suite
    work = workload(suite, bench.shape.config, suite.prompt_tokens, suite.new_tokens)
    twin = replace(subjects[0], name=subjects[0].name + AGAIN)
    probe = gpudevice.Probe(suite.probe_bytes, gpudevice.torch_device(session.device["platform"]))
    interleaved(session, bench, [*subjects, twin], work, suite.blocks, until, "decode", probe)


def first_tokens(session: Session, bench: Bench, subjects: Sequence[Subject], until: float) -> None:
    """Requests of one new token at each prompt length; each length's own compilation or capture is recorded first."""
    suite, shape = session.suite, bench.shape
    chosen = [s for s in subjects if s.name in shape.first_token]
    for tokens in suite.lengths:
        began, layers, run = session.budget.spent, shape.config.num_hidden_layers, f"first token {tokens}"
        if began + session.costs.expected("first token", layers) > until:
            session.leave_out(f"{shape.name}: {run}", "the time for this model was over")
            continue
        work, ready = workload(suite, shape.config, tokens, 1), []
        for order, who in enumerate(chosen):
            session.begin(f"{shape.name}: {run}: first request of {who.name}")
            if first_request(session, bench, who, work, chosen[0], order, gpudevice.mark(), run=run):
                protocol.warm_up(who, work)
                ready.append(who)
        if ready:
            interleaved(session, bench, ready, work, suite.answers, until, run)
        session.costs.learn("first token", layers, session.budget.spent - began)


def interleaved(
    session, bench, subjects: Sequence[Subject], work: Workload, blocks: int, until: float, run: str, probe=None
) -> None:
    """Warm, timed, judged requests, block by block, as long as another block fits."""
    longest = 0.0
    for block in range(blocks):
        began = session.budget.spent
        if began + longest > until:
            return session.leave_out(
                f"{bench.shape.name}: {run}: blocks {block + 1} to {blocks}", "the time for this was over"
            )
        session.begin(f"{bench.shape.name}: {run}: block {block + 1} of {blocks}")
        rate = dict(bandwidth_gbps=probe.bandwidth()) if probe else {}
        drawn = shuffled(list(subjects), work.seed, run, block)
        for order, who in enumerate(drawn):
            seen, tokens = protocol.timed(who, work, block % len(work.prompts))
            seen = bench.judged(seen, who, work, tokens, subjects[0])
            session.add(seen, run=run, phase="warm", block=block, order=order, **rate)
        longest = max(longest, session.budget.spent - began)
