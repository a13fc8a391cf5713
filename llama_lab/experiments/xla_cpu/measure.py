"""The findings about XLA:CPU (`cases`), measured: what each compiled program shows, and how much longer the slow one
takes.

Each block is a fresh process that runs every finding's slow program, its fast one and the fast one again, interleaved.
A finding whose two programs do not compute the same numbers is void. Ratios are of the blocks' medians, one pair a
block.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.plumbing import xla_flags
from llama_jax.plumbing.errors import UserError, near
from llama_lab.bench import AGAIN, WRONG, statistics, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts
from llama_lab.bench.lab import Lab
from llama_lab.bench.process import Interpreter
from llama_lab.bench.record import Row
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.workload import shuffled
from llama_lab.experiments.xla_cpu.cases import FINDINGS, Finding, Program

RUN = "xla"
REPEATS = 5  # timed units of work of each program in a block
WARM = 2
SLOW, FAST, CONTROL = "slow", "fast", "fast" + AGAIN
SHIPPED = Interpreter(settings=xla_flags.shipped())  # the findings are XLA's as everybody has it
BY_NAME = {finding.name: finding for finding in FINDINGS}
NEAR = 1e-2  # a share of the largest number: bfloat16 sums in another order are within it, another computation is not


class Compared(Row):
    """One program of one finding in one process. Times in ns, sizes in bytes."""

    finding: str
    program: str  # slow, fast, fast (again)
    evidence: int  # what the compiled program shows, in the finding's unit
    argument_bytes: int  # the compiled program's, as XLA reports them
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    calls: int  # calls of the program for one unit of work
    unit_ns: list[int]  # each unit of work, until its results are there
    page_faults: int  # minor ones of this process within these units


@dataclass(frozen=True)
class Outcome:
    """What rows say of a finding. ratio: of times, slow over fast. faults: page faults of a unit of work."""

    finding: Finding
    slow: int  # what the compiled programs show
    fast: int
    ratio: Ratio
    pairs: tuple[float, ...]  # the same of each block
    ms: tuple[float, float]  # slow, fast
    faults: tuple[float, float]
    same: bool  # the evidence is one and the same in every process
    wrong: int = 0  # processes in which the two programs computed different numbers

    @property
    def holds(self) -> bool:
        """The compiled programs still differ as the claim says."""
        return self.same and self.slow > self.fast


@dataclass(frozen=True)
class XlaFindings(Experiment):
    """All findings (or those named) in `pair_blocks` fresh processes. model: the table's; no pair depends on it."""

    kind = Compared
    beside = ("names",)

    model: str
    seed: Seed
    pair_blocks: int
    names: tuple[str, ...] = tuple(BY_NAME)

    def check(self) -> None:
        check_counts(blocks=self.pair_blocks)
        for name in self.names:
            if name not in BY_NAME:
                raise UserError(f"No such finding: {name!r}.{near(name, BY_NAME)}")

    def points(self, runner: Runner) -> list[Point]:
        rows, how = 3 * len(self.names), dict(what="findings about XLA:CPU", interpreter=SHIPPED)
        return [Point(RUN, block, self.comparing, rows, **how) for block in range(self.pair_blocks)]

    def about(self, runner: Runner) -> dict:
        return dict(missing=[])

    def comparing(self, lab: Lab) -> None:
        """The findings of one block in this process, in seeded random order."""
        for place, name in enumerate(shuffled(self.names, self.seed, lab.block)):
            for row in compare(BY_NAME[name], lab.identity | dict(seed=self.seed), 3 * place):
                lab.keep(row)


# What the children run ------------------------------------------------------------------------------------------------


class Subject:
    """A compiled program with its arguments, which lives through donation."""

    def __init__(self, program: Program, base: tuple):
        own = jax.tree.map(jnp.copy, program.bring(*base))  # what one subject gives away the others must keep
        self.program, self.arguments, self.compiled = program, jax.block_until_ready(own), program.compiled(base)

    def unit(self):
        """One unit of work; the results of its last call, when they are there."""
        for _ in range(self.program.calls):
            results = self.compiled(*self.arguments)
            if self.program.feeds:
                self.arguments = (results[0] if isinstance(results, tuple) else results, *self.arguments[1:])
        return jax.block_until_ready(results)

    def timed(self) -> tuple[int, int]:
        """(nanoseconds, minor page faults) of one unit."""
        faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter_ns()
        self.unit()
        return time.perf_counter_ns() - began, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults


