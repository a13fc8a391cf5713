"""What each place of `jit` gains: in plain words, and in the table of where to put it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llama_lab.bench import summary
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import APART, bandwidths, round_ratio
from llama_lab.reporting import document, machines, overview, rivals
from llama_lab.reporting.document import Table
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import MACHINES, same_model, spread

SUBJECTS = ("eager", "layer", "step", "loop", "step+fused", "loop+fused", "llamacpp")
BEST = machines.BEST
KERNEL = "`loop+fused`, the loop with a compiled kernel that multiplies the file's own 4-bit blocks,"
CLAIM = (  # (above, what it is, below, what that is), a sentence each
    ("step", "decoding with one `jax.jit` around the step", "eager", "without it"),
    ("loop", "compiling the whole answer (`loop`)", "step", "compiling one token (`step`)"),
    (BEST, KERNEL, "loop", "the same loop on float32 weights"),
)
LITTLE = 1.25  # times as fast: up to here a gain is called little
HEADS = ("you want to", "put jit around", "placement", "times as fast", "[elsewhere]({})")
LOADED = "see notebook 10"  # a server's rate depends on how much is asked of it
PLACES = (  # cells of HEADS but the last two, and what those compare; or what stands there
    ("learn JAX, or stream each token as it is made", "one token", "`step`", ("step", "eager")),
    ("make whole answers, or a batch of them", "the whole answer, a `lax.while_loop`", "`loop`", ("loop", "step")),
    ("stream in bursts", "a few tokens at a time", "`chunk8`", ("chunk8", "step")),
    ("serve several requests at once", "one token of every request", "`llama-jax serve`", LOADED),
    (
        "do the first three on a CPU with a quantised file",
        "the same, with a compiled kernel inside",
        "`step+fused`, `loop+fused`, `chunk8+fused`",
        (BEST, "loop"),
    ),
)


@dataclass(frozen=True)
class Gain:
    """One subject over another in a run of both."""

    run: Setting
    above: str
    below: str

    @property
    def ratio(self) -> Ratio:
        return summary.paired_ratio(self.run.rows, self.above, self.below)

    def rate(self, name: str) -> str:
        """`65.0`: tokens a second, the median."""
        return document.short(statistics.median(trial.tg for trial in self.trials(name)))

    def trials(self, name: str) -> list[Trial]:
        return summary.warm(self.run.rows, name)

    def cells(self, others: Sequence[Machine]) -> tuple[str, str]:
        """``3.66 [3.58, 3.73] vs no `jit` `` and `3.55 to 7.28`: the last two of a line of `places`."""
        below = "no `jit`" if self.below == "eager" else f"`{self.below}`"
        elsewhere = spread(self.above, self.below, same_model(others, self.run))
        return f"{rivals.value(self.ratio)} vs {below}", elsewhere

    def aside(self, main: Setting) -> str:
        """` (notebook 02)`, where it is of another run than the main one."""
        return f" (notebook {self.run.table.section['number']})" * (self.run is not main)


def known(run: Setting) -> list[str]:
    """Those of SUBJECTS that have a valid trial in a run."""
    return [name for name in SUBJECTS if summary.warm(run.rows, name)]


def runs(behind: Sequence[Recorded]) -> list[Setting]:
    """What was timed in turn within the same blocks: the greedy trials of one setting of one table, with two of
    SUBJECTS or more; the run with most of them first. behind: the tables, in the order in which notebooks are read."""
    settings = [setting for table in behind for setting in table.settings]
    greedy = [s for s in settings if not s.first and type(s.rows[0]) is Trial and s.rows[0].sampling == "greedy"]
    return sorted((run for run in greedy if len(known(run)) > 1), key=lambda run: -len(known(run)))


def gain(measured: Sequence[Setting], above: str, below: str) -> Gain | None:
    """From the first run that has both."""
    found = (Gain(run, above, below) for run in measured)
    return next((gain for gain in found if gain.trials(above) and gain.trials(below)), None)


def claim(measured: Sequence[Setting]) -> str:
    """The comparisons of CLAIM in plain words, and the kernel's share of the limit; "" where there is none. One that is
    not of the first run names its notebook."""
    sentences = []
    for above, what, below, than in CLAIM:
        if found := gain(measured, above, below):
            rates = " → ".join(map(found.rate, (below, above)))
            share = overview.share(found.trials(above)) if above == BEST else None
            probes = bandwidths(found.run.table.meta, found.trials(above)[0].run)
            limit = f", at {limited(share, probes)}" if share else ""
            words = f"{compared(what, than, found.ratio, briefly)} ({rates} tokens/s){limit}{found.aside(measured[0])}."
            sentences.append(words[0].upper() + words[1:])
    return " ".join([f"**{sentence}**" for sentence in sentences[:1]] + sentences[1:])


def limited(share: float, probes: tuple[float, float, float] | None) -> str:
    """The share of what the memory's bandwidth allows, by the fastest probe and, where they differ, the median one.
    probes: of `bandwidths`."""
    allowed = f"{share:.0%} of what the fastest probe of the memory's bandwidth allows"
    if probes is None or probes[2] <= APART * probes[1]:
        return allowed
    return f"{allowed} ({share * probes[2] / probes[1]:.0%} by the median probe)"


def briefly(ratio: Ratio) -> str:
    """`3.66 times`, without its interval only where that is narrow and the trials decide."""
    return f"{round_ratio(ratio.value)} times" if settled(ratio) else rivals.times(ratio)


def compared(what: str, than: str, ratio: Ratio, times: Callable[[Ratio], str] = rivals.times) -> str:
    """One ratio in plain words; a number only where the trials decide and the interval is narrow enough. times: how
    it is printed."""
    if ratio.verdict == Verdict.EQUAL:
        return f"{what} is as fast as {than}, within 2 %"
    if ratio.verdict == Verdict.UNDECIDED:
        return f"whether {what} is faster than {than} these trials do not decide"
    if not settled(ratio):
        return f"{what} is {ratio.verdict} than {than}"
    if 1 < ratio.value <= LITTLE:
        return f"{what} adds little to {than}: {times(ratio)}"
    return f"{what} is {times(ratio)} as fast as {than}"


def places(measured: Sequence[Setting], others: Sequence[Machine] = (), page: str = MACHINES) -> Table:
    """Where to put jit, and what it gains there. others: contributed machines. page: a link to theirs."""

    def cells(sides: tuple[str, str] | str) -> tuple[str, str]:
        found = None if isinstance(sides, str) else gain(measured, *sides)
        if found is None:
            return (sides if isinstance(sides, str) else ""), ""
        here, elsewhere = found.cells(others)
        return here + found.aside(measured[0]), elsewhere

    heads = (*HEADS[:-1], HEADS[-1].format(page))
    return Table(heads, [(*row, *cells(sides)) for *row, sides in PLACES])
