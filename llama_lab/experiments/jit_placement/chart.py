"""What each token as one program gains and what sampling adds, in sentences; and charts of placements: rate,
distribution, sampling, latency, compilation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from llama_lab.bench import AGAIN, SAMPLED, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import counted, interval, listed, span, times, within
from llama_lab.experiments.jit_placement.measure import BASELINE, PIPELINES, Cost
from llama_lab.figures import bars, labels, notes, rows
from llama_lab.figures.bars import Part
from llama_lab.figures.style import GREY, LIMIT_COLOUR, STAGES, colour, footnote, headline, new, styled

COMPILED = {"step": "one program per token", "split": "a sampler jitted apart"}  # of PIPELINES
COMPILING = {
    "trace": ("trace_ns", Part(STAGES["trace"])),
    "lower": ("lower_ns", Part(STAGES["lower"], "//")),
    "compile (XLA)": ("backend_ns", Part(STAGES["compile"])),
}


def claim(trials: Sequence[Trial], table: list[dict]) -> Claim:
    """What one program per token gains over no jit, how much of that `ops` gains already, and what several tokens a
    program add."""
    rates = {r["name"]: r["tokens_per_second"]["median"] for r in table if r["valid_trials"] and r["tokens_equal"]}
    several = [name for name in rates if name == "loop" or name.startswith("chunk")]
    most = max(several, key=rates.get, default="loop")
    gain, more, ops = (
        Comparison(summary.paired_ratio(trials, *pair), *pair)
        for pair in (("step", "eager"), (most, "step"), ("ops", "eager"))
    )
    what = "the whole answer" if most == "loop" else "several at once"
    said = "One program a token (`step`) is {gain} times as fast as no jit"
    added = "; compiling {what} adds {more:more}."
    numbers = dict(gain=gain, more=more, ops=ops, what=what)
    return (
        stated("`step` is {gain} times as fast as no jit, `ops` {ops}" + added, **numbers)
        or stated(said + "; jitting single operations (`ops`) already gives {ops}.", **numbers)
        or stated(said + added, **numbers)
        or stated(said + ".", **numbers)
        or gain.generic
    )


def answer(trials: Sequence[Trial], table: list[dict], *details: str) -> str:
    """The whole finding. Where `step` and `ops` are compared with no jit, their intervals stand in the sentence, in
    place of the ratios after it."""
    said = claim(trials, table)
    over = {c.subject: c for c in said.evidence if c.baseline == "eager"}
    if set(over) != {"step", "ops"}:
        return said.text(*details)
    step, ops = (f"{over[name]}{within(over[name].ratio)}" for name in ("step", "ops"))
    sentence = f"One program a token (`step`) is {step} times as fast as no jit, `ops` {ops}."
    others = tuple(c for c in said.evidence if c.baseline != "eager")
    pairs = span((c.ratio.n for c in over.values()), ".0f")
    return Claim(sentence, others).text(f"these ratios are means of n = {pairs} pairs", *details)


def sampling_words(costs: Sequence[Cost], settings: str) -> str:
    """What sampling is shown to add to a token, under the baseline in ms, and where more than chance may."""
    if not costs:
        return "No placement has valid answers of both kinds side by side, so what sampling costs is not known"
    own = next((c.added for c in costs if c.name == BASELINE), None)
    under = f" ({own.median:.2f} ms {interval(own)} under {BASELINE})" if own else ""
    title = sampling_title(costs).removesuffix(".")
    return f"{title[0].lower()}{title[1:]}{under}: {settings} ({chance_words(costs)})"


def by_chance(least: int, intervals: int) -> float:
    """The chance that so many 95% intervals or more, of independent effects that are all 0, leave out 0."""
    fewer = (math.comb(intervals, k) * 0.05**k * 0.95 ** (intervals - k) for k in range(least))
    return 1 - sum(fewer)


def left_out(costs: Sequence[Cost]) -> list[str]:
    """The placements under which the interval of what sampling adds leaves out 0."""
    return [c.name for c in costs if c.added.low > 0 or c.added.high < 0]


def chance_words(costs: Sequence[Cost]) -> str:
    """Under which placements the interval excludes 0, and how often chance alone does that under as many."""
    names, n = left_out(costs), len(costs)
    if not names:
        return f"the interval of {costs[0].name} holds 0" if n == 1 else f"each of the {n} intervals holds 0"
    chance, only = by_chance(len(names), n), "only " * (len(names) < n)
    often = f"{chance:.0%}" if chance >= 0.01 else "less than 1%"
    said = f"of {n} placement{'s' * (n > 1)} {only}{listed(names)} show{'s' * (len(names) == 1)} a difference"
    return f"{said}, as chance alone makes {len(names)} or more in {often} of such runs"


def excluding(costs: Sequence[Cost]) -> str:
    """`only layer's interval excludes 0`; "" where each holds it."""
    names = left_out(costs)
    which = f"{names[0]}'s interval excludes" if len(names) == 1 else f"the intervals of {listed(names)} exclude"
    return f"{'only ' * (len(names) < len(costs))}{which} 0" if names else ""


@styled
def throughput(trials: Sequence[Trial], table: list[dict], seed: int = 0) -> Figure:
    """Decode tokens/s: trials as points, median with its 95% interval, ratio to the baseline, the bandwidth limit."""
    figure, axes = new(9.5, 0.55 * len(table) + 1.6)
    heights, limit = rows.heights(axes, [r["name"] for r in table]), summary.limit(trials, summary.baseline_of(table))
    said = claim(trials, table)
    over = {c.subject: f"\n{c.ratio.words} of {c.baseline}" for c in said.evidence if c.baseline == "eager"}
    for line in table:
        name, rate, height = line["name"], line["tokens_per_second"], heights[line["name"]]
        void = [t.tg for t in summary.warm(trials, name, valid=False) if not t.valid and not t.wrong]
        axes.scatter(void, [height] * len(void), marker="x", s=18, color="#999999", linewidths=0.8)
        if rate["n"]:
            valid = [t.tg for t in summary.warm(trials, name)]
            ratio = line["ratio_to_baseline"]
            known = f"{times(ratio)} of {BASELINE}, n = {ratio['n']}"
            known = f"baseline, n = {rate['n']}" if ratio["verdict"] == summary.BASELINE else known
            words = f"{rate['median']:.1f} tok/s · {known}{over.get(name, '')}"
            rows.subject(axes, name, valid, rate, height, words, seed, mark=20)
        else:
            reasons = "  no valid trial: " + "; ".join(line["reasons"])[:80]
            rows.beside(axes, height, reasons, x=0, color=LIMIT_COLOUR)
    notes.bandwidth_limit(axes, limit)
    axes.set_xlim(0, max(limit * 1.06, *(t.tg * 1.05 for t in trials if t.phase == "warm" and t.tg > 0)))
    axes.set_xlabel(
        "decode rate, tokens/s\n(point: one answer; bar: median; band: 95% interval; ratios: means of pairs)"
    )
    headline(figure, said)
    return figure


def answers(trials: Sequence[Trial]) -> pd.DataFrame:
    """Sampled answers of the original's two pipelines, a row each: pipeline, block, tokens/s."""
    return pd.DataFrame(
        [
            (label, block, rate)
            for name, label in PIPELINES.items()
            for (_, block), rate in sorted(summary.rates(trials, name + SAMPLED).items())
        ],
        columns=["pipeline", "block", "tokens/s"],
    )


