"""Time to first token by prompt length: the kernels' beside llama.cpp's on the same file, asked as `ttft` asks warm
requests.

All subjects have been warmed up at all lengths in one process and are then asked the same passage in turn. A placement
runs at the prompt's own length, without padding; up to its first token every placement with the same kernels that jits
a step or more runs the same program, so that `step` stands for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llama_jax import checkpoint
from llama_lab.bench import AGAIN, available, frames, phases
from llama_lab.bench.available import peer_names
from llama_lab.bench.cold import Start
from llama_lab.bench.job import Job, whole
from llama_lab.bench.journal import Journal
from llama_lab.bench.standings import SAME_FILE
from llama_lab.bench.statistics import NO_RATIO, Ratio, of_times
from llama_lab.experiments.time_to_first_token import measure as ttft
from llama_lab.experiments.time_to_first_token import table
from llama_lab.experiments.time_to_first_token.plan import Plan, check_plan, workloads

KERNELS, EXACT = "step+fused", " exact"  # whose first token is judged; the policy that pads nothing
ON_FILE = (*SAME_FILE, "ik-llamacpp")  # peers that compute on the file's own blocks
NEW_TOKENS = 1  # tokens of each answer: no decode program is compiled for what is not timed


def measure(job: Job, subjects: Sequence[str], lengths: Sequence[int], blocks: int, seed: int = 0) -> list[Start]:
    """`blocks` requests of every subject at every length, the first placement's twice, all interleaved in one process.

    What cannot run here is said to be missing in the journal's notes. Raises UserError before anything is loaded: an
    unknown or no placement, a first one that needs kernels, lengths that cannot be.
    """
    plan = planned(subjects, lengths, blocks, seed)
    check_plan(plan, checkpoint.load_config(job.model))
    available.check_baseline(plan.placements[0].removesuffix(EXACT))
    plan = planned(available.present(job, subjects), lengths, blocks, seed)
    ttft.answers(job, plan, workloads(checkpoint.load(job.model), plan))
    return [t.model_copy(update=dict(subject=t.subject.replace(EXACT, ""))) for t in whole(job.journal.trials)]


def record(
    journal: Journal,
    *,
    model: str,
    seed: int,
    first_subjects: Sequence[str],
    first_lengths: Sequence[int],
    first_blocks: int,
) -> tuple[list[Start], dict]:
    """All requests of `measure`, and for the meta file what could not run and what the limit follows from."""
    rows = measure(Job(model, None, journal), first_subjects, first_lengths, first_blocks, seed)
    floor = table.floor(checkpoint.load_config(model), first_lengths)
    return rows, dict(missing=phases.missing(journal), floor=floor)


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
