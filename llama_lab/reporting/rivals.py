"""Our fastest placement beside the fastest other runtime on every recorded file: where it leads least and most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from llama_lab.bench import record, standings, summary, wording
from llama_lab.bench.environment import INSTRUCTIONS
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed, named_well, round_ratio, within
from llama_lab.experiments.compiled_kernels import sizes
from llama_lab.reporting import overview
from llama_lab.reporting.machines import BEST, LLAMA_CPP
from llama_lab.reporting.overview import Recorded, Setting

FILES = ("07-compiled-kernels-sizes", "07-compiled-kernels-people")  # tables of whole files beside every runtime
CONTEST = "09-ollama"  # the headline's file beside most runtimes


def value(ratio: Ratio, unit: str = "") -> str:
    """`3.66 [3.58, 3.73]`, with the verdict where the trials do not decide. unit: before the verdict."""
    verdict = f" ({ratio.verdict})" if ratio.verdict == Verdict.UNDECIDED else ""
    return f"{value_of(ratio)}{unit}{verdict}"


def value_of(ratio: Ratio) -> str:
    """`3.66 [3.58, 3.73]`, without a verdict."""
    return f"{round_ratio(ratio.value)}{within(ratio, round_ratio)}"


def times(ratio: Ratio) -> str:
    """`3.66 [3.58, 3.73] times`."""
    return value(ratio, " times")


def megabytes(size: float | None) -> str:
    return f"{size / 1e6:,.0f} MB" if size else "unknown size"


def named(behind: Sequence[Recorded], stem: str) -> Recorded | None:
    """The table of that name."""
    return next((table for table in behind if table.path.stem == stem), None)


def greedy(table: Recorded | None) -> Setting | None:
    """The greedy run of a table that has no other name than the table."""
    return next((s for s in (table.settings if table else ()) if not s.first and not s.setting), None)


def others(run: Setting) -> list[str]:
    """The other runtimes of a run."""
    return sorted({t.backend for t in run.rows if t.valid and t.backend != standings.JAX})


def contests(behind: Sequence[Recorded]) -> list[Setting]:
    """The runs beside most runtimes: of CONTEST's own file, then of larger ones."""
    first, larger = greedy(named(behind, CONTEST)), named(behind, f"{CONTEST}-files")
    runs = [first, *(larger.settings if larger else ())]
    return [run for run in runs if run and not run.first and run.fastest() and run.fastest(ours=False)]


def read_by(run: Setting, trial: Trial) -> str:
    """`q4_1 file (97 MB of weights)`: what another runtime read."""
    size = f"({megabytes(trial.weights_bytes)} of weights)" if trial.weights_bytes else "of unknown size"
    return f"{overview.kept(trial, run.rows)} file {size}"


def ours(run: Setting) -> str:
    """The placement that stands beside others: the kernel in the loop, or the fastest where that did not run."""
    return BEST if BEST in run.subjects else run.fastest().subject


def leaders(run: Setting) -> tuple[list[Trial], list[Trial]]:
    """(a trial of the fastest other runtime and of each that it is not shown to be faster than, one of each other)."""
    first = run.fastest(ours=False)
    level, slower = [first], []
    for other in (run.best_of(name) for name in others(run) if name != first.backend):
        faster = summary.paired_ratio(run.rows, first.subject, other.subject).verdict == Verdict.FASTER
        (slower if faster else level).append(other)
    return level, slower


def strongest(run: Setting) -> list[Trial]:
    """A trial of the fastest other runtime, and one each of llama.cpp and Ollama if they are others."""
    trials = {t.subject: t for t in run.rows if t.valid and summary.paired_ratio(run.rows, ours(run), t.subject).n}
    known = [run.fastest(ours=False), trials.get(LLAMA_CPP)]
    known.append(next((t for t in trials.values() if t.backend == standings.OLLAMA), None))
    return [*{t.subject: t for t in known if t}.values()]


