"""The protocol: warm up until the guard is silent, then paired, interleaved blocks in seeded random order, each trial gated.

A subject is a name and a function from a prompt to a stream of token blocks; placements and peers look the same here.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from llama_jax import generate
from llama_jax.bench import gate, roofline
from llama_jax.bench.guard import Guard
from llama_jax.bench.record import Trial, tokens_hash
from llama_jax.checkpoint import Checkpoint
from llama_jax.errors import UserError
from llama_jax.placement import LADDER, Placement

SILENT_RUNS = 3  # warm-up ends after this many runs in a row in which nothing compiled
MAX_WARMUP = 8
AGAIN = " (again)"  # suffix of the baseline's second appearance


@dataclass(frozen=True)
class Workload:
    """What every subject is asked: prompts (texts, or token ids where there is no tokenizer) × new tokens."""

    prompts: tuple[str | tuple[int, ...], ...]
    new_tokens: int
    length: int  # padded prompt length, the same for all prompts so that shapes are exact
    batch: int = 1
    seed: int = 0

    @property
    def slots(self) -> int:
        return generate.bucket(self.length + self.new_tokens)


@dataclass(frozen=True)
class Subject:
    """run(prompt, workload) yields blocks of token ids [n B]; `encode` turns a prompt into ids."""

    name: str
    backend: str
    placement: str
    run: Callable[[Sequence[int], Workload], Iterator[np.ndarray]]
    encode: Callable[[str | tuple[int, ...]], list[int]]
    identity: dict = field(default_factory=dict)  # the Trial fields that are the subject's own


def encoder(checkpoint: Checkpoint) -> Callable:
    """Prompt → ids: texts through the tokenizer (the chat template has been applied), ids as they are."""
    return lambda prompt: checkpoint.tokenizer.encode(prompt, special=False) if isinstance(prompt, str) else list(prompt)


def subject(checkpoint: Checkpoint, placement: Placement, name: str | None = None) -> Subject:
    """A placement of a checkpoint as a subject."""
    engine = generate.build(checkpoint, placement)

    def run(ids, workload: Workload):
        return generate.stream(engine, [ids] * workload.batch, workload.new_tokens, length=workload.length, slots=workload.slots)

    dtype = engine.params.embedding.weight.dtype
    identity = dict(model=checkpoint.name, weights_hash=checkpoint.weights_hash, dtype=dtype.name, weight_bytes=dtype.itemsize)
    return Subject(name or placement.name, "jax", placement.name, run, encoder(checkpoint), {**identity, "config": checkpoint.config})


def trial(who: Subject, workload: Workload, prompt: int, **identity) -> tuple[Trial, np.ndarray]:
    """One timed request: (record, tokens [n B]). The record is void when anything compiled inside."""
    with Guard() as guard:
        start = time.perf_counter_ns()
        ids = who.encode(workload.prompts[prompt])
        tokenize_ns = time.perf_counter_ns() - start
        blocks, arrivals = [], []
        for block in who.run(ids, workload):
            arrivals.append(time.perf_counter_ns() - start)
            blocks.append(block)
    times = [at for at, block in zip(arrivals, blocks, strict=True) for _ in range(len(block))]
    tokens = np.concatenate(blocks)
    config, width = who.identity["config"], who.identity["weight_bytes"]
    context = len(ids) + len(tokens) / 2
    known = {k: v for k, v in who.identity.items() if k not in ("config", "weight_bytes")}
    record = Trial(
        **{**known, **identity}, valid=not guard.fired, reason=guard.reason, process=os.getpid(), seed=workload.seed,
        subject=who.name, backend=who.backend, placement=who.placement, batch=workload.batch, prompt=prompt,
        prompt_tokens=len(ids), new_tokens=len(tokens), cache_slots=workload.slots, token_times_ns=times, tokenize_ns=tokenize_ns,
        trace_ns=round(guard.seconds("trace") * 1e9), lower_ns=round(guard.seconds("lower") * 1e9),
        backend_ns=round(guard.seconds("backend") * 1e9), lowered=guard.count("lower"), compiled=guard.compilations,
        cache_hits=guard.count("hit"),
        bytes_per_token=roofline.bytes_per_token(config, context, width, width, workload.batch),
        flops_per_token=roofline.flops_per_token(config, context), tokens_sha256=tokens_hash(tokens),
    )  # fmt: skip
    return record, tokens


def warm_up(who: Subject, workload: Workload) -> bool:
    """Run at the exact shapes until nothing compiles three times in a row; False when that never happens."""
    silent = 0
    for i in range(MAX_WARMUP):
        record, _ = trial(who, workload, i % len(workload.prompts), run="", block=0, order=0, phase="warm-up")
        silent = silent + 1 if record.valid else 0
        if silent == SILENT_RUNS:
            return True
    return False


class Reference:
    """The tokens every subject must produce: greedy, from the `step` placement on weights of the subject's dtype.

    Its own logits say whether a difference stands at a near-tie.
    """

    def __init__(self, checkpoint: Checkpoint, workload: Workload):
        self.checkpoint, self.workload, self.encode = checkpoint, workload, encoder(checkpoint)
        self.engines: dict[str, generate.Engine] = {}
        self.known: dict[tuple[int, str], np.ndarray] = {}

    def engine(self, dtype: str) -> generate.Engine:
        if dtype not in self.engines:
            weights = {"float32": "f32", "bfloat16": "bf16"}[dtype]
            self.engines[dtype] = generate.build(self.checkpoint, replace(LADDER["step"], weights=weights))
        return self.engines[dtype]

    def tokens(self, prompt: int, dtype: str = "float32") -> np.ndarray:
        if (prompt, dtype) not in self.known:
            ids, w = self.encode(self.workload.prompts[prompt]), self.workload
            blocks = generate.stream(self.engine(dtype), [ids], w.new_tokens, length=w.length, slots=w.slots)
            self.known[prompt, dtype] = np.concatenate(list(blocks))[:, 0]
        return self.known[prompt, dtype]

    def margin(self, prompt: int, k: int, dtype: str = "float32") -> float:
        ids = self.encode(self.workload.prompts[prompt]) + self.tokens(prompt, dtype)[:k].tolist()
        best = np.sort(np.asarray(generate.logits(self.engine(dtype), ids)[-1]))[-2:]
        return float(best[1] - best[0])

    def judge(self, record: Trial, tokens: np.ndarray) -> Trial:
        """The record, void when any row's tokens are not the reference's; a compilation's reason stays first."""
        expected = self.tokens(record.prompt, record.dtype)
        verdicts = [gate.compare(row, expected, lambda k: self.margin(record.prompt, k, record.dtype)) for row in tokens.T]
        reasons = dict.fromkeys(r for r in (record.reason, *(v.reason for v in verdicts)) if r)
        return record.model_copy(update=dict(valid=record.valid and all(v.passed for v in verdicts), reason="; ".join(reasons)))