@styled
def pipelines(answers: pd.DataFrame, ratio: Ratio, seed: int = 0) -> Figure:
    """Both pipelines' answers, a row each (left), and the second pipeline over the first question by question (right).
    answers: of the function of that name. ratio: of their pairs."""
    figure, (left, right) = new(9.5, 2.6, columns=2, width_ratios=(3, 2))
    first, second = (answers[answers.pipeline == label].set_index("block")["tokens/s"] for label in PIPELINES.values())
    heights = rows.heights(left, list(PIPELINES.values()))
    numbered = {name: label.partition(" (")[0] for name, label in PIPELINES.items()}
    left.set_yticks([*heights.values()], [f"{name} ({label}):\n{COMPILED[name]}" for name, label in numbered.items()])
    for (name, label), rates in zip(PIPELINES.items(), (first, second), strict=True):
        rows.points(left, rates.tolist(), heights[label], colour(name), seed)
        rows.median(left, rates.median(), heights[label])
    left.set_xlabel("decode rate of sampled answers, tokens/s\n(point: one answer; bar: median)")
    rows.points(right, (second / first).dropna().tolist(), 0, colour("split"), seed)
    rows.interval(right, ratio, 0)
    right.axvline(1, color=GREY, linewidth=0.9)
    side = dict(ha="right", xytext=(-3, 0)) if ratio.value < 1 else dict(ha="left", xytext=(3, 0))
    right.annotate("same rate", (1, -0.9), textcoords="offset points", fontsize=9, color=GREY, **side)
    right.locator_params(axis="x", nbins=6)
    meaning = f"(point: one of n = {ratio.n} questions;\nbar: mean; band: its 95% interval)"
    right.set(yticks=[], ylim=(-1, 1), xlabel=f"rate of split over that of step\n{meaning}")
    headline(figure, comparison(ratio) + ratio.aside)
    return figure