def beside(run: Setting, others: Sequence[Trial], words: str = "{} {}'s rate") -> list[str]:
    """What `ours` reaches beside each of the others: `3.92 [3.43, 4.49] times Ollama's rate (3.40 by medians: …)`.
    words: with a place for the ratio, and one for the runtime."""
    mine, said = ours(run), []
    for other in others:
        ratio, aside = summary.paired_ratio(run.rows, mine, other.subject), parted(run, mine, other.subject)
        said.append(words.format(times(ratio), named_well(other.backend)) + f" ({aside})" * bool(aside))
    return said


# On every file --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One file after, or for, a number of tokens. entry: our fastest placement beside the fastest other runtime, see
    `sizes.table`. others: all the runtimes that ran on it."""

    entry: dict
    others: frozenset[str]
    table: Recorded

    @property
    def ratio(self) -> Ratio:
        return self.entry["ratio"]

    @property
    def first(self) -> Trial:
        return self.entry["first"]

    @property
    def limited(self) -> str:
        """The instructions that our kernels were limited to, such as `AVX2`; "" where they had the processor's."""
        last = self.entry["file"].rpartition("/")[2]
        own = self.table.meta["environment"].get("kernels")
        return INSTRUCTIONS[last] if last in INSTRUCTIONS and last != own else ""

    @property
    def luck(self) -> str:
        return " (one process)" * (self.ratio.clusters <= 1)  # whose luck is not in the interval

    @property
    def fair(self) -> str:
        """Its ratio with the interval; `1.14 (one process)` where that leaves out what differs between processes."""
        return f"{round_ratio(self.ratio.value)}{self.luck}" if self.luck else value_of(self.ratio)

    @property
    def processor(self) -> str:
        return wording.processor(self.table.meta["environment"])


def cases(behind: Sequence[Recorded], what: str = sizes.DECODE) -> list[Case]:
    """Those of the tables of FILES. what: DECODE or PREFILL of `sizes`."""
    found = []
    for table in (table for table in behind if table.path.stem in FILES):
        rows, _ = record.read(table.path)
        ran = summary.grouped((t for t in rows if t.valid and t.backend != standings.JAX), "run", "backend")
        for entry in sizes.fastest(sizes.table(rows)):
            if entry["what"] == what:
                found.append(Case(entry, frozenset(ran[entry["file"]]), table))
    return found


def every(behind: Sequence[Recorded]) -> list[Case]:
    """The cases of answers, then those of prompts."""
    return [case for what in (sizes.DECODE, sizes.PREFILL) for case in cases(behind, what)]


def placements(found: Sequence[Case]) -> str:
    """`` `loop+fused` ``: ours in these cases."""
    return listed([f"`{name}`" for name in dict.fromkeys(case.entry["name"] for case in found)])


def where(found: Sequence[Case]) -> str:
    """`reading prompts of 100 to 400 tokens (0.66 to 0.88 times the rate)`, of each task."""
    words = {sizes.DECODE: "writing answers of", sizes.PREFILL: "reading prompts of"}
    said = []
    for what, cases in summary.grouped(found, lambda case: case.entry["what"]).items():
        lengths = wording.span((case.entry["tokens"] for case in cases), ",")
        said.append(f"{words[what]} {lengths} tokens ({ends(cases, bare)} times the rate)")
    return listed(said)


def least(found: Sequence[Case], choose: Callable = min) -> Case:
    """The case of the least ratio; of the largest with choose=max."""
    return choose(found, key=lambda case: case.ratio.value)


def often(ratios: Sequence[Ratio], of: str = "") -> str:
    """`faster in 25 of 26 cases, undecided in 1 (1.44 [0.76, 2.71])`; `faster in all 7`. of: what they are."""
    by = summary.grouped(ratios, lambda ratio: ratio.verdict)
    faster, said = len(by.pop(Verdict.FASTER, [])), []
    for verdict, some in sorted(by.items()):
        aside = value_of(some[0]) * (len(some) == 1)
        said.append(f"{verdict} in {len(some)}" + f" ({aside})" * bool(aside))
    count = f"{faster} of {len(ratios)}" if said or len(ratios) == 1 else f"all {faster}"
    return ", ".join([f"faster in {count}{of}", *said])


