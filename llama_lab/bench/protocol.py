"""The protocol: warm up until the guard is silent, then paired, interleaved blocks in seeded random order, each trial
gated."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import jax
import numpy as np

from llama_jax import generate, kvc
from llama_jax.checkpoint import Checkpoint
from llama_jax.config import ModelConfig
from llama_jax.model import Model
from llama_jax.placement import Placement
from llama_jax.plumbing import files, paths, settings
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, gate, memory, roofline
from llama_lab.bench.arithmetic import Arithmetic
from llama_lab.bench.gate import Reference
from llama_lab.bench.guard import Guard, Region, TorchGuard
from llama_lab.bench.workload import Subject, Workload, encoder, shuffled

if TYPE_CHECKING:
    from llama_lab.bench.record import Trial

SILENT_RUNS = 3  # warm-up ends after this many runs in a row in which nothing compiled
MAX_WARMUP = 8
SHORT = 8  # tokens of a warm-up run after the first silent one, which has called all that an answer calls
_held: list[BinaryIO] = []  # this process's measurement lock, while it holds it


def subject(checkpoint: Checkpoint, placement: Placement, name: str | None = None) -> Subject:
    """A placement of a checkpoint as a subject."""
    engine = generate.build(checkpoint, placement)
    dtype = engine.model.embeddings.weight.dtype
    kind = kvc.DTYPES.get(kvc.FUSED if placement.kernels == "fused" else placement.kv, dtype)
    read, held = weight_bytes(engine.model, checkpoint.config)
    identity = dict(
        model=checkpoint.name,
        weights_hash=checkpoint.weights_hash,
        dtype=dtype.name,
        weight_bytes=read,
        held_bytes=held,
        quantisation=str(Arithmetic.of_placement(placement, generate.form(checkpoint, placement))),
        config=checkpoint.config,
        cache=placement.cache,
        cache_bytes=kvc.itemsize(kind, checkpoint.config.head_dim),
    )
    return Subject(name or placement.name, "jax", placement.name, answering(engine), encoder(checkpoint), identity)


def answering(engine: generate.Engine) -> Callable:
    """(prompt ids, workload) → an engine's answer, with the prompt in every row of the batch."""

    def run(ids: Sequence[int], work: Workload):
        how = dict(length=work.length, slots=work.slots)
        return generate.stream(engine, [ids] * work.batch, work.new_tokens, work.sampler, work.seed, **how)

    return run


def weight_bytes(params: Model, config: ModelConfig) -> tuple[float, int]:
    """(bytes of a weight that a token reads, on average; bytes of all weights), from the arrays themselves."""
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    looked_up = [params.embeddings.positions] + ([] if params.head.weight is None else [params.embeddings.weight])
    return (held - sum(leaf.nbytes for leaf in jax.tree.leaves(looked_up))) / config.weights_read_per_token, held


# Fields of an identity that sizes are computed from; a Trial has none of them.
SUBJECT_ONLY = ("config", "weight_bytes", "held_bytes", "cache", "cache_bytes")


def trial(
    subject: Subject, workload: Workload, prompt: int, /, explain: bool = False, **identity
) -> tuple[Trial, np.ndarray]:
    """One timed request: (record, tokens [n B]), as `timed`."""
    from llama_lab.bench.record import Trial  # here: a machine that only measures may lack what makes records

    fields, tokens = timed(subject, workload, prompt, explain)
    return Trial(**{**fields, **identity}), tokens


