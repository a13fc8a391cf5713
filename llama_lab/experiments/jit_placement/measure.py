"""The ladder of placements, greedy and sampled in the same blocks, and its cold starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_jax import checkpoint
from llama_jax import prompts as science
from llama_jax.placement import Placement
from llama_jax.sampling import Sampler
from llama_lab.bench import harness, passages, run
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Trial
from llama_lab.experiments.jit_placement import table

BASELINE = "step"
COMPILED_ANEW = ("step", "split", "step+traced")  # whose programs another temperature is tried on


def record(
    journal: Journal,
    placements: Sequence[Placement],
    questions: Sequence[str],
    *,
    model: str,
    seed: int,
    blocks: int,
    processes: int,
    new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    cold_processes: int,
) -> tuple[list[Trial], dict]:
    """The trials, cold ones included, and what the meta file says of them.

    blocks: times that each placement answers, greedily and sampled; block i asks question i modulo their number.
    """
    loaded, sampler = checkpoint.load(model), Sampler(temperature, top_k, top_p)
    workload = passages.science(loaded, questions, new_tokens, seed)
    plan = run.Plan(
        model=model,
        placements=tuple(placements),
        workload=workload,
        baseline=BASELINE,
        blocks=blocks,
        processes=processes,
        cold=cold_processes,
        sampled=sampler,
    )
    about = dict(weights_hash=loaded.weights_hash, questions=list(questions), baseline=BASELINE)
    return run.collect(plan, journal), about | dict(
        subjects=[p.name for p in placements],
        harness_cost=harness.cost(loaded, workload, blocks),
        settings=table.new_settings(loaded, workload, COMPILED_ANEW, sampler),
    )


def questions(count: int, ollama: str, out_dir: str | Path) -> list[str]:
    """The first of the committed questions; new ones, written by an Ollama model, where one is named."""
    if ollama:
        return science.from_ollama(ollama, count, Path(out_dir) / "data" / "prompts.json")
    return science.load(count)
