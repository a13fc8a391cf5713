"""What the children of `phases` run: a first request, or blocks of warm ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import Placement
from llama_jax.sampling import Sampler
from llama_lab.bench import SAMPLED, environment, memory, protocol, roofline
from llama_lab.bench.cold import as_first
from llama_lab.bench.job import opened, watched
from llama_lab.bench.workload import Subject


def build(say: Callable, loaded: Checkpoint, job: dict, placements: Sequence[Placement], block: int) -> list[Subject]:
    """The subjects of a job; where it names a sampler, its placements under that too. A peer that cannot be built is
    said to be missing, with its reason."""
    from llama_lab import peers

    built = [protocol.subject(loaded, p) for p in placements]
    for name in job["peers"]:
        say("starting", dict(what=f"building {name}", subject=name, block=block, order=0))
        try:
            built.append(peers.subject(loaded, name))
        except peers.UnavailableError as error:
            say("note", dict(missing=dict(name=name, reason=error.reason, remedy=error.remedy)))
    if settings := job.get("sampled"):
        built += [
            replace(who, name=who.name + SAMPLED, sampler=Sampler(**settings)) for who in built[: len(placements)]
        ]
    return built


def first_request(say: Callable, job: dict, prompt: int, identity: dict) -> dict:
    """One request of a new process; then, outside the timed region, the program's own sizes."""
    with watched(say):
        loaded, placements, workload, load_ns = opened(job)
        began = time.perf_counter_ns()
        built = build(say, loaded, job, placements, identity["block"])
        if not built:
            return {}
        (who,), load_ns = built, load_ns + time.perf_counter_ns() - began
        say("starting", dict(what=f"first request of {who.name}"))
        record, _ = protocol.trial(replace(who, guard=who.counter), workload, prompt, **identity)
        cached = identity["phase"] == "cached"
        compiled = f"not cached: {record.compiled} programs compiled" if cached and record.compiled else ""
        program = memory.decode_program(memory.programs(), {name for p in placements for name in p.outermost})
        row = as_first(
            record,
            compiled,
            load_ns=load_ns,
            peak_rss_bytes=environment.peak_rss(),
            device_peak_bytes=record.device_peak_bytes or memory.device_peak(),
            **protocol.program_sizes(program),
        )
        say("trial", row.model_dump())
    return {}


def interleaved_blocks(
    say: Callable, job: dict, blocks: list[int], baseline: str, identity: dict, explain: bool
) -> dict:
    """Warm trials of all subjects, block by block."""
    with watched(say) as more:
        loaded, placements, workload, _ = opened(job)
        subjects = build(say, loaded, job, placements, blocks[0])
        caller = protocol.Caller(
            identity,
            keep=lambda trial: say("trial", trial.model_dump()),
            starting=lambda **where: say("starting", where),
            explain=explain,
            locked=True,
        )
        protocol.measure(subjects, workload, blocks, protocol.Reference(loaded, workload), baseline, caller)
        more["gflops"] = roofline.flops()
    return {}
