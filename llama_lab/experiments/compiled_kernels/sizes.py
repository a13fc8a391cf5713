"""The lead by size: every engine on the same files, from a hundred megabytes per token to nearly two gigabytes.

A file is a model in a type of blocks. Of `random:PRESET` it is written here (`checkpoint/writer.py`: real shapes,
random weights), of a GGUF file it is that file, or what llama.cpp's quantiser makes of it; both lie in the user's
cache. In each of a file's processes all engines answer in turn in every block: at some contexts, several tokens each,
and prompts of several lengths, one token each. The bandwidth is probed in every block. Placements make the reference's
tokens of the file's blocks, or their time does not count; of other programs, whose arithmetic is their own, tokens are
counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import ROUNDED
from llama_lab.bench import available, frames, gate, passages, protocol, roofline, standings, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.process import HERE, Interpreter, allowed_cores
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload

PROMPT = 1  # tokens of an answer where the prompt is what is timed
DECODE, PREFILL = "decode", "prefill"
SHAPE = ("file", "what", "tokens")  # what engines are compared within


@dataclass(frozen=True)
class Sizes(Experiment):
    """Every engine on every file, `size_blocks` times at every context and every prompt length in each of
    `size_processes` processes; `run` of a row is the file's name.

    size_files: `MODEL/TYPE` each, such as `random:llama-3.2-1b/q4_0`, `smollm2-135m-instruct/q4_1`. Engines that cannot
    run are reported as missing in the journal's notes.
    """

    size_engines: tuple[str, ...]
    size_files: tuple[str, ...]
    size_contexts: tuple[int, ...]
    size_lengths: tuple[int, ...]
    size_tokens: int
    size_processes: int
    size_blocks: int
    seed: Seed

    def check(self) -> None:
        check_counts(processes=self.size_processes, blocks=self.size_blocks)
        for name in self.size_engines:
            if name not in available.peer_names():
                parse(name)
        for name in self.size_files:
            self.check_file(name)

    def check_file(self, name: str) -> None:
        """Raises UserError for a file that cannot be had, or that is too small for what is asked."""
        model, _ = available.named(name, ROUNDED)
        self.check_lengths(model)

    def check_lengths(self, model: str) -> None:
        """Raises UserError for a text longer than the model's context."""
        passages.check_contexts(model, self.size_contexts, self.size_tokens)
        passages.check_contexts(model, [length + 2 for length in self.size_lengths], 2)

    def recorded_with(self, meta: dict) -> dict:
        return dict(size_processes=1, size_lengths=[]) | super().recorded_with(meta)  # which older tables do not say

    def present(self, runner: Runner) -> Sequence[str]:
        """The files that can be had; of others the journal says why not."""
        return self.size_files

    def label(self, name: str) -> str:
        """As rows and figures call a file: MODEL/ and what it is there."""
        return name

    def file(self, name: str, tell: Callable) -> tuple[Path, Interpreter]:
        """Where it lies, and what the process that runs it is started with. Raises UserError."""
        return file_of(*name.rsplit("/", 1), tell), HERE

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        """What cannot run on a file is reported as missing by the file's name."""
        rounds = [(number, name) for number in range(self.size_processes) for name in self.present(runner)]
        for i, (number, name) in enumerate(rounds):
            runner.progress(f"engines on {name}", i, len(rounds))
            (path, interpreter), name = self.file(name, runner.progress), self.label(name)
            gaps = {gap["name"]: gap for gap in available.gaps(self.size_engines, str(path))}
            known = [gap["name"] for gap in runner.missing]
            for gap in (gap for engine, gap in gaps.items() if engine not in known):
                runner.journal.note(missing={k: text.replace(str(path), name) for k, text in gap.items()})
            here = [engine for engine in self.size_engines if engine not in gaps]
            rows = len(here) * (len(self.size_contexts) + len(self.size_lengths))  # of the last block
            asked = dict(name=name, engines=here, first=number * self.size_blocks)
            how = dict(model=str(path), interpreter=interpreter)
            last = asked["first"] + self.size_blocks - 1
            runner.child(Point(name, last, self.answering, rows, asked, **how))
        return runner.rows, dict(missing=runner.missing)

    def answering(self, lab: Lab, name: str, engines: Sequence[str], first: int) -> None:
        """All engines on one file, warm at every shape, then in turn from block `first` on. A row's model is the file's
        name: where it lies is this machine's."""
        loaded = checkpoint.load(lab.model, checkpoint.own_blocks(checkpoint.find(lab.model)))
        tasks = [passages.filling(loaded, n, self.size_tokens, self.seed) for n in self.size_contexts]
        tasks += [passages.filling(loaded, n + PROMPT, PROMPT, self.seed) for n in self.size_lengths]
        subjects = built(lab, loaded, engines, name)
        for engine in subjects:
            for work in tasks:
                protocol.warm_up(engine, work, lab.announce, enough=1)
        judges = judges_of(loaded, tasks)
        probe = roofline.Probe(Path(lab.model).stat().st_size)
        for block in range(first, first + self.size_blocks):
            bandwidth = probe.bandwidth()
            for order, (engine, work) in enumerate(shuffled(subjects, tasks, self.seed, block)):
                lab.announce()
                where = dict(order=order, phase="warm", block=block)
                made, tokens = lab.trial(engine, work, block % len(work.prompts), **where)
                lab.keep(judged(made, tokens, work, judges[work]), model=name, bandwidth_gbps=bandwidth)


