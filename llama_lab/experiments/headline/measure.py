"""The ladder, the fused kernels and llama.cpp on one file's weights, interleaved: the claim, in one table."""

from __future__ import annotations

from dataclasses import dataclass

from llama_jax import checkpoint
from llama_jax import prompts as science
from llama_lab.bench import passages
from llama_lab.bench import run as suite
from llama_lab.bench.experiment import Experiment, Runner
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial

NAME, QUESTION = "00-headline", "What does this machine make of the claim?"
BASELINE = "step"
PLACEMENTS = ("eager", "ops", "layer", "split", "step", "chunk8", "loop", "step+fused", "loop+fused")
PEERS = ("llamacpp",)


@dataclass(frozen=True)
class Amount(Experiment):
    """The headline, and how much of it is measured. new_tokens: of each answer; one, then full chunks of eight."""

    blocks: int
    processes: int
    new_tokens: int = 17
    model: str = checkpoint.DEFAULT
    seed: int = 0

    @property
    def parameters(self) -> dict:
        return {**super().parameters, "placements": list(PLACEMENTS), "peers": list(PEERS)}

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        """The trials, and what their meta says of them. What cannot run here is named there (`missing`)."""
        subjects = (*PLACEMENTS, *PEERS)
        here, loaded = runner.present(subjects), checkpoint.load(self.model)
        work = passages.science(loaded, science.load(passages.PROMPTS), self.new_tokens, self.seed)
        plan = Plan.of(self.model, here, work, BASELINE, blocks=self.blocks, processes=self.processes)
        trials = suite.collect(plan, runner.journal, runner.progress)
        absent = {gap["name"] for gap in runner.missing}
        return trials, dict(
            weights_hash=loaded.weights_hash,
            baseline=BASELINE,
            missing=runner.missing,
            subjects=[name for name in subjects if name not in absent],
        )


QUICK, FULL = Amount(blocks=12, processes=2), Amount(blocks=40, processes=10)
