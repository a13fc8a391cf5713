"""The ladder, the fused kernels and llama.cpp on one file's weights, interleaved: the claim, in one table."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from llama_jax import checkpoint
from llama_jax import prompts as science
from llama_jax.placement import parse
from llama_lab.bench import available, passages, phases
from llama_lab.bench import run as suite
from llama_lab.bench.journal import Journal
from llama_lab.bench.phases import Plan
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.record import Trial

NAME, QUESTION = "00-headline", "What does this machine make of the claim?"
BASELINE = "step"
PLACEMENTS = ("eager", "ops", "layer", "split", "step", "chunk8", "loop", "step+fused", "loop+fused")
PEERS = ("llamacpp",)


@dataclass(frozen=True)
class Amount:
    """How much is measured. new_tokens: of each answer; one, then whole chunks of eight."""

    blocks: int
    processes: int
    new_tokens: int = 17
    model: str = checkpoint.DEFAULT
    seed: int = 0


QUICK, FULL = Amount(blocks=12, processes=2), Amount(blocks=40, processes=10)


def record(journal: Journal, amount: Amount, progress: Progress = announce) -> tuple[list[Trial], dict]:
    """The trials, and what their meta file says of them. What cannot run here is named there (`missing`)."""
    gaps = available.gaps((*PLACEMENTS, *PEERS), amount.model)
    absent = {gap["name"] for gap in gaps}
    loaded = checkpoint.load(amount.model)
    plan = Plan(
        model=amount.model,
        placements=tuple(parse(name) for name in PLACEMENTS if name not in absent),
        workload=passages.science(loaded, science.load(passages.PROMPTS), amount.new_tokens, amount.seed),
        baseline=BASELINE,
        blocks=amount.blocks,
        processes=amount.processes,
        peers=tuple(name for name in PEERS if name not in absent),
    )
    trials = suite.collect(plan, journal, progress)
    gaps += phases.missing(journal)
    absent = {gap["name"] for gap in gaps}
    return trials, dict(
        weights_hash=loaded.weights_hash,
        baseline=BASELINE,
        missing=gaps,
        subjects=[name for name in (*PLACEMENTS, *PEERS) if name not in absent],
    )


def parameters(amount: Amount) -> dict:
    """What its meta file says was asked for."""
    return {**asdict(amount), "placements": list(PLACEMENTS), "peers": list(PEERS)}