def comparison(ratio: Ratio) -> str:
    """What the pairs say of the two pipelines, in three digits: the ratio is close to 1."""
    step, split = (f"{COMPILED[name]} ({name})" for name in PIPELINES)
    said = {Verdict.FASTER: "is faster than", Verdict.SLOWER: "is slower than", Verdict.EQUAL: "is as fast as"}
    words = f"{split} {said.get(ratio.verdict, 'is slower than' if ratio.value < 1 else 'is faster than')} {step}"
    words = words if ratio.verdict in said else f"whether {words} is undecided"
    return f"{words[0].upper()}{words[1:]}: {ratio.value:.3f}x{within(ratio, '.3f')}"


def allowed(ratio: Ratio) -> str:
    """What undecided pairs leave open about the second pipeline; "" where they decide, or have no interval."""
    if ratio.verdict != Verdict.UNDECIDED or ratio.n < 2:
        return ""
    least, most = (f"{abs(end - 1):.0%} {'faster' if end > 1 else 'slower'}" for end in (ratio.low, ratio.high))
    return f"even the pairs do not decide: pipeline 2 may be anything from {least} to {most}"


@styled
def sampling(costs: Sequence[Cost], settings: str, seed: int = 0) -> Figure:
    """Milliseconds that drawing a token adds to choosing the best one, a row per placement."""
    figure, axes = new(9.5, 0.55 * len(costs) + 1.6)
    heights = rows.heights(axes, [c.name for c in costs])
    steady = [c for c in costs if c.name != "eager"] or costs  # the points of eager scatter far more
    most = 1.1 * max((abs(point) for c in steady for point in c.points), default=1.0)
    hidden = {c.name: sum(abs(point) > most for point in c.points) for c in costs}
    beyond = ", ".join(f"{count} of {name}" for name, count in hidden.items() if count)
    doubt = bool(left_out(costs)) and by_chance(len(left_out(costs)), len(costs)) >= 0.05
    chance = "\nexcludes 0, perhaps by chance" * doubt
    for cost in costs:
        words = f"{cost.added.median:+.2f} ms{within(cost.added)}" + chance * (cost.name in left_out(costs))
        near = [point for point in cost.points if abs(point) <= most]
        rows.subject(axes, cost.name, near, cost.added, heights[cost.name], words, seed, mark=20)
    axes.set_xlim(-most, most)
    axes.axvline(0, color=GREY, linewidth=0.9)
    over = dict(ha="center", va="bottom", fontsize=9, color=GREY, transform=axes.get_xaxis_transform())
    axes.text(0, 1, "same as greedy", **over)
    meant = f"point: one of {counted(c.ratio.n for c in costs)} pairs; bar: median; band: 95% interval"
    axes.set_xlabel(f"ms per token: sampled minus greedy, which takes the likeliest token\n({meant})")
    headline(figure, sampling_title(costs) + f"; {excluding(costs)}, perhaps by chance" * bool(chance))
    said = chance_words(costs)
    footnote(figure, f"{settings}. {said[0].upper()}{said[1:]}." + f" Points beyond the axis: {beyond}." * bool(beyond))
    return figure


def sampling_title(costs: Sequence[Cost]) -> str:
    """What sampling adds to a token under the jitted placements, and without jit; or where it adds time at all, unless
    chance alone may leave out 0 as often."""
    if not costs:
        return "What sampling adds to a token was not measured"
    added = {cost.name: cost.added for cost in costs}
    jitted = [added[name].median for name in added if name != "eager"]
    if not jitted or any(each.low <= 0 for name, each in added.items() if name != "eager"):
        shown = [f"{name} ({each.median:.1f} ms)" for name, each in added.items() if each.low > 0]
        shown *= by_chance(len(left_out(costs)), len(costs)) < 0.05
        return "Sampling is not shown to add time to a token" + f", except under {listed(shown)}" * bool(shown)
    words = f"Sampling adds {min(jitted):.1f} to {max(jitted):.1f} ms to a token under jit"
    return words + (f", {added['eager'].median:.1f} ms without jit" if "eager" in added else "")


def overlapped(costs: Sequence[Cost]) -> str:
    """Whether sampling adds less under `eager` than under any jitted placement; "" where that was not measured."""
    mine = next((c.added for c in costs if c.name == "eager"), None)
    others = [c.added for c in costs if c.name != "eager"]
    if mine is None or not others:
        return ""
    if mine.low <= 0 <= mine.high:
        return f"under eager its cost does not show: {mine.median:.1f} ms {interval(mine, '.1f')}"
    less = mine.high < min(each.low for each in others)
    words = "less than under any jitted placement" if less else "not shown to be less than under the others"
    return f"under eager it adds {mine.median:.1f} ms {interval(mine, '.1f')}, {words}"


