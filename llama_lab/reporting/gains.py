"""What each place of `jit` gains: in plain words, and in the table of where to put it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llama_lab.bench import standings, summary, wording
from llama_lab.bench.claim import settled
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import round_ratio, weights
from llama_lab.reporting import document, machines, overview, rivals
from llama_lab.reporting.document import Table
from llama_lab.reporting.machines import Machine
from llama_lab.reporting.overview import Recorded, Setting
from llama_lab.reporting.repeats import MACHINES, same_model, spread

SUBJECTS = ("eager", "layer", "step", "loop", "step+fused", "loop+fused", "llamacpp")
BEST = machines.BEST
KERNEL = "`loop+fused`, whose step is one Numba kernel (not XLA's code) on quantised weights,"
CLAIM = (  # (above, what it is, below, what that is), a sentence each; {}: the weights of what is below
    ("step", "greedy decoding with one `jax.jit` around the step", "eager", "without it"),
    ("loop", "`loop`, the whole answer in one program,", "step", "`step`"),
    (BEST, KERNEL, "loop", "`loop` on {}"),
)
ADVICE = "put one `jax.jit` around the step that makes a token (`step`): greedy decoding"  # first, where it gains
LITTLE = 1.25  # times as fast: up to here it is *only* so many times
HEADS = ("you want to", "put jit around", "placement", "gain")
PLACES = (  # cells of HEADS but the last, and what those compare; None of a server, whose rate depends on its load
    ("learn JAX, or stream each token as it is made", "one token", "`step`", ("step", "eager")),
    ("generate whole answers", "the whole answer, a `lax.while_loop`", "`loop`", ("loop", "step")),
    ("stream in bursts", "eight tokens at a time", "`chunk8`", ("chunk8", "step")),
    (
        "run any of these faster on a CPU, from a quantised file",
        "the same, calling one kernel per token",
        "`step+fused`, `loop+fused`, `chunk8+fused`",
        (BEST, "loop"),
    ),
    ("serve several requests at once", "one token of every request", "`llama-jax serve`", None),
)


@dataclass(frozen=True)
class Gain:
    """One subject over another in a run of both."""

    run: Setting
    above: str
    below: str

    @cached_property
    def ratio(self) -> Ratio:
        return summary.paired_ratio(self.run.rows, self.above, self.below)

    def words(self, what: str, than: str, say: Callable[[Ratio], str]) -> str:
        """The comparison in plain words. than: with a place for the weights of what is below. say: its number."""
        gains = self.above == CLAIM[0][0] and self.ratio.verdict == Verdict.FASTER
        above, below = (self.trials(name)[0] for name in (self.above, self.below))
        same = above.weights_hash == below.weights_hash and standings.weights(below) == "float32"
        read = "the same weights in float32" if same else kept(self.run, self.below)
        return compared(ADVICE if gains else what, than.format(read), self.ratio, say)

    def rate(self, name: str) -> str:
        """`65.0`: tokens a second, the median."""
        return document.short(statistics.median(trial.tg for trial in self.trials(name)))

    def bytes_read(self) -> str:
        """`, reading 18% of the bytes, at 67% of the memory-bandwidth limit`; "" of what is unknown."""
        above, below = (self.trials(name) for name in (self.above, self.below))
        if not above[0].bytes_per_token or not below[0].bytes_per_token:
            return ""
        share = overview.share(above)
        limit = f", at {share:.0%} of the memory-bandwidth limit" if share else ""
        return f", reading {above[0].bytes_per_token / below[0].bytes_per_token:.0%} of the bytes{limit}"

    def trials(self, name: str) -> list[Trial]:
        return summary.warm(self.run.rows, name)

    def cells(self, others: Sequence[Machine]) -> tuple[str, str]:
        """``3.66 [3.58, 3.73] vs no `jit` `` and `3.55 to 7.28`: the last two of a line of `places`."""
        below = "no `jit`" if self.below == "eager" else f"`{self.below}`"
        elsewhere = spread(self.above, self.below, same_model(others, self.run))
        above = f"`{self.above}` " * (self.above == BEST)  # its line names several placements
        return f"{rivals.value(self.ratio)} {above}vs {below}{self.ratio.aside}", elsewhere

    def aside(self, main: Setting) -> str:
        """` (notebook 02, AMD EPYC)`, where it is of another run than the main one, and of another processor."""
        here, there = (wording.processor(run.table.meta["environment"]) for run in (main, self.run))
        words = ", ".join([f"notebook {self.run.table.section['number']}", *[there] * (there != here)])
        return f" ({words})" * (self.run is not main)


def kept(run: Setting, name: str) -> str:
    """`float32 weights`: what a subject reads."""
    return weights(standings.weights(summary.warm(run.rows, name)[0]))


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
    """From the first run that has both in the same blocks."""
    found = (Gain(run, above, below) for run in measured)
    return next((gain for gain in found if gain.ratio.n), None)


def leading(measured: Sequence[Setting]) -> Setting:
    """The run of the first of `sentences`; the first run where there is none."""
    found = (gain(measured, above, below) for above, _, below, _ in CLAIM)
    return next((gained.run for gained in found if gained), measured[0])


def sentences(measured: Sequence[Setting]) -> dict[str, str]:
    """The comparisons of CLAIM in plain words by what is compared; none where there is none. One that is not of the
    first run names its notebook."""
    said = {}
    for above, what, below, than in CLAIM:
        if found := gain(measured, above, below):
            rates = " → ".join(map(found.rate, (below, above)))
            read = found.bytes_read() if above == BEST else ""
            words = f"{found.words(what, than, briefly)} ({rates} tokens/s{read}){found.aside(measured[0])}."
            said[above] = words[0].upper() + words[1:]
    return said


def briefly(ratio: Ratio) -> str:
    """`3.66 times`, without its interval only where that is narrow and the trials decide."""
    return f"{round_ratio(ratio.value)} times" if settled(ratio) else rivals.times(ratio)


def compared(what: str, than: str, ratio: Ratio, say: Callable[[Ratio], str] = briefly) -> str:
    """One ratio in plain words; a number only where the trials decide. say: the number."""
    if ratio.verdict == Verdict.EQUAL:
        return f"{what} is as fast as {than}, within 2%"
    if ratio.verdict == Verdict.UNDECIDED:
        return f"whether {what} is faster than {than} these trials do not decide"
    if not settled(ratio):
        return f"{what} is {ratio.verdict} than {than}"
    if 1 < ratio.value <= LITTLE:
        return f"{what} is only {say(ratio)} as fast as {than}"
    return f"{what} is {say(ratio)} as fast as {than}"


def places(
    measured: Sequence[Setting], others: Sequence[Machine] = (), page: str = MACHINES, loaded: str = ""
) -> Table:
    """Where to put jit, and what it gains there. others: contributed machines. page: a link to theirs. loaded: where a
    server's rates stand."""

    def cells(sides: tuple[str, str] | None) -> tuple[str, str]:
        if sides is None or (found := gain(measured, *sides)) is None:
            return loaded * (sides is None), "–" * bool(loaded and sides is None)
        here, elsewhere = found.cells(others)
        return here + found.aside(measured[0]), elsewhere

    count = len(same_model(others, measured[0])) if measured else 0
    machine = f"{count} machines" if count > 1 else "another machine"
    elsewhere = [f"same benchmark on [{machine}]({page})"] * bool(count)
    rows = [(*row, *cells(sides)[: 1 + len(elsewhere)]) for *row, sides in PLACES]
    return Table((*HEADS, *elsewhere), rows)