@contextlib.contextmanager
def alone():
    """Hold the machine's measurement lock. Raises UserError when another measurement runs: both would be wrong."""
    import fcntl

    path = Path(tempfile.gettempdir()) / f"llama-jax-measuring-{os.getuid()}.lock"
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UserError(f"Another measurement is running (process {file.read().strip() or 'unknown'}); wait for it to end.") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def measure(
    subjects: Sequence[Subject],
    workload: Workload,
    blocks: int,
    reference: Reference | None,
    baseline: str,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Trial]:
    """All subjects, interleaved: in each block every one once, the baseline twice, in seeded random order.

    Block i asks prompt i (modulo the pool). The bandwidth is probed before and after; each trial carries their mean.
    Void and wrong trials stay, with their reason.
    """
    if baseline not in [s.name for s in subjects]:
        raise UserError(f"The baseline {baseline!r} is not among the subjects ({', '.join(s.name for s in subjects)}).")
    twin = next(replace(s, name=s.name + AGAIN) for s in subjects if s.name == baseline)
    run, rng, trials = uuid.uuid4().hex[:12], random.Random(workload.seed), []
    with alone():
        before = roofline.bandwidth()
        for i, who in enumerate(subjects):
            progress(f"warm-up {who.name}", i, len(subjects))
            if not warm_up(who, workload):  # its trials will be void, each with its reason
                progress(f"{who.name} did not stop compiling", i, len(subjects))
        everyone = [*subjects, twin]
        for block in range(blocks):
            prompt = block % len(workload.prompts)
            for order, who in enumerate(rng.sample(everyone, len(everyone))):
                progress(f"block {block + 1}/{blocks} {who.name}", block * len(everyone) + order, blocks * len(everyone))
                record, tokens = trial(who, workload, prompt, run=run, block=block, order=order, phase="warm")
                trials.append(reference.judge(record, tokens) if reference else record)
        bandwidth = (before + roofline.bandwidth()) / 2
    return [t.model_copy(update=dict(bandwidth_gbps=bandwidth)) for t in trials]