@styled
def latency(trials: Sequence[Trial], table: list[dict], seed: int = 0) -> Figure:
    """The longest gap between two tokens of an answer (left), and the time to first token (right), warm, a row each."""
    figure, (left, right) = new(11, 0.5 * len(table) + 1.8, columns=2, sharey=True)
    heights = rows.heights(left, [r["name"] for r in table])
    right.grid(axis="y", visible=False)
    over = dict(textcoords="offset points", fontsize=8.5, ha="center")
    for name, height in ((line["name"], heights[line["name"]]) for line in table if line["valid_trials"]):
        good = summary.warm(trials, name)
        for axes, seconds in ((left, [max(t.itl, default=np.nan) for t in good]), (right, [t.ttft for t in good])):
            ms = 1e3 * np.array(seconds)
            rows.points(axes, ms, height, colour(name), seed)
            rows.median(axes, np.median(ms), height)
            axes.annotate(f"{np.median(ms):.0f}", (np.median(ms), height), (0, 11), **over)
    for axes, words in ((left, "longest gap between two tokens of an answer"), (right, "time to first token")):
        axes.set(xscale="log", xlabel=f"{words}, ms, log scale\n(point: one answer; bar: median)")
        labels.readable(axes.xaxis)
    headline(figure, longest_wait(trials, [r["name"] for r in table if r["valid_trials"] and AGAIN not in r["name"]]))
    n = counted(r["valid_trials"] for r in table)
    footnote(figure, f"{n} answers each. A chunk and a loop deliver many tokens at once, after one long gap.")
    return figure


def longest_wait(trials: Sequence[Trial], names: Sequence[str]) -> str:
    """The placements whose reader waits longest and shortest for the next token."""
    gaps = {n: 1e3 * np.median([max(t.itl, default=np.nan) for t in summary.warm(trials, n)]) for n in names}
    if not gaps:
        return "No placement has a valid first token"
    least, most = (pick(gaps, key=gaps.get) for pick in (min, max))
    words = f"In the median answer the longest gap between two tokens is {gaps[most]:,.0f} ms under {most}"
    return f"{words}, {gaps[least]:,.0f} ms under {least}"


@styled
def compilation(trials: Sequence[Trial], names: Sequence[str]) -> Figure:
    """What the first request of a fresh process compiles: seconds by stage (left), number of programs (right)."""
    figure, (left, right) = new(11, 0.5 * len(names) + 1.8, columns=2, sharey=True)
    heights = rows.heights(left, names)
    right.grid(axis="y", visible=False)
    cold = {name: [t for t in trials if t.subject == name and t.phase == "cold" and t.valid] for name in names}
    costs = {}
    for name, height in heights.items():
        lengths = []
        for label, (field, part) in COMPILING.items():
            mean = float(np.mean([getattr(t, field) for t in cold[name]])) / 1e9  # means add up, medians do not
            lengths.append((mean, part._replace(label=label if height == 0 else None)))
        seconds, programs = bars.stack(left, height, lengths, 0.6), int(np.median([t.compiled for t in cold[name]]))
        left.text(seconds, height, f" {short(seconds)}", va="center", fontsize=9)
        costs[name] = seconds, programs
        right.barh(height, programs, color=colour(name), height=0.6)
        right.text(programs, height, f" {programs}", va="center", fontsize=9)
    n = min(map(len, cold.values()), default=0)
    left.set_xlabel(f"seconds to build programs for a first answer\n(mean of n = {n} fresh processes, nothing cached)")
    right.set_xlabel("programs compiled")
    left.margins(x=0.15)
    right.margins(x=0.15)
    left.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.2), ncols=3)
    headline(figure, built(costs))
    return figure


def built(costs: Mapping[str, tuple[float, int]]) -> str:
    """What the placement of most programs, or the slowest of these, builds for a first answer, beside the baseline or
    the one of fewest. costs: name → (seconds, programs)."""
    most, least = (pick(costs, key=lambda name: costs[name][::-1]) for pick in (max, min))
    names = dict.fromkeys((most, BASELINE if BASELINE in costs and most != BASELINE else least))
    (first, (seconds, programs)), *others = ((name, costs[name]) for name in names)
    words = f"For its first answer {first} builds {programs} program{'s' * (programs != 1)} in {short(seconds)}"
    return words + "".join(f"; {name} builds {count} in {short(seconds)}" for name, (seconds, count) in others)


def short(seconds: float) -> str:
    """`3.9 s`, `0.04 s`."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2f} s"
