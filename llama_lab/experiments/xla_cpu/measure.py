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
from llama_lab.bench import AGAIN, WRONG, statistics
from llama_lab.bench.experiment import Experiment, Point, Runner, check_counts
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
class Told:
    """A finding as its rows tell it. ratio: time of the slow program over the fast one's; faults: page faults of a unit
    of work."""

    finding: Finding
    slow: int
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
    seed: int
    pair_blocks: int
    names: tuple[str, ...] = tuple(finding.name for finding in FINDINGS)

    def check(self) -> None:
        check_counts(blocks=self.pair_blocks)
        known = [finding.name for finding in FINDINGS]
        for name in self.names:
            if name not in known:
                raise UserError(f"No such finding: {name!r}.{near(name, known)}")

    def points(self, runner: Runner) -> list[Point]:
        rows, what = 3 * len(self.names), "findings about XLA:CPU"
        return [
            Point(RUN, block, self.comparing, rows, what=what, interpreter=SHIPPED) for block in range(self.pair_blocks)
        ]

    def about(self, runner: Runner) -> dict:
        return dict(missing=[])

    def comparing(self, lab: Lab) -> None:
        """The findings of one block in this process, in seeded random order."""
        for place, name in enumerate(shuffled(self.names, self.seed, lab.block)):
            finding = next(f for f in FINDINGS if f.name == name)
            for row in compare(finding, lab.identity | dict(seed=self.seed), 3 * place):
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
    """The rows of one finding: checked for equal numbers, warmed up, and timed in random order. order: place of its
    first row."""
    base = jax.jit(finding.base)(jax.random.key(identity["seed"]))
    subjects = {SLOW: Subject(finding.slow, base), FAST: Subject(finding.fast, base)}
    reason = different(*(subjects[name].unit() for name in (SLOW, FAST)))
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in (SLOW, FAST, CONTROL)}
    for subject in [*subjects.values()] * WARM:
        subject.unit()
    subjects[CONTROL] = subjects[FAST]
    drawn = random.Random(f"{identity['seed']} {identity['block']} {finding.name}")
    for _ in range(repeats):
        for name in drawn.sample(list(subjects), len(subjects)):
            seen[name].append(subjects[name].timed())
    return [
        described(
            finding,
            subject,
            seen[name],
            **identity,
            order=order + i,
            phase="warm",
            valid=not reason,
            reason=reason,
            program=name,
        )
        for i, (name, subject) in enumerate(subjects.items())
    ]


def different(slow, fast) -> str:
    """Why two programs' results are not the same numbers; "" where they are. Shapes may differ by axes of one."""
    for a, b in zip(jax.tree.leaves(slow), jax.tree.leaves(fast), strict=True):
        a, b = (np.asarray(x, np.float32).ravel() for x in (a, b))
        if a.shape != b.shape or not np.abs(a - b).max() <= NEAR * np.abs(b).max():
            return f"{WRONG}the two programs compute different numbers"
    return ""


def described(finding: Finding, subject: Subject, seen: Sequence[tuple[int, int]], **more) -> Compared:
    sizes, program = subject.compiled.memory_analysis(), subject.program
    return Compared(
        **more,
        finding=finding.name,
        evidence=finding.told(subject.compiled, program.calls),
        calls=program.calls,
        **{
            f"{kind}_bytes": getattr(sizes, f"{kind}_size_in_bytes") for kind in ("argument", "output", "temp", "alias")
        },
        unit_ns=[ns for ns, _ in seen],
        page_faults=sum(faults for _, faults in seen),
    )


# What the rows say ----------------------------------------------------------------------------------------------------


def told(rows: Sequence[Compared], seed: int = 0) -> list[Told]:
    """Each finding that has rows, in the order of FINDINGS. Void blocks give no ratio, and are counted in `wrong`."""
    found = []
    for finding in FINDINGS:
        mine = {(r.block, r.program): r for r in rows if r.finding == finding.name}
        blocks = sorted(b for b, name in mine if name == SLOW and all((b, n) in mine for n in (FAST, CONTROL)))
        good = [b for b in blocks if mine[b, SLOW].valid]
        if not blocks:
            continue
        medians = {name: [float(np.median(mine[b, name].unit_ns)) for b in good] for name in (SLOW, FAST, CONTROL)}
        faults = {
            n: float(np.mean([mine[b, n].page_faults / len(mine[b, n].unit_ns) for b in blocks])) for n in (SLOW, FAST)
        }
        pairs = statistics.pair_baseline(medians[FAST], medians[CONTROL])
        control = statistics.ratio(medians[CONTROL], medians[FAST], seed)
        ratio = statistics.of_times(statistics.with_floor(statistics.ratio(medians[SLOW], pairs, seed), control))
        shown = {name: {mine[b, name].evidence for b in blocks} for name in (SLOW, FAST)}
        ms = tuple(float(np.median(values)) / 1e6 if len(values) else float("nan") for values in (medians[SLOW], pairs))
        found.append(
            Told(
                finding,
                max(shown[SLOW]),
                max(shown[FAST]),
                ratio,
                tuple(np.divide(medians[SLOW], pairs)),
                ms,
                (faults[SLOW], faults[FAST]),
                same=len(shown[SLOW]) == len(shown[FAST]) == 1,
                wrong=len(blocks) - len(good),
            )
        )
    return found


def sentence(found: Sequence[Told], versions: str = "") -> str:
    """What the findings come to, computed. versions: such as `jaxlib 0.10.2`."""
    standing = [t for t in found if t.holds]
    slower = sorted((t for t in standing if t.ratio.verdict == Verdict.SLOWER), key=lambda t: -t.ratio.value)
    if not found:
        return "No finding about XLA:CPU was measured."
    head = f"{len(standing)} of {len(found)} findings about XLA:CPU show in the compiled programs" + (
        f" of {versions}" if versions else ""
    )
    if not slower:
        return f"{head}; none of them costs time that the measurement can tell."
    named = "; ".join(f"{t.finding.name} {t.ratio.words}" for t in slower)
    others = [t.finding.name for t in standing if t not in slower]
    return f"{head}. As many times as long as the same numbers need otherwise: {named}." + (
        f" Not told apart by time: {', '.join(others)}." if others else ""
    )
