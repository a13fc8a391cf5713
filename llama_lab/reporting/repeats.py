"""What other runs of the headline's model say: the compiled kernel beside llama.cpp in other tables and on contributed
machines, and the range of a ratio over those machines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_lab.bench import summary, wording
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import round_ratio
from llama_lab.reporting import document, overview, rivals
from llama_lab.reporting.document import Link, Table
from llama_lab.reporting.machines import BEST, LLAMA_CPP, OTHER_RUNS, PAGE, Machine
from llama_lab.reporting.overview import Setting
from llama_lab.reporting.rivals import megabytes

MACHINES = f"docs/{PAGE}.md"  # as README.md links to it
ID = document.anchor(OTHER_RUNS)  # of the table's place in the page of machines
IK = "ik-llamacpp"


@dataclass(frozen=True)
class Repeat:
    """One run. where: the name of its table and setting, or of its machine. section: of the table's notebook; None of
    a machine. about: its environment."""

    ratio: Ratio
    trials: Sequence[Trial]
    where: str
    section: dict | None
    about: dict
    day: str

    @property
    def processor(self) -> str:
        return wording.processor(self.about)

    def row(self) -> tuple:
        """A line of `table`."""
        rival, best = (summary.warm(self.trials, name) for name in (LLAMA_CPP, BEST))
        page = self.section and self.section.get("page")
        where = Link(self.where, Path(page).with_suffix("").as_posix()) if page else self.where
        file = f"{overview.kept(rival[0], self.trials)}, {megabytes(rival[0].weights_bytes)}"
        pairs = f"{self.ratio.n} in {max(self.ratio.clusters, 1)}"
        rates = [document.short(statistics.median(trial.tg for trial in trials)) for trials in (best, rival)]
        ratios = [overview.ratio_cell(ratio) for ratio in (self.ratio, summary.paired_ratio(self.trials, BEST, IK))]
        return (where, self.processor, self.day, file, overview.lengths(best), pairs, *rates, *ratios)


def repeats(run: Setting, measured: Sequence[Setting], machines: Sequence[Machine]) -> list[Repeat]:
    """Those of the run's file, whatever name their tables have for it, and those of its model on other machines;
    without the run itself and its contribution, from the least ratio to the most. What has several answers a block,
    such as a conversation, is none."""
    found = {
        called(r): (r.rows, r.table.section, r.table.meta["environment"], r.table.meta["created"])
        for r in measured
        if files(r) & files(run) and called(r) != called(run)
    }
    found |= {
        m.about["machine"]: (m.trials, None, m.environment, m.about["measured"]) for m in same_model(machines, run)
    }
    made = [
        Repeat(ratio, trials, where, section, about, created[:10])
        for where, (trials, section, about, created) in found.items()
        if once_a_block(trials) and (ratio := summary.paired_ratio(trials, BEST, LLAMA_CPP)).n
    ]
    return sorted(made, key=lambda repeat: repeat.ratio.value)


def files(run: Setting) -> set[str]:
    """Hashes of the weights that llama.cpp read."""
    return {trial.weights_hash for trial in summary.warm(run.rows, LLAMA_CPP)}


def called(run: Setting) -> str:
    """The name of its table, and its setting."""
    return " · ".join(filter(None, (run.table.path.stem, run.setting)))


def once_a_block(trials: Sequence[Trial]) -> bool:
    kernel = summary.warm(trials, BEST)
    return len({(t.process, t.block) for t in kernel}) == len(kernel)


def table(found: Sequence[Repeat]) -> Table:
    """A line per run, from the least ratio to the most."""
    ratios = (f"{BEST} over llama.cpp", f"{BEST} over ik_llama.cpp")
    rates = (f"{BEST}, tokens/s", "llama.cpp, tokens/s", *ratios)
    heads = ("Run", "Processor", "Measured", "File", "Prompt + answer", "Pairs in processes", *rates)
    return Table(heads, [repeat.row() for repeat in found], frozenset({8, 9}))


def far_apart(found: Sequence[Repeat]) -> bool:
    """Whether the intervals of the least and the most, which come first and last, have nothing in common."""
    return len(found) > 1 and found[0].ratio.high < found[-1].ratio.low


def ranging(found: Sequence[Repeat], here: str, link: str) -> str:
    """`2.82 times as fast as llama.cpp in the first figure's run and 1.50 to 4.82 times in 7 other runs (cause of the
    spread not established)`, and in how many of them it is faster where it is not in all. here: its ratio in the first
    figure's run. link: to `table`."""
    if not found:
        return f"{here} as fast as llama.cpp"
    ratios = [repeat.ratio for repeat in found]
    least_to_most = wording.span((ratio.value for ratio in ratios), round_ratio)
    where = f"[{f'{len(found)} other runs' if len(found) > 1 else 'another run'}]({link}#{ID})"
    often = f", {rivals.often(ratios)}" * any(ratio.verdict != Verdict.FASTER for ratio in ratios)
    why = " (cause of the spread not established)" * far_apart(found)
    return f"{here} as fast as llama.cpp in the first figure's run and {least_to_most} times in {where}{why}{often}"


def same_model(others: Sequence[Machine], run: Setting) -> list[Machine]:
    """Those that measured the run's model, without the run's own contribution."""
    created = run.table.meta["created"]
    return [m for m in others if m.trials[0].model == run.model and m.about["measured"] != created]


def spread(above: str, below: str, others: Sequence[Machine]) -> str:
    """`3.55 to 7.28`: one subject over another on other machines; "" where none has both."""
    found = [ratio for machine in others if (ratio := summary.paired_ratio(machine.trials, above, below)).n]
    return wording.span((ratio.value for ratio in found), round_ratio)
