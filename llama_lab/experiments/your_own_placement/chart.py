"""The ladder with one's own placement in it, and below it what was caught."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench import summary
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times
from llama_lab.experiments.your_own_placement import finding, measure
from llama_lab.figures import notes, rows
from llama_lab.figures.style import LIMIT_COLOUR, PALETTE, headline, new, styled

WIDEST = 110  # characters of a reason; they may run on into the margin


@styled
def own_ladder(trials: Sequence[Trial], table: Sequence[dict], mine: str, seed: int = 0) -> Figure:
    """Decode tokens/s, fastest first, one's own row marked; below a line the subjects that must not pass, and what else
    has no time.

    trials: as `measure.strict` leaves them. table: `measure.table`.
    """
    below = [e for e in table if e["name"] in measure.WHAT or not e["valid_trials"]]
    placed = sorted((e for e in table if e not in below), key=lambda e: -e["tokens_per_second"]["median"])
    figure, axes = new(9.5, 0.5 * len(table) + 1.9)
    heights, limit = rows.heights(axes, [e["name"] for e in [*placed, *below]]), summary.limit(trials, measure.BASELINE)
    for entry in [*placed, *below]:
        (measured if entry["valid_trials"] else refused)(axes, trials, entry, heights[entry["name"]], seed)
    notes.bandwidth_limit(axes, limit)
    fastest = max((t.tg for t in trials if t.valid), default=0)
    axes.set_xlim(0, max(limit * 1.06, fastest * 1.05))
    axes.axhspan(heights[mine] - 0.5, heights[mine] + 0.5, color=PALETTE["yellow"], alpha=0.3, linewidth=0, zorder=0)
    axes.get_yticklabels()[[*heights].index(mine)].set_fontweight("bold")
    if below:
        axes.axhline(len(below) - 0.5, color="black", linewidth=0.8)
        rows.beside(axes, len(below) - 0.5, "below: must not pass", style="italic")
    axes.set_xlabel("decode rate, tokens/s (point: one answer; bar: median; band: its 95 % interval)")
    fates = [measure.fate(e) for e in table if e["name"] in measure.WHAT]
    headline(figure, finding.claim(fates))
    return figure


def refused(axes, trials: Sequence[Trial], entry: dict, height: float, seed: int) -> None:
    """A row without a time: who refused it, and why."""
    fate = measure.fate(entry)
    words = textwrap.shorten(f"no time. {fate.caught.capitalize()}: {fate.why}", WIDEST, placeholder=" …")
    ground = dict(facecolor="white", edgecolor="none", pad=1.5)  # reasons may reach the line of the limit
    rows.beside(axes, height, words, x=0.01, color=LIMIT_COLOUR, bbox=ground)


def measured(axes, trials: Sequence[Trial], entry: dict, height: float, seed: int) -> None:
    """A row with a rate: its answers, their median and interval, and in words the ratio and its verdict."""
    name, rate, ratio = entry["name"], entry["tokens_per_second"], entry["ratio_to_baseline"]
    known = f"baseline, n = {rate['n']}"
    if ratio["verdict"] != summary.BASELINE:
        known = f"{times(ratio)}, n = {ratio['n']}: {ratio['verdict']}"
    words = f"{rate['median']:.1f} tok/s · {known}"
    rows.subject(axes, name, [t.tg for t in summary.warm(trials, name)], rate, height, words, seed)
