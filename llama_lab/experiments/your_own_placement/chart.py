"""What became of a placement of one's own and of the subjects that had to be caught: a sentence, and the ladder with
one's own placement in it, below it what was caught."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from llama_jax.placement import Placement
from llama_lab.bench import AGAIN, summary
from llama_lab.bench.claim import Claim
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed, times
from llama_lab.experiments.your_own_placement import measure
from llama_lab.figures import notes, rows
from llama_lab.figures.style import LIMIT_COLOUR, PALETTE, footnote, headline, new, styled

ROWS = 10  # of the figure; the table has all
NO_TIME = {  # why a subject has no time, by who refused it
    measure.GATE: "its tokens are wrong",
    measure.GUARD: "it compiled while timed",
    measure.FAILED: "it failed",
}


def claim(fates: Sequence[measure.Fate]) -> Claim:
    """How many of the specimens have no time, of those that should have none; and whether the copy of the baseline has
    no verdict."""
    if not fates:
        return Claim("A placement of your own takes one line.")
    named = {fate.name: fate for fate in fates}
    bad = [fate for name, fate in named.items() if name != measure.NESTED.name]
    refused = sum(fate.caught in (measure.GATE, measure.GUARD) for fate in bad)
    words = f"A placement is one line; {refused} of {len(bad)} faulty programs are refused"
    if copy := named.get(measure.NESTED.name):
        level = "is not called different" if copy.caught == measure.INTERVAL else "gets a verdict"
        words += f"; a copy of {measure.BASELINE} {level}"
    return Claim(f"{words}.")


def finding(table: Sequence[dict], mine: str, said: str) -> str:
    """The claim, what became of one's own placement, and of each specimen. said: the line that makes the placement."""
    entries = {e["name"]: e for e in table}
    return claim([measure.fate(e) for name, e in entries.items() if name in measure.WHAT]).text(
        f"with one line, {said}: {measure.fate(entries[mine]).why}",
        *(became(entries[name]) for name in measure.WHAT if name in entries),
    )


def became(entry: dict) -> str:
    """What became of a specimen."""
    fate = measure.fate(entry)
    if fate.name == measure.NESTED.name:
        return f"“{fate.name}” is the program of {measure.BASELINE}: {verdict(entry)}"
    return f"“{fate.name}” was refused by {fate.caught or 'nobody'} ({fate.why})"


def why(entry: dict) -> str:
    """Why a specimen has no time or no verdict."""
    return verdict(entry) if entry["name"] == measure.NESTED.name and entry["valid_trials"] else measure.fate(entry).why


def verdict(entry: dict) -> str:
    """A ratio and its verdict. That of the same program twice has no advice on how many blocks would settle it."""
    ratio = entry["ratio_to_baseline"]
    return f"{times(ratio)} of {measure.BASELINE}, n = {ratio['n']}: {ratio['judged']}"


COLUMNS = replace(measure.COLUMNS, shown={**measure.COLUMNS.shown, "reason": why})


def with_voided(trials: Sequence[Trial], table: Sequence[dict]) -> list[dict]:
    """The specimens, the fastest first, as if nobody had looked: {name, rate: the median of all its answers, void ones
    too, counts: whether it does}."""
    found = []
    for e in (e for e in table if e["name"] in (*measure.WHAT, measure.BASELINE)):
        rates = [t.tg for t in trials if t.subject == e["name"] and t.phase == "warm" and len(t.token_times_ns) > 1]
        if rates:
            found.append(dict(name=e["name"], rate=float(np.median(rates)), counts=bool(e["valid_trials"])))
    return sorted(found, key=lambda e: -e["rate"])


