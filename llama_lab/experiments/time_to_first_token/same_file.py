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
from llama_lab.bench.available import peer_names
from llama_lab.bench.cold import Start
from llama_lab.bench.experiment import Experiment, Point, Runner
from llama_lab.bench.standings import SAME_FILE
from llama_lab.bench.statistics import NO_RATIO, Ratio, of_times
from llama_lab.experiments.time_to_first_token import measure as ttft
from llama_lab.experiments.time_to_first_token import table
from llama_lab.experiments.time_to_first_token.plan import Plan, check_plan, workloads

KERNELS, EXACT = "step+fused", " exact"  # whose first token is judged; the policy that pads nothing
ON_FILE = (*SAME_FILE, "ik-llamacpp")  # peers that compute on the file's own blocks
NEW_TOKENS = 1  # tokens of each answer: no decode program is compiled for what is not timed


@dataclass(frozen=True)
class FirstOnFile(Experiment):
    """`first_blocks` requests of every subject at every length, the first placement's twice, all interleaved in one
    process. What cannot run here is said to be missing in the journal's notes."""

    kind = Start

    model: str
    seed: int
    first_subjects: tuple[str, ...]
    first_lengths: tuple[int, ...]
    first_blocks: int

    def plan(self, subjects: Sequence[str]) -> Plan:
        return planned(subjects, self.first_lengths, self.first_blocks, self.seed)

    def check(self) -> None:
        plan = self.plan(self.first_subjects)
        check_plan(plan, checkpoint.load_config(self.model))
        available.check_baseline(plan.placements[0].removesuffix(EXACT))

    def points(self, runner: Runner) -> list[Point]:
        plan = self.plan(runner.present(self.first_subjects))
        return ttft.answers(plan, workloads(checkpoint.load(self.model), plan))

    def measure(self, runner: Runner) -> tuple[list[Start], dict]:
        rows, about = super().measure(runner)
        return [t.model_copy(update=dict(subject=t.subject.replace(EXACT, ""))) for t in rows], about

    def about(self, runner: Runner) -> dict:
        """What could not run, and what the limit follows from."""
        floor = table.floor(checkpoint.load_config(self.model), self.first_lengths)
        return dict(missing=runner.missing, floor=floor)


def planned(subjects: Sequence[str], lengths: Sequence[int], blocks: int, seed: int) -> Plan:
    """One process and no tail; what it says of first requests (`at`, `starts`) is not asked for."""
    placements = tuple(name + EXACT for name in subjects if name not in peer_names())
    others = tuple(name for name in subjects if name in peer_names())
    return Plan(
        placements=placements,
        peers=others,
        lengths=lengths,
        blocks=blocks,
        processes=1,
        at=min(lengths, default=0),
        starts=1,
        new_tokens=NEW_TOKENS,
        seed=seed,
    )


# What the rows say ----------------------------------------------------------------------------------------------------


def rival(trials: Sequence[Start], n: int, names: Sequence[str] = SAME_FILE) -> str | None:
    """The one of these whose first token is soonest at a length: of llama.cpp's modes of the same file."""
    return table.best(trials, names, n)


def over(trials: Sequence[Start], name: str, n: int, seed: int = 0, names: Sequence[str] = SAME_FILE) -> Ratio | None:
    """A subject's time over that of the `rival` of these at a length, paired by passage; None where either has no valid
    trial."""
    other = rival(trials, n, names)
    if not other or not table.warm(trials, name, n):
        return None
    return of_times(table.sooner(trials, other, name, n, seed))


def races(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """A race a length, with every peer on the same file: {name, tokens, others: those with valid trials there, rival:
    the soonest of them or None, ratio: its time over the rival's, or None}."""
    return [
        dict(
            name=KERNELS,
            tokens=n,
            others=[name for name in ON_FILE if table.warm(trials, name, n)],
            rival=rival(trials, n, ON_FILE),
            ratio=over(trials, KERNELS, n, seed, ON_FILE),
        )
        for n in table.lengths(trials)
    ]


def limits(trials: Sequence[Start], about: dict, gflops: float) -> dict[int, float]:
    """`table.limits` of the baseline. about: `table.floor` of the model. gflops: as probed."""
    return table.limits(
        trials, next((t.subject.removesuffix(AGAIN) for t in trials if t.subject.endswith(AGAIN)), ""), about, gflops
    )


def reading(trials: Sequence[Start], about: dict) -> dict[str, float]:
    """KERNELS → ms to read the file's own blocks once, where there are any."""
    ms = table.reading_ms(trials, KERNELS, about)
    return {} if math.isnan(ms) else {KERNELS: ms}


def over_llamacpp(trials: Sequence[Start], seed: int = 0) -> list[dict]:
    """The entries of `table.table`, each with `ratio`: its time over that of llama.cpp's fastest mode of the file."""
    entries = table.table(trials, seed)
    return [e | dict(ratio=over(trials, e["subject"], e["tokens"], seed) or NO_RATIO) for e in entries]


COLUMNS = frames.Columns(
    {
        "tokens": "tokens",
        "subject": "subject",
        "P50, ms": "p50",
        "low": "low",
        "high": "high",
        **frames.interval("over llama.cpp", "ratio", "value", ends="ratio "),
        "valid": "n",
        "void": "void",
    },
    index=("tokens", "subject"),
    digits=2,
)
