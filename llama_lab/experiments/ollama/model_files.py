"""The same questions to models as people use them, each in its own file."""

from __future__ import annotations

from dataclasses import dataclass

from llama_jax import checkpoint, prompts
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, passages
from llama_lab.bench import run as suite
from llama_lab.bench.experiment import Experiment, Runner, Seed, check_counts
from llama_lab.bench.phases import Plan
from llama_lab.bench.record import Trial


@dataclass(frozen=True, kw_only=True)
class Files(Experiment):
    """`run` of a row is the model. A model that is not here is reported as missing, and so is a subject that cannot run
    it."""

    optional = True

    file_models: tuple[str, ...]
    file_placements: tuple[str, ...]
    file_peers: tuple[str, ...]
    file_prompts: int
    file_tokens: int
    file_processes: int
    seed: Seed

    def check(self) -> None:
        from llama_lab import peers

        peers.check(self.file_peers)
        for name in self.file_placements:
            parse(name)
        check_counts(prompts=self.file_prompts, processes=self.file_processes)
        if self.file_tokens < 2:
            raise UserError("file_tokens must be 2 or more; a rate needs two tokens.")

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        asked, trials = prompts.load(self.file_prompts), []
        for model in self.file_models:
            names = (*self.file_placements, *self.file_peers)
            gaps = [gap] if (gap := available.no_file(model)) else available.gaps(names, model)
            runner.journal.note_missing((model, *names), gaps)
            here = [name for name in names if name not in {gap["name"] for gap in gaps}]
            if gap or not {*here} & {*self.file_placements}:
                continue
            loaded = checkpoint.load(model, checkpoint.own_blocks(checkpoint.find(model)))
            work = passages.science(loaded, asked, self.file_tokens, self.seed)
            counts = dict(blocks=self.file_processes, processes=self.file_processes)
            trials += suite.collect(Plan.of(model, here, work, run=model, **counts), runner.journal, runner.progress)
        return trials, dict(missing=runner.missing)
