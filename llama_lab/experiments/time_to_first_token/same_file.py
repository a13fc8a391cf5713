"""Time to first token by prompt length: the kernels' beside llama.cpp's on the same file, asked as `ttft` asks warm
requests.

All subjects have been warmed up at all lengths in one process and are then asked the same passage in turn. A placement
runs at the prompt's own length, without padding; up to its first token every placement with the same kernels that jits
a step or more runs the same program, so that `step` stands for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llama_jax import checkpoint
from llama_lab.bench import AGAIN, available, frames
from llama_lab.bench.cold import Start
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed
from llama_lab.bench.standings import SAME_FILE
from llama_lab.bench.statistics import NO_RATIO, Ratio, of_times
from llama_lab.experiments.time_to_first_token import table
from llama_lab.experiments.time_to_first_token.measure import FirstTokens, floor

KERNELS, EXACT = "step+fused", " exact"  # whose first token is judged; the policy that pads nothing
ON_FILE = (*SAME_FILE, "ik-llamacpp")  # peers that compute on the file's own blocks
NEW_TOKENS = 1  # tokens of each answer: no decode program is compiled for what is not timed


@dataclass(frozen=True)
class FirstOnFile(Experiment):
    """`first_blocks` requests of every subject at every length, the first placement's twice, all interleaved in one
    process. What cannot run here is reported as missing in the journal's notes."""

    kind = Start

    model: str
    seed: Seed
    first_subjects: tuple[str, ...]
    first_lengths: tuple[int, ...]
    first_blocks: int

    def plan(self, subjects: Sequence[str]) -> FirstTokens:
        """One process and no tail; what it says of first requests (`at`, `starts`) is not asked for."""
        peers = [name for name in subjects if name in available.peer_names()]
        return FirstTokens(
            model=self.model,
            placements=[name + EXACT for name in subjects if name not in peers],
            peers=peers,
            lengths=self.first_lengths,
            blocks=self.first_blocks,
            processes=1,
            at=min(self.first_lengths, default=0),
            starts=1,
            new_tokens=NEW_TOKENS,
            seed=self.seed,
        )

    def check(self) -> None:
        plan = self.plan(self.first_subjects)
        plan.check()
        available.check_baseline(plan.placements[0].removesuffix(EXACT))

    def points(self, runner: Runner) -> list[Point]:
        plan = self.plan(runner.present(self.first_subjects))
        return plan.answers(plan.workloads(checkpoint.load(self.model)))

    def measure(self, runner: Runner) -> tuple[list[Start], dict]:
        rows, about = super().measure(runner)
        return [t.model_copy(update=dict(subject=t.subject.replace(EXACT, ""))) for t in rows], about

    def about(self, runner: Runner) -> dict:
        """What could not run, and what the limit follows from."""
        return dict(missing=runner.missing, floor=floor(checkpoint.load_config(self.model), self.first_lengths))


# What the rows say ----------------------------------------------------------------------------------------------------


def over(
    trials: Sequence[Start], name: str, n: int, seed: int = 0, others: Sequence[str] = SAME_FILE
) -> tuple[str | None, Ratio | None]:
    """Whose of these first tokens is soonest at a length, of llama.cpp's modes of the same file by default, and a
    subject's time over its, paired by passage; None each if there is no valid trial."""
    rival = table.best(trials, others, [n])
    known = rival and table.milliseconds(trials, name, n)
    return rival, of_times(table.sooner(trials, rival, name, n, seed)) if known else None


def races(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """A race of KERNELS a length, with every peer on the same file: {name, tokens, others: those with valid trials
    there, rival: the soonest of them or None, ratio: its time over the rival's, or None}."""
    entries = []
    for n in table.lengths(trials):
        others = [name for name in ON_FILE if table.milliseconds(trials, name, n)]
        rival, ratio = over(trials, KERNELS, n, seed, ON_FILE)
        entries.append(dict(name=KERNELS, tokens=n, others=others, rival=rival, ratio=ratio))
    return entries


def limits(trials: Sequence[Start], about: dict, gflops: float) -> dict[int, float]:
    """`table.limits` of the baseline. about: `measure.floor` of the model. gflops: as probed."""
    twin = next((t.subject for t in trials if t.subject.endswith(AGAIN)), "")
    return table.limits(trials, twin.removesuffix(AGAIN), about, gflops)


def reading(trials: Sequence[Start], about: dict) -> dict[str, float]:
    """KERNELS → ms to read the file's own blocks once, where there are any."""
    ms = table.reading_ms(trials, KERNELS, about)
    return {} if math.isnan(ms) else {KERNELS: ms}


def over_llamacpp(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """The entries of `table.table`, each with `ratio`: its time over that of llama.cpp's fastest mode of the file."""
    entries = table.table(trials, seed)
    return [e | dict(ratio=over(trials, e["subject"], e["tokens"], seed)[1] or NO_RATIO) for e in entries]


COLUMNS = frames.Columns(
    {
        **frames.same("tokens", "subject"),
        "P50, ms": "p50",
        **frames.same("low", "high"),
        **frames.interval("over llama.cpp", "ratio", "value", ends="ratio "),
        "valid": "n",
        "void": "void",
    },
    index=("tokens", "subject"),
    digits=2,
)
