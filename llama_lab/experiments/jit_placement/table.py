"""What drawing a token costs, and what another setting of the sampler compiles, under each placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llama_jax import generate
from llama_jax.checkpoint import Checkpoint
from llama_jax.sampling import Sampler
from llama_lab.bench import SAMPLED, statistics, summary
from llama_lab.bench.guard import Guard
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Summary
from llama_lab.bench.workload import Workload, encoder

OTHERWISE = 1.25  # another temperature: this times the one before


@dataclass(frozen=True)
class Cost:
    """Of sampling under a placement. added: milliseconds a token beside the greedy answer of the same block, `points`
    one by one; ratio: of the decode rates, sampled over greedy."""

    name: str
    added: Summary
    points: tuple[float, ...]
    ratio: Ratio


def costs(trials: Sequence[Trial], names: Sequence[str], seed: int = 0) -> list[Cost]:
    """A cost a placement that has valid trials of both kinds side by side."""
    placements = []
    for name in names:
        greedy, sampled = summary.both_rates(trials, name), summary.rates(trials, name + SAMPLED)
        if pairs := sorted(greedy.keys() & sampled.keys()):
            points = tuple(1e3 / sampled[at] - 1e3 / greedy[at] for at in pairs)
            added = statistics.summarise(points, seed, [process for process, _ in pairs])
            placements.append(Cost(name, added, points, summary.paired_ratio(trials, name + SAMPLED, name, seed)))
    return placements


def new_settings(
    checkpoint: Checkpoint, workload: Workload, names: Sequence[str], sampler: Sampler
) -> list[dict[str, str | int | float]]:
    """What an answer at another temperature compiles in a process that has sampled before: {name, programs, seconds} a
    placement; seconds of trace, lowering and compilation, the persistent cache left aside."""
    ids, entries = encoder(checkpoint)(workload.prompts[0]), []
    for name in names:
        engine = generate.build(checkpoint, name)
        for s in (sampler, replace(sampler, temperature=sampler.temperature * OTHERWISE)):
            with Guard() as guard:
                shape = dict(length=workload.length, slots=workload.slots)
                list(generate.stream(engine, [ids], workload.new_tokens, s, **shape))
        seconds = guard.seconds("trace") + guard.seconds("lower") + guard.backend_seconds
        entries.append(dict(name=name, programs=guard.compilations, seconds=round(seconds, 4)))
    return entries
