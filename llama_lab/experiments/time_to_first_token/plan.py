"""What `ttft` asks: of whom, at which lengths, in which shapes, and which passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_jax import checkpoint
from llama_jax.config import ModelConfig
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError, near
from llama_jax.sampling import Sampler
from llama_lab.bench import AGAIN, workload
from llama_lab.bench import passages as bench_passages
from llama_lab.bench.experiment import check_counts
from llama_lab.bench.passages import passages
from llama_lab.bench.workload import Shaped, Workload

POLICIES = {
    "exact": workload.POLICIES[workload.EXACT],
    "bucketed": workload.POLICIES[workload.BUCKETS],
    "fixed": workload.POLICIES[workload.ONE],
}
WARM_UP, WARM, TAIL, COLD = "warm-up", "warm", "tail", "cold"
SPARE = 4  # passages of each length that only warm up
POOL = 25  # passages of a length that the requests of its tail ask in turn
PROBED = 10  # requests of a tail that share a probe of the bandwidth, which takes as long as a short prompt
PART = 250  # requests of a tail that one process makes


@dataclass(frozen=True)
class Plan:
    """What is asked of whom. Everybody is asked at `lengths`, in blocks that are spread evenly over `processes`. The
    `tail_subjects` get further requests at each length of `tail`, `PART` in a process, and may be alone there. `starts`
    fresh processes make their first request at the length `at` (everybody's) and at those of `tail` (the
    `tail_subjects`'). temperature: of who can sample; the others take the best token."""

    placements: tuple[str, ...]  # "PLACEMENT POLICY"; the first is the baseline, which runs twice in a block (A/A)
    peers: tuple[str, ...]
    lengths: tuple[int, ...]  # tokens of the prompts
    blocks: int
    processes: int
    at: int
    starts: int
    tail: tuple[tuple[int, int], ...] = ()  # (length, further requests)
    tail_subjects: tuple[str, ...] = ()
    temperature: float = 0.0
    new_tokens: int = 2
    seed: int = 0

    def __post_init__(self):
        for name in ("placements", "peers", "lengths", "tail_subjects"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "tail", tuple(map(tuple, self.tail)))

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Everybody's lengths and those of the tails, ascending."""
        return tuple(sorted({*self.lengths, *dict(self.tail)}))

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.placements + self.peers

    def starting(self, n: int) -> tuple[str, ...]:
        """Whose first request at a length is timed in a fresh process."""
        return self.subjects if n == self.at else self.tail_subjects if n in dict(self.tail) else ()


def check_plan(plan: Plan, config: ModelConfig) -> None:
    """Raises UserError for a plan that cannot be carried out on a model of this configuration, before anything is
    measured."""
    from llama_lab import peers

    check_counts(blocks=plan.blocks, processes=plan.processes, starts=plan.starts, new_tokens=plan.new_tokens)
    if not plan.placements:
        raise UserError("placements is empty; name at least one, such as 'step exact'.")
    for name in plan.placements:
        placement, _, policy = name.rpartition(" ")
        if policy not in POLICIES or not placement:
            raise UserError(
                f"{name!r} is no placement with a policy, such as 'step exact'; policies: {', '.join(POLICIES)}."
            )
        parse(placement)
    peers.check(plan.peers)
    if len(set(plan.subjects)) != len(plan.subjects):
        raise UserError(f"A placement is named twice: {', '.join(plan.placements)}.")
    if (
        not plan.lengths
        or len(set(plan.lengths)) != len(plan.lengths)
        or not all(type(n) is int and n >= 1 for n in plan.lengths)
    ):
        raise UserError(f"lengths is {list(plan.lengths)}; give different numbers of tokens, each 1 or more.")
    if plan.at not in plan.lengths:
        raise UserError(f"at is {plan.at}; it must be one of the lengths ({', '.join(map(str, plan.lengths))}).")
    if plan.processes > plan.blocks:
        raise UserError(f"{plan.processes} processes for {plan.blocks} blocks; each process needs a block of its own.")
    for part in plan.tail:
        if len(part) != 2 or not all(type(n) is int for n in part) or part[0] < 1 or part[1] < 0:
            raise UserError(f"tail has {list(part)}; write [LENGTH, REQUESTS], such as [50, 200].")
    if len(dict(plan.tail)) != len(plan.tail):
        raise UserError(f"tail is {list(map(list, plan.tail))}; name each length once.")
    if plan.tail and not plan.tail_subjects:
        raise UserError("tail has requests for nobody; name some tail_subjects, or leave it empty.")
    Sampler(temperature=plan.temperature)
    for name in plan.tail_subjects:
        if name not in plan.subjects:
            raise UserError(f"tail_subjects names {name!r}, which is not measured.{near(name, plan.subjects)}")
    bench_passages.check_context(config, Workload((), plan.new_tokens, max(plan.all_lengths)))


def workloads(loaded: checkpoint.Checkpoint, plan: Plan) -> dict[tuple[str, int], Workload]:
    """(run, length) → its passages, each asked once, those of a tail in turn; those of the warm-up are never timed."""
    counts = [(WARM_UP, n, SPARE) for n in plan.all_lengths] + [(WARM, n, plan.blocks) for n in plan.lengths]
    counts += [(COLD, n, plan.starts) for n in plan.all_lengths if plan.starting(n)]
    counts += [(TAIL, n, min(requests, POOL)) for n, requests in plan.tail]
    drawn = iter(passages(loaded, [n for _, n, count in counts for _ in range(count)], plan.seed))
    return {
        (run, n): Workload(tuple(next(drawn) for _ in range(count)), plan.new_tokens, n, seed=plan.seed)
        for run, n, count in counts
    }


def shaped(work: Workload, subject: str, longest: int) -> Shaped:
    """The workload in the shape that a subject's policy gives it; a peer gets it without padding and does as it
    likes."""
    policy = POLICIES.get(subject.removesuffix(AGAIN).rpartition(" ")[2])
    length, room = policy.shape(work.length, longest, work.new_tokens) if policy else (work.length, work.slots)
    return Shaped(work.prompts, work.new_tokens, length, seed=work.seed, room=room)


def without(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan without some peers."""
    kept = {field: tuple(n for n in getattr(plan, field) if n not in names) for field in ("peers", "tail_subjects")}
    return replace(plan, **kept, tail=plan.tail if kept["tail_subjects"] else ())


Round = tuple[str, int, tuple[str, ...], tuple[int, ...]]  # run, block, subjects, lengths


def processes_of(plan: Plan) -> list[list[Round]]:
    """What each process measures, in order: first those of the blocks, then those of the tails.

    Blocks of a tail are numbered through all its lengths, so that no two processes have one in common.
    """
    shares = np.array_split(range(plan.blocks), plan.processes)
    found = [[(WARM, b, plan.subjects, plan.lengths) for b in share.tolist()] for share in shares]
    first = 0
    for n, requests in plan.tail:
        for share in np.array_split(range(first, first + requests), -(-requests // PART)) if requests else ():
            found.append([(TAIL, b, plan.tail_subjects, (n,)) for b in share.tolist()])
        first += requests
    return found
