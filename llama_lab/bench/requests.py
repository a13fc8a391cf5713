"""What the children of `phases` run: a first request, or blocks of warm ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import Placement
from llama_jax.sampling import Sampler
from llama_lab.bench import SAMPLED, available, environment, memory, protocol, roofline
from llama_lab.bench.cold import as_first
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject


@dataclass(frozen=True)
class Subjects:
    """Who is measured in a process, as JSON has left it. placements: fields of each. sampled: fields of a sampler under
    which the placements are measured too."""

    placements: Sequence[dict]
    peers: Sequence[str] = ()
    sampled: dict | None = None

    def made(self) -> list[Placement]:
        return [Placement(**fields) for fields in self.placements]


def loaded_for(lab: Lab, asked: Subjects) -> Checkpoint:
    return lab.load(available.form(lab.model, [] if asked.peers else asked.made()))


def build(lab: Lab, loaded: Checkpoint, asked: Subjects, block: int) -> list[Subject]:
    """The subjects. A peer that cannot be built is said to be missing, with its reason."""
    placements = [protocol.subject(loaded, placement) for placement in asked.made()]
    built = placements + [who for name in asked.peers for who in lab.peer(loaded, name, block)]
    if asked.sampled:
        sampler = Sampler(**asked.sampled)
        built += [replace(who, name=who.name + SAMPLED, sampler=sampler) for who in placements]
    return built


def first_request(lab: Lab, subjects: dict, prompt: int) -> None:
    """One request of a new process; then, outside the timed region, the program's own sizes."""
    asked = Subjects(**subjects)
    loaded = loaded_for(lab, asked)
    began = time.perf_counter_ns()
    built = build(lab, loaded, asked, lab.block)
    if not built:
        return
    (who,), load_ns = built, lab.load_ns + time.perf_counter_ns() - began
    lab.announce(what=f"first request of {who.name}")
    record, _ = lab.trial(replace(who, guard=who.counter), lab.workload, prompt)
    cached = lab.identity["phase"] == "cached"
    compiled = f"not cached: {record.compiled} programs compiled" if cached and record.compiled else ""
    program = memory.decode_program(memory.programs(), {name for p in asked.made() for name in p.outermost})
    row = as_first(
        record,
        compiled,
        load_ns=load_ns,
        peak_rss_bytes=environment.peak_rss(),
        device_peak_bytes=record.device_peak_bytes or memory.device_peak(),
        **protocol.program_sizes(program),
    )
    lab.keep(row)


def interleaved_blocks(lab: Lab, subjects: dict, blocks: list[int], baseline: str, explain: bool) -> None:
    """Warm trials of all subjects, block by block."""
    asked = Subjects(**subjects)
    loaded = loaded_for(lab, asked)
    reference = protocol.Reference(loaded, lab.workload)
    lab.blocks(build(lab, loaded, asked, blocks[0]), blocks, baseline, reference, explain=explain)
    lab.notes["gflops"] = roofline.flops()