def timed(
    subject: Subject, workload: Workload, prompt: int, explain: bool = False, most: int | None = None
) -> tuple[dict, np.ndarray]:
    """One timed request: (the fields of a Trial that it fills, tokens [n B]). Void when anything compiled inside, or
    the subject raised.

    explain: keep JAX's explanation of each compilation in `cause`. most: stop the answer after this many tokens. Raises
    UserError if the subject does.
    """
    before, failure, ended, workload = memory.live_buffers(), "", False, subject.asked(workload)
    ids, blocks, arrivals, tokenize_ns = (), [], [], 0
    region = subject.guard(explain) if explain and subject.guard is Guard else subject.guard()
    with region as guard:
        start = time.perf_counter_ns()
        try:
            ids = subject.encode(workload.prompts[prompt])
            tokenize_ns = time.perf_counter_ns() - start
            for block in subject.run(ids, workload):
                arrivals.append(time.perf_counter_ns() - start)
                blocks.append(block)
                if most and sum(map(len, blocks)) >= most:
                    break
            ended = bool(blocks)
        except UserError:
            raise
        except Exception as error:  # a subject's own failure is a result: recorded, and the run goes on
            if isinstance(region, TorchGuard) and region.owns(error):
                raise
            failure = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    tokens = np.concatenate(blocks) if ended else np.zeros((0, workload.batch), np.int32)
    times = [at for at, block in zip(arrivals, blocks, strict=True) for _ in range(len(block))] if ended else []
    known = {k: v for k, v in subject.identity.items() if k not in SUBJECT_ONLY}
    fields = dict(
        **{**known, **sizes(subject, workload, len(ids), len(tokens)), **subject.reported()},
        valid=ended and not guard.fired,
        reason=failure or guard.reason or ("" if ended else "failed: no token came"),
        cause=guard.cause,
        seed=workload.seed,
        sampling=str(workload.sampler),
        subject=subject.name,
        backend=subject.backend,
        placement=subject.placement,
        batch=workload.batch,
        prompt=prompt,
        prompt_tokens=len(ids),
        new_tokens=len(tokens),
        cache_slots=workload.slots,
        token_times_ns=times,
        tokenize_ns=tokenize_ns,
        **compiling(guard),
        cache_hits=guard.count("hit"),
        cache_misses=guard.count("miss"),
        tokens_sha256=gate.tokens_hash(tokens),
        live_buffers_before=before,
        live_buffers_after=memory.live_buffers(),
    )
    return fields, tokens


def compiling(guard: Region) -> dict:
    """The fields of a row that say what was compiled in a region."""
    return dict(
        trace_ns=round(guard.seconds("trace") * 1e9),
        lower_ns=round(guard.seconds("lower") * 1e9),
        backend_ns=round(guard.backend_seconds * 1e9),
        lowered=guard.count("lower"),
        compiled=guard.compilations,
    )


def sizes(subject: Subject, workload: Workload, prompt_tokens: int, new_tokens: int) -> dict:
    """The Trial fields that follow from the configuration: bytes and operations per token, sizes of weights and cache;
    none for a subject of unknown model."""
    if "config" not in subject.identity:
        return {}
    config, width = subject.identity["config"], subject.identity["weight_bytes"]
    kept = subject.identity.get("cache_bytes", width)
    context = prompt_tokens + new_tokens / 2
    held = memory.predicted(config, width, kept, workload.batch, workload.slots, subject.identity.get("cache", "fixed"))
    return dict(
        bytes_per_token=roofline.bytes_per_token(config, context, width, kept, workload.batch),
        flops_per_token=roofline.flops_per_token(config, context),
        **held | ({"weights_bytes": subject.identity["held_bytes"]} if "held_bytes" in subject.identity else {}),
    )


def warm_up(
    subject: Subject, workload: Workload, tell: Callable[[], None] = lambda: None, enough: int = SILENT_RUNS
) -> bool:
    """Run at the exact shapes until nothing compiles `enough` times in a row; False when that never happens.

    A placement's runs after the first silent one end after SHORT tokens: they call every program of the answer again.
    A guard that forbids compiling instead of counting it (`TorchGuard`) is left off for a run first. tell() before each
    run.
    """
    silent = 0
    for i in range(MAX_WARMUP):
        tell()
        prompt = i % len(workload.prompts)
        if subject.guard is not Guard and not silent:
            with contextlib.suppress(RuntimeError):  # the trial that follows meets it again, and records it
                deque(subject.run(subject.encode(workload.prompts[prompt]), subject.asked(workload)), maxlen=0)
        most = SHORT if silent and subject.backend == "jax" else None
        fields, _ = timed(subject, workload, prompt, most=most)
        silent = silent + 1 if fields["valid"] else 0
        if silent == enough:
            return True
    return False