def compare(finding: Finding, identity: dict, order: int = 0, repeats: int = REPEATS) -> list[Compared]:
    """The rows of one finding: checked for equal numbers, warmed up, timed in random order from `order` on."""
    base = jax.jit(finding.base)(jax.random.key(identity["seed"]))
    subjects = {SLOW: Subject(finding.slow, base), FAST: Subject(finding.fast, base)}
    reason = different(*(subjects[name].unit() for name in (SLOW, FAST)))
    for subject in [*subjects.values()] * WARM:
        subject.unit()
    subjects[CONTROL] = subjects[FAST]
    drawn = random.Random(f"{identity['seed']} {identity['block']} {finding.name}")
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name in drawn.sample(list(subjects), len(subjects)):
            seen[name].append(subjects[name].timed())
    rows = []
    for name, subject in subjects.items():
        sizes = subject.compiled.memory_analysis()
        program = subject.program
        kinds = ("argument", "output", "temp", "alias")
        row = Compared(
            **identity,
            **{f"{kind}_bytes": getattr(sizes, f"{kind}_size_in_bytes") for kind in kinds},
            order=order + len(rows),
            phase="warm",
            valid=not reason,
            reason=reason,
            finding=finding.name,
            program=name,
            evidence=finding.evidence(subject.compiled, program.calls),
            calls=program.calls,
            unit_ns=[ns for ns, _ in seen[name]],
            page_faults=sum(faults for _, faults in seen[name]),
        )
        rows.append(row)
    return rows


def different(slow, fast) -> str:
    """Why two programs' results are not the same numbers; "" if they are. Shapes may differ by axes of one."""
    for a, b in zip(jax.tree.leaves(slow), jax.tree.leaves(fast), strict=True):
        a, b = (np.asarray(x, np.float32).ravel() for x in (a, b))
        if a.shape != b.shape or not np.abs(a - b).max() <= NEAR * np.abs(b).max():
            return f"{WRONG}the two programs compute different numbers"
    return ""


# What the rows say ----------------------------------------------------------------------------------------------------


def outcomes(rows: Sequence[Compared], seed: int = 0) -> list[Outcome]:
    """Each finding that has rows, in the order of FINDINGS. Void blocks give no ratio, and are counted in `wrong`."""
    mine = summary.grouped(
        sorted(rows, key=lambda r: r.block), lambda r: (r.finding, r.block), lambda r: (r.program, r)
    )
    whole = [(name, dict(block)) for (name, _), block in mine.items() if len(block) == 3]
    blocks = summary.grouped(whole, lambda pair: pair[0], lambda pair: pair[1])
    return [outcome(finding, blocks[finding.name], seed) for finding in FINDINGS if finding.name in blocks]


def outcome(finding: Finding, blocks: Sequence[dict[str, Compared]], seed: int) -> Outcome:
    """The outcome of a finding. blocks: program → its row."""
    good = [block for block in blocks if block[SLOW].valid]
    slow, fast, again = ([float(np.median(block[n].unit_ns)) for block in good] for n in (SLOW, FAST, CONTROL))
    once = statistics.pair_baseline(fast, again)
    control = statistics.ratio(again, fast, seed)
    ratio = statistics.of_times(statistics.with_floor(statistics.ratio(slow, once, seed), control))
    sides = [[block[name] for block in blocks] for name in (SLOW, FAST)]
    shown = [{row.evidence for row in side} for side in sides]
    return Outcome(
        finding,
        *map(max, shown),
        ratio,
        pairs=tuple(np.divide(slow, once)),
        ms=tuple(float(np.median(values)) / 1e6 if len(values) else float("nan") for values in (slow, once)),
        faults=tuple(float(np.mean([row.page_faults / len(row.unit_ns) for row in side])) for side in sides),
        same=all(len(values) == 1 for values in shown),
        wrong=len(blocks) - len(good),
    )


def sentence(outcomes: Sequence[Outcome], versions: str) -> str:
    """What the findings come to, computed. versions: such as `jaxlib 0.10.2`."""
    if not outcomes:
        return "No finding about XLA:CPU was measured."
    standing = [outcome for outcome in outcomes if outcome.holds]
    slower = sorted((o for o in standing if o.ratio.verdict == Verdict.SLOWER), key=lambda o: -o.ratio.value)
    head = f"{len(standing)} of {len(outcomes)} findings about XLA:CPU show in the compiled programs of {versions}"
    if not slower:
        return f"{head}; none of them costs time that the measurement can tell."
    named = "; ".join(f"{o.finding.name} {o.ratio.words}{o.ratio.aside}" for o in slower)
    others = ", ".join(o.finding.name for o in standing if o not in slower)
    undecided = f" Not told apart by time: {others}." if others else ""
    return f"{head}. As many times as long as the same numbers need otherwise: {named}.{undecided}"