def file_of(model: str, kind: str, tell: Callable = lambda *_: None) -> Path:
    """The GGUF file of a model in a type, made where it is not in the user's cache. Raises UserError."""
    from llama_jax.checkpoint import writer
    from llama_lab.peers import UnavailableError, llamacpp, requantised

    if model.startswith("random:"):
        path = paths.cache("sizes", f"{model.removeprefix('random:').replace(':', '-')}-{kind}.gguf")
        if not path.is_file():
            tell(f"writing {writer.size_of(model, kind) / 1e6:,.0f} MB of random weights to {path}", 0, 1)
            writer.write(model, kind, path)
        return path
    path = checkpoint.gguf_file(model)
    if path is None:
        raise UserError(f"{model}: neither random:PRESET nor a GGUF file.")
    if llamacpp.kinds(path).most_common(1)[0][0] == kind:
        return path
    if kind not in requantised.TYPES:
        raise UserError(f"{model} is available in its own type and {', '.join(requantised.TYPES)}, not in {kind}.")
    try:
        return requantised.obtain(path, checkpoint.gguf.weights_hash(path), kind, len(allowed_cores()))
    except UnavailableError as error:
        raise UserError(f"{error.reason} {error.remedy}") from None


# What the children run ------------------------------------------------------------------------------------------------


def built(lab: Lab, loaded: checkpoint.Checkpoint, engines: Sequence[str], name: str) -> list[Subject]:
    """The engines as subjects; one that cannot be built is reported as missing, by the file's name."""

    def say(kind: str, value: dict) -> None:
        if kind == "note":
            value = dict(missing={k: text.replace(lab.model, name) for k, text in value["missing"].items()})
        lab.say(kind, value)

    return available.built(replace(lab, say=say), loaded, engines)


def shuffled(subjects: Sequence, tasks: Sequence, seed: int, block: int) -> Iterator[tuple]:
    """(subject, task) in random order: all subjects at one task, one behind the other, then all at the next."""
    order = random.Random(f"{seed} {block}")
    for work in order.sample(tasks, len(tasks)):
        for engine in order.sample(subjects, len(subjects)):
            yield engine, work


def judges_of(loaded: checkpoint.Checkpoint, tasks: Sequence[Workload]) -> dict[Workload, Callable]:
    """Each task's judge by the reference's tokens. They share their engines: one program per shape, not one a task."""
    references = {work: protocol.Reference(loaded, work) for work in tasks}
    engines: dict = {}
    for reference in references.values():
        reference.engines = engines
    return {work: reference.judge for work, reference in references.items()}