@styled
def own_ladder(trials: Sequence[Trial], table: Sequence[dict], mine: Placement, seed: int = 0) -> Figure:
    """Decode tokens/s, fastest first, one's own row marked; below a line the subjects that were made to mislead, and
    what else has no time. Where rows are too many, those nearest to the baseline are left to the table.

    trials: as `measure.strict` leaves them. table: `measure.table`.
    """
    below = [e for e in table if e["name"] in measure.WHAT or not e["valid_trials"]]
    placed = sorted((e for e in table if e not in below), key=lambda e: -e["tokens_per_second"]["median"])
    others = [e for e in placed if e["name"] not in (measure.BASELINE, measure.BASELINE + AGAIN, mine.name)]
    nearest = sorted(others, key=lambda e: abs(math.log(e["ratio_to_baseline"]["value"])))
    left = nearest[: max(0, len(table) - ROWS)]
    placed = [e for e in placed if e not in left]
    figure, axes = new(9.5, 0.5 * len([*placed, *below]) + 1.9)
    heights, limit = rows.heights(axes, [e["name"] for e in [*placed, *below]]), summary.limit(trials, measure.BASELINE)
    for entry in [*placed, *below]:
        height, rate, ratio = heights[entry["name"]], entry["tokens_per_second"], entry["ratio_to_baseline"]
        if not entry["valid_trials"]:
            rows.beside(axes, height, f"no time: {NO_TIME[measure.fate(entry).caught]}", color=LIMIT_COLOUR)
            continue
        known = f"baseline, n = {rate['n']}"
        if entry["name"] == measure.NESTED.name and ratio["verdict"] == Verdict.UNDECIDED:
            known = f"no verdict: same program as {measure.BASELINE}"
        elif ratio["verdict"] != summary.BASELINE:
            known = f"{times(ratio)}: {ratio['judged']}"
        values = [t.tg for t in summary.warm(trials, entry["name"])]
        rows.subject(axes, entry["name"], values, rate, height, "", seed)
        rows.beside(axes, height, f"{rate['median']:.1f} tok/s · {known}")
    notes.bandwidth_limit(axes, limit)
    fastest = max((t.tg for t in trials if t.valid), default=0)
    axes.set_xlim(0, max(limit * 1.06, fastest * 1.05))
    about = dict.fromkeys(measure.WHAT, "faulty on purpose") | {measure.NESTED.name: "jit inside jit"}
    about |= {mine.name: f"jit: {', '.join(mine.jit)}"} if mine.jit else {}
    axes.set_yticks(
        list(heights.values()), ["\n".join([name, about[name]]) if name in about else name for name in heights]
    )
    axes.axhspan(
        heights[mine.name] - 0.5, heights[mine.name] + 0.5, color=PALETTE["yellow"], alpha=0.3, linewidth=0, zorder=0
    )
    axes.get_yticklabels()[[*heights].index(mine.name)].set_fontweight("bold")
    if below:
        axes.axhline(len(below) - 0.5, color="black", linewidth=0.8)
        rows.beside(axes, len(below) - 0.5, f"below: a copy of {measure.BASELINE}, and faulty ones", style="italic")
    meaning = "(point: one answer; bar: median; band: 95% interval; ratios: means of pairs)"
    axes.set_xlabel(f"decode rate, tokens/s\n{meaning}")
    if left:
        footnote(figure, f"Only in the table: {listed([e['name'] for e in left])}.")
    headline(figure, words(table, mine))
    return figure


def words(table: Sequence[dict], mine: Placement) -> str:
    """`Your placement “mine” (jit around attend and head) decodes at 0.63x [0.58, 0.67] of step's rate; 2 of 2 faulty
    programs get no time`."""
    ratio = next(e for e in table if e["name"] == mine.name)["ratio_to_baseline"]
    rate = f"decodes at {times(ratio)} of {measure.BASELINE}'s rate" if ratio["n"] else "has no valid time"
    where = f" (jit around {listed(mine.jit)})" if mine.jit else ""
    bad = [e for e in table if e["name"] in measure.WHAT and e["name"] != measure.NESTED.name]
    timeless = sum(not e["valid_trials"] for e in bad)
    caught = f"{timeless} of {len(bad)} faulty programs get no time" if bad else ""
    return "; ".join(filter(None, (f"Your placement “{mine.name}”{where} {rate}", caught)))
