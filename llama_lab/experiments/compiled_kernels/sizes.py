"""How far ahead by size: every engine on the same files, from a hundred megabytes a token to nearly two gigabytes.

A file is a model in a type of blocks. Of `random:PRESET` it is written here (`checkpoint/writer.py`: real shapes,
random weights), of a GGUF file it is that file, or what llama.cpp's quantiser makes of it; both lie in the user's
cache. In one process a file, all engines answer in turn in every block: at some contexts, several tokens each, and
prompts of several lengths, one token each. The bandwidth is probed in every block. Placements make the reference's
tokens of the file's blocks, or their time does not count; of other programs, whose arithmetic is their own, tokens are
counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from llama_jax import checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import LAYOUTS
from llama_lab.bench import available, gate, passages, phases, protocol, roofline
from llama_lab.bench.job import Job, check, watched, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Subject, Workload

PROMPT = 1  # tokens of an answer where the prompt is what is timed


def measure(
    job: Job,
    engines: Sequence[str],
    files: Sequence[str],
    contexts: Sequence[int],
    lengths: Sequence[int],
    new_tokens: int,
    blocks: int,
    seed: int = 0,
) -> list[Trial]:
    """Every engine on every file, `blocks` times at every context and every prompt length; `run` of a row is the file's
    name.

    files: `MODEL/TYPE` each, such as `random:llama-3.2-1b/q4_0`, `smollm2-135m-instruct/q4_1`. Engines that cannot run
    are said to be missing in the journal's notes. Raises UserError before anything is measured: an unknown model, type
    or engine, a context or a prompt that has no room.
    """
    check(blocks=blocks)
    check_plan(engines, files, contexts, lengths, new_tokens)
    for i, name in enumerate(files):
        job.progress(f"engines on {name}", i, len(files))
        path = file_of(*name.rsplit("/", 1), job.progress)
        here = running(job, engines, path, name)
        asked = dict(contexts=contexts, lengths=lengths, new_tokens=new_tokens, blocks=blocks, seed=seed)
        expected = len(here) * (len(contexts) + len(lengths))  # of the last block
        job.child(name, blocks - 1, f"{__name__}:answers", expected, str(path), name=name, engines=here, **asked)
    return whole(job.journal.trials)


def record(
    journal: Journal,
    *,
    size_engines: Sequence[str],
    size_files: Sequence[str],
    size_contexts: Sequence[int],
    size_lengths: Sequence[int],
    size_tokens: int,
    size_blocks: int,
    seed: int,
) -> tuple[list[Trial], dict]:
    """All rows of `measure`, and for the meta file what could not run."""
    shapes = size_contexts, size_lengths, size_tokens, size_blocks
    rows = measure(Job(checkpoint.DEFAULT, None, journal), size_engines, size_files, *shapes, seed)
    return rows, dict(missing=phases.missing(journal))


def check_plan(engines: Sequence[str], files: Sequence[str], contexts, lengths, new_tokens: int) -> None:
    """Raises UserError for a file, an engine or a size that does not exist."""
    from llama_lab import peers

    for name in engines:
        if name not in peers.PEERS:
            parse(name)
    for name in files:
        model, _, kind = name.rpartition("/")
        if kind not in LAYOUTS:
            raise UserError(f"{name!r}: write MODEL/TYPE, the type one of {', '.join(LAYOUTS)}.")
        passages.check_contexts(model, contexts, new_tokens)
        passages.check_contexts(model, [length + 2 for length in lengths], 2)


def running(job: Job, engines: Sequence[str], path: Path, name: str) -> list[str]:
    """Those that can run on a file; of the others the journal says why not, by the file's name."""
    known = {gap["name"] for gap in phases.missing(job.journal)}
    gaps = available.gaps(engines, str(path))
    for gap in gaps:
        if gap["name"] not in known:
            job.journal.note(missing={k: said.replace(str(path), name) for k, said in gap.items()})
    return [engine for engine in engines if engine not in {gap["name"] for gap in gaps}]


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
        raise UserError(f"{model} can be had in its own type and {', '.join(requantised.TYPES)}, not in {kind}.")
    try:
        return requantised.obtain(path, checkpoint.gguf.weights_hash(path), kind, len(allowed_cores()))
    except UnavailableError as error:
        raise UserError(f"{error.reason} {error.remedy}") from None


# What the children run ------------------------------------------------------------------------------------------------


def answers(
    say: Callable,
    job: dict,
    identity: dict,
    name: str,
    engines: Sequence[str],
    contexts: Sequence[int],
    lengths: Sequence[int],
    new_tokens: int,
    blocks: int,
    seed: int,
) -> dict:
    """All engines on one file, warm at every shape, then in turn. A row's model is the file's name: where it lies is
    this machine's."""
    with watched(say):
        loaded = checkpoint.load(job["model"], "gguf")
        tasks = [passages.filling(loaded, n, new_tokens, seed) for n in contexts]
        tasks += [passages.filling(loaded, n + PROMPT, PROMPT, seed) for n in lengths]
        subjects = built(say, loaded, engines, job["model"], name)
        for who in subjects:
            for work in tasks:
                protocol.warm_up(who, work, lambda: say("starting", {}), enough=1)
        judges = judges_of(loaded, tasks)
        probe, more = roofline.Probe(Path(job["model"]).stat().st_size), dict(model=name)
        for block in range(blocks):
            more["bandwidth_gbps"] = probe.bandwidth()
            for order, (who, work) in enumerate(shuffled(subjects, tasks, seed, block)):
                say("starting", {})
                about = dict(order=order, phase="warm", **{**identity, "block": block})
                made, tokens = protocol.trial(who, work, block % len(work.prompts), **about)
                say("trial", judged(made, tokens, work, judges[work]).model_copy(update=more).model_dump())
    return {}


def built(say: Callable, loaded: checkpoint.Checkpoint, engines: Sequence[str], path: str, name: str) -> list[Subject]:
    """The engines as subjects; one that cannot be built is said to be missing, by the file's name."""

    def told(kind: str, value: dict) -> None:
        if kind == "note":
            value = dict(missing={k: said.replace(path, name) for k, said in value["missing"].items()})
        say(kind, value)

    return available.built(told, loaded, engines)


def shuffled(subjects: Sequence, tasks: Sequence, seed: int, block: int) -> Iterator[tuple]:
    """(subject, task) in random order: all subjects at one task, one behind the other, then all at the next."""
    order = random.Random(f"{seed} {block}")
    for work in order.sample(tasks, len(tasks)):
        for who in order.sample(subjects, len(subjects)):
            yield who, work


def judges_of(loaded: checkpoint.Checkpoint, tasks: Sequence[Workload]) -> dict[Workload, Callable]:
    """Each task's judge by the reference's tokens. They share their engines: one program a shape, not one a task."""
    references = {work: protocol.Reference(loaded, work) for work in tasks}
    engines: dict = {}
    for reference in references.values():
        reference.engines = engines
    return {work: reference.judge for work, reference in references.items()}


def judged(made: Trial, tokens: np.ndarray, work: Workload, judge: Callable) -> Trial:
    """Void where it has not made the tokens that were asked for, or, in an arithmetic of ours, other than the
    reference's."""
    made = counted(made, work)
    return made if gate.approximate(made.quantisation) else judge(made, tokens)


def counted(made: Trial, work: Workload) -> Trial:
    """Void where it has not made the tokens that were asked for: a rate of fewer would be another's."""
    if not made.valid or made.new_tokens == work.new_tokens:
        return made
    return made.model_copy(
        update=dict(valid=False, reason=f"failed: {made.new_tokens} of {work.new_tokens} tokens came")
    )