def judged(made: Trial, tokens: np.ndarray, work: Workload, judge: Callable) -> Trial:
    """Void where it has not made the tokens that were asked for, as a rate of fewer would be another's; or, in an
    arithmetic of ours, other tokens than the reference's."""
    if made.valid and made.new_tokens != work.new_tokens:
        reason = f"failed: {made.new_tokens} of {work.new_tokens} tokens came"
        made = made.model_copy(update=dict(valid=False, reason=reason))
    return made if gate.approximate(made.quantisation) else judge(made, tokens)


# What the rows say ----------------------------------------------------------------------------------------------------


def shape_of(trial: Trial) -> tuple[str, int]:
    """(DECODE, context) or (PREFILL, tokens of the prompt)."""
    if trial.new_tokens > PROMPT:
        return DECODE, trial.prompt_tokens + trial.new_tokens
    return PREFILL, trial.prompt_tokens


def rate_of(trial: Trial) -> float:
    """Tokens/s: of the answer, or of the prompt."""
    return trial.tg if shape_of(trial)[0] == DECODE else trial.pp


def table(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """One entry per file, shape and subject, by bytes per token: {file, what (DECODE or PREFILL), tokens, name,
    backend, bytes: that a token reads, rate: Summary of tokens/s (of a prompt: its tokens until the next one is there),
    mbu: median share of the limit, nan of a prompt's, best: the peer with the highest median rate there, ratio: over
    that peer, None without one, void: answers that do not count}."""
    rows = [t for t in whole(trials) if t.valid or t.new_tokens]  # of one that failed nobody knows at what
    by = dict(file="run", what=lambda t: shape_of(t)[0], tokens=lambda t: shape_of(t)[1], name="subject")
    frame = summary.tally(rows, by, dict(rate=rate_of), seed=seed)
    entries = [e for e in frame.to_dict("records") if e["n"]]
    for e in entries:
        shares = [t.mbu for t in e["rows"]] if e["what"] == DECODE else [float("nan")]
        e |= dict(backend=e["first"].backend, bytes=e["first"].bytes_per_token, mbu=float(np.median(shares)))
        e["by_block"] = {summary.in_block(t): rate_of(t) for t in e["rows"]}
    beside = summary.grouped((e for e in entries if e["backend"] != standings.JAX), itemgetter(*SHAPE))
    for e in entries:
        peers = beside.get(itemgetter(*SHAPE)(e), ())
        best = max(peers, key=lambda peer: peer["rate"].median, default=None)
        e["best"], e["ratio"] = best and best["name"], best and summary.over(e["by_block"], best["by_block"], seed)
    return sorted(entries, key=lambda e: (e["what"], e["tokens"], e["bytes"], e["file"]))


def ours(entries: Sequence[dict]) -> list[dict]:
    """The entries of placements that have a peer beside them."""
    return [e for e in entries if e["backend"] == standings.JAX and e["ratio"] is not None and e["ratio"].n]


def fastest(entries: Sequence[dict]) -> list[dict]:
    """Of `ours` the fastest placement of each kind of request, file and number of tokens, in that order."""
    best: dict[tuple, dict] = {}
    for e in ours(entries):
        at = e["what"], e["file"], e["tokens"]
        best[at] = max(e, best.get(at, e), key=lambda e: e["rate"].median)
    return [best[at] for at in sorted(best)]


COLUMNS = frames.Columns(
    {
        **frames.same("file", "what", "tokens"),
        "subject": "name",
        "MB a token": frames.scaled("bytes", 1e6),
        "tokens/s": "rate.median",
        "share of the limit": "mbu",
        "best peer": "best",
        **frames.interval("over it", "ratio", "value"),
        "n": "rate.n",
        "void": "void",
    },
    digits={"MB a token": 1, "tokens/s": 1, "share of the limit": 3, "over it": 2, "low": 2, "high": 2},
)