def parted(run: Setting, above: str, below: str) -> str:
    """`3.40 by medians: Ollama ran at 49 to 129 tokens/s`, those of the less steady of both, where that quotient
    lies outside the interval; "" elsewhere."""
    if (quotient := standings.by_medians(run.rows, above, below)) is None:
        return ""
    rates = [[trial.tg for trial in summary.warm(run.rows, name)] for name in (above, below)]
    mine, theirs = (max(some) / min(some) for some in rates)
    who, ran = (f"`{above}`", rates[0]) if mine > theirs else (named_well(below), rates[1])
    return f"{round_ratio(quotient)} by medians: {who} ran at {wording.span(ran, '.0f')} tokens/s"


def bare(case: Case) -> str:
    """`0.66`: its ratio."""
    return round_ratio(case.ratio.value)


def ends(found: Sequence[Case], say: Callable[[Case], str] = attrgetter("fair")) -> str:
    """`0.66 [0.46, 0.92] to 3.90 (one process)`: the least and the largest. say: of one of them."""
    return " to ".join(dict.fromkeys(say(least(found, choose)) for choose in (min, max)))


def ranging(found: Sequence[Case]) -> str:
    """`0.66 [0.46, 0.92] to 3.90 (one process) times the rate: faster in 31 of 39 cases`, and how many are of one
    process."""
    alone = sum(bool(case.luck) for case in found)
    said = f"{ends(found)} times the rate: {often([case.ratio for case in found], ' cases')}"
    luck = (
        f"; {alone} case{'s' * (alone > 1)} in one process{' each' * (alone > 1)}, of which the interval is too narrow"
    )
    return said + luck * bool(alone)


def file_count(found: Sequence[Case]) -> str:
    """`11 files`."""
    n = files(found)
    return f"{n} file{'s' * (n != 1)}"


def files(found: Sequence[Case]) -> int:
    """How many files these are: one that was measured with several sets of instructions is one."""
    return len({case.first.weights_hash for case in found})


def drawn(found: Sequence[Case]) -> str:
    """`, 3 with random weights`; "" where none has."""
    random = files([case for case in found if case.first.model.startswith("random:")])
    return f", {random} with random weights" * bool(random)


def processors(found: Sequence[Case]) -> str:
    """`5 on AMD EPYC (AVX-512 VNNI) and 6 on Intel Xeon (AVX-512 VNNI)`: how many files."""
    on = summary.grouped(found, lambda case: case.processor)
    return listed([f"{files(on[name])} on {name}" for name in sorted(on)])


def contestants(found: Sequence[Case]) -> str:
    """`the fastest of llama.cpp, ik_llama.cpp and, on 5 of the files, OpenVINO`: what stands beside ours."""
    on = {name: files([case for case in found if name in case.others]) for case in found for name in case.others}
    every, ranked = files(found), sorted(on, key=lambda name: (-on[name], name))
    usual = [named_well(name) for name in ranked if on[name] == every]
    fewer = [(alone(found, name) or f"{on[name]} of the files", name) for name in ranked if on[name] < every]
    some = [f"on {where}, {named_well(name)}" for where, name in fewer]
    known = f"{', '.join(usual)} and, {listed(some)}" if usual and some else listed([*usual, *some])
    return f"the fastest of {known}" if len(ranked) > 1 else known


def alone(found: Sequence[Case], name: str) -> str:
    """`AMD EPYC only`, where a runtime ran on all files of some processors and on none of others; "" elsewhere."""
    on = summary.grouped(found, lambda case: wording.cpu(case.table.meta["environment"]))
    ran = {cpu: {name in case.others for case in cases} for cpu, cases in on.items()}
    if {True, False} in ran.values():
        return ""
    return f"{listed(sorted(cpu for cpu in ran if ran[cpu] == {True}))} only"


def span(found: Sequence[Case]) -> str:
    """`97 to 1,889 MB`: sizes of the files."""
    bytes_ = [case.first.weights_bytes or 0 for case in found]
    return f"{min(bytes_) / 1e6:,.0f} to {megabytes(max(bytes_))}"
