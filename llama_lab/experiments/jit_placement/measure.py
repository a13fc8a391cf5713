"""The ladder of placements, greedy and sampled in the same blocks, and its cold starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llama_jax import checkpoint
from llama_jax import prompts as science
from llama_jax.placement import Placement
from llama_jax.sampling import Sampler
from llama_lab.bench import harness, passages, run
from llama_lab.bench.experiment import Experiment, Runner
from llama_lab.bench.record import Trial
from llama_lab.experiments.jit_placement import table
from llama_lab.peers import ollama_questions

BASELINE = "step"
COMPILED_ANEW = ("step", "split", "step+traced")  # whose programs another temperature is tried on


@dataclass(frozen=True)
class JitPlacement(Experiment):
    """Every placement greedily and sampled, and its cold starts.

    blocks: times that each placement answers, both ways; block i asks question i modulo their number. prompts: how many
    of the committed questions are asked; new ones, written by an Ollama model into `out_dir`, where one is named.
    """

    beside = ("placements", "ollama_prompts", "out_dir")

    placements: tuple[Placement, ...]
    model: str
    seed: int
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
    def also(self) -> object:
        return list(self.placements), self.ollama_prompts

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        loaded, sampler = checkpoint.load(self.model), Sampler(self.temperature, self.top_k, self.top_p)
        path = Path(self.out_dir) / "data" / "prompts.json"
        written = self.ollama_prompts and ollama_questions.from_ollama(self.ollama_prompts, self.prompts, path)
        questions = written or science.load(self.prompts)
        workload = passages.science(loaded, questions, self.new_tokens, self.seed)
        plan = run.Plan(
            model=self.model,
            placements=self.placements,
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
            subjects=[p.name for p in self.placements],
            harness_cost=harness.cost(loaded, workload, self.blocks),
            settings=table.new_settings(loaded, workload, COMPILED_ANEW, sampler),
        )