@contextlib.contextmanager
def alone() -> Iterator[BinaryIO]:
    """Hold the measurement lock, an open file; a process that already holds it keeps it. Raises UserError while another
    of this user's processes measures on this machine, and under an option of JAX that would change the meaning of times
    (`settings.MEASURING`). `environment.Watch` observes other users' work like all other load."""
    if _held:
        yield _held[0]
        return
    settings.check(measuring=True)
    path = paths.of_this_machine() / "measuring.lock"
    with files.taken(path, "Another measurement is running (process {holder}); wait for it to end.") as file:
        _held.append(file)
        try:
            yield file
        finally:
            _held.clear()


@dataclass(frozen=True)
class Caller:
    """The caller of a measurement, and what it wants to be told.

    identity: fields of every record; run, phase and process have defaults. keep(trial): called after each trial.
    starting(what=, subject=, block=, order=): called before each trial and each run of a warm-up. explain: keep JAX's
    explanation of each compilation. locked: the caller holds the measurement lock already.
    """

    identity: dict = field(default_factory=dict)
    keep: Callable[[Trial], None] = lambda trial: None
    starting: Callable[..., None] = lambda **where: None
    explain: bool = False
    locked: bool = False


def measure(
    subjects: Sequence[Subject],
    workload: Workload,
    blocks: int | Sequence[int],
    reference: Reference | None,
    baseline: str,
    caller: Caller | None = None,
) -> list[Trial]:
    """All subjects in this process, interleaved: in each block every one once, the baseline twice, in seeded random
    order.

    blocks: how many, or their numbers. Block i asks prompt i (modulo the pool) in an order that follows from the seed
    and i only, so that a run may be split and resumed. The bandwidth is probed before each block and recorded in its
    trials. Void and wrong trials stay, with their reason. Raises UserError for an unknown baseline, and while another
    measurement runs.
    """
    if baseline not in [s.name for s in subjects]:
        raise UserError(f"The baseline {baseline!r} is not among the subjects ({', '.join(s.name for s in subjects)}).")
    caller = caller or Caller()
    twin = next(replace(s, name=s.name + AGAIN) for s in subjects if s.name == baseline)
    numbers = range(blocks) if isinstance(blocks, int) else blocks
    identity = {"run": f"{time.time_ns():x}", "phase": "warm", "process": 0, **caller.identity}
    everyone, trials = [*subjects, twin], []
    with contextlib.nullcontext() if caller.locked else alone():
        probe = roofline.Probe()
        for order, subject in enumerate(subjects):
            where = dict(what=f"warm-up {subject.name}", subject=subject.name, block=numbers[0], order=order)
            # where this never falls silent, the trials will be void
            warm_up(subject, workload, partial(caller.starting, **where))
        for block in numbers:
            bandwidth = probe.bandwidth()
            prompt = block % len(workload.prompts)
            for order, subject in enumerate(shuffled(everyone, workload.seed, block)):
                where = dict(block=block, order=order)
                caller.starting(what=f"block {block + 1}: {subject.name}", subject=subject.name, **where)
                record, tokens = trial(subject, workload, prompt, caller.explain, **where, **identity)
                if reference:
                    record = reference.judge(record, tokens, subject.sampler)
                trials.append(record.model_copy(update=dict(bandwidth_gbps=bandwidth)))
                caller.keep(trials[-1])
    return trials


def program_sizes(program) -> dict:
    """The Trial fields that say how large the compiled decode program is; none where it was not found."""
    kinds = ("argument_bytes", "output_bytes", "temp_bytes", "alias_bytes")
    return {kind: getattr(program, kind) for kind in kinds} if program else {}
