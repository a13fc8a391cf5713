"""The ladder of placements, greedy and sampled in the same blocks, and its cold starts; what drawing a token costs, and
what another setting of the sampler compiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llama_jax import checkpoint, generate
from llama_jax import prompts as science
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import Placement, parse
from llama_jax.sampling import Sampler
from llama_lab.bench import SAMPLED, harness, passages, run, statistics, summary
from llama_lab.bench.experiment import Experiment, Runner, Seed
from llama_lab.bench.guard import Guard
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Summary
from llama_lab.bench.workload import Workload, encoder
from llama_lab.peers import ollama_questions

BASELINE = "step"
PIPELINES = {"step": "pipeline 1 (step)", "split": "pipeline 2 (split)"}  # the original's, and their names here
COMPILED_ANEW = ("step", "split", "step+traced")  # whose programs another temperature is tried on
OTHERWISE = 1.25  # another temperature: this times the one before


@dataclass(frozen=True)
class JitPlacement(Experiment):
    """Every placement greedily and sampled, and its cold starts.

    placements: names, or your own placements. blocks: number of times that each of them answers, both ways; block i
    asks question i modulo their number. prompts: how many of the committed questions are asked, or of new ones that an
    Ollama model writes into `out_dir`, if one is named.
    """

    beside = ("ollama_prompts", "out_dir")

    placements: tuple[str | Placement, ...]
    model: str
    seed: Seed
    blocks: int
    processes: int
    new_tokens: int
    prompts: int
    temperature: float
    top_k: int
    top_p: float
    cold_processes: int
    ollama_prompts: str = ""
    out_dir: str = ""

    @property
    def subjects(self) -> list[Placement]:
        """The placements. Raises UserError for an unknown name."""
        return [parse(placement) for placement in self.placements]

    @property
    def parameters(self) -> dict:
        return super().parameters | dict(placements=[placement.name for placement in self.subjects])

    @property
    def also(self) -> object:
        return self.subjects, self.ollama_prompts

    def recorded_with(self, meta: dict) -> dict:
        return dict(placements=meta["subjects"]) | super().recorded_with(meta)

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        loaded, sampler = checkpoint.load(self.model), Sampler(self.temperature, self.top_k, self.top_p)
        if self.ollama_prompts:
            path = Path(self.out_dir) / "data" / "prompts.json"
            questions = ollama_questions.from_ollama(self.ollama_prompts, self.prompts, path)
        else:
            questions = science.load(self.prompts)
        workload = passages.science(loaded, questions, self.new_tokens, self.seed)
        plan = run.Plan(
            model=self.model,
            placements=tuple(self.subjects),
            workload=workload,
            baseline=BASELINE,
            blocks=self.blocks,
            processes=self.processes,
            cold=self.cold_processes,
            sampled=sampler,
        )
        return run.collect(plan, runner.journal, runner.progress), dict(
            weights_hash=loaded.weights_hash,
            questions=list(questions),
            baseline=BASELINE,
            subjects=[placement.name for placement in self.subjects],
            harness_cost=harness.cost(loaded, workload, self.blocks),
            settings=new_settings(loaded, workload, COMPILED_ANEW, sampler),
        )


@dataclass(frozen=True)
class Cost:
    """Of sampling under a placement. added: milliseconds per token beside the greedy answer of the same block, `points`
    one by one; ratio: of the decode rates, sampled over greedy."""

    name: str
    added: Summary
    points: tuple[float, ...]
    ratio: Ratio


def costs(trials: Sequence[Trial], names: Sequence[str], seed: int = 0) -> list[Cost]:
    """One cost per placement that has valid trials of both kinds side by side."""
    placements = []
    for name in names:
        greedy, sampled = summary.both_rates(trials, name), summary.rates(trials, name + SAMPLED)
        if pairs := sorted(greedy.keys() & sampled.keys()):
            points = tuple(1e3 / sampled[at] - 1e3 / greedy[at] for at in pairs)
            added = statistics.summarise(points, seed, [process for process, _ in pairs])
            placements.append(Cost(name, added, points, summary.paired_ratio(trials, name + SAMPLED, name, seed)))
    return placements


def new_settings(
    loaded: Checkpoint, workload: Workload, names: Sequence[str], sampler: Sampler
) -> list[dict[str, str | int | float]]:
    """What an answer at another temperature compiles in a process that has sampled before: {name, programs, seconds}
    per placement; seconds of trace, lowering and compilation, without the persistent cache."""
    ids, entries = encoder(loaded)(workload.prompts[0]), []
    for name in names:
        engine = generate.build(loaded, name)
        for s in (sampler, replace(sampler, temperature=sampler.temperature * OTHERWISE)):
            with Guard() as guard:
                shape = dict(length=workload.length, slots=workload.slots)
                list(generate.stream(engine, [ids], workload.new_tokens, s, **shape))
        seconds = guard.seconds("trace") + guard.seconds("lower") + guard.backend_seconds
        entries.append(dict(name=name, programs=guard.compilations, seconds=round(seconds, 4)))
    return entries
