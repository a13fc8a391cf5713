"""What became of a placement of one's own and of the subjects that had to be caught: a sentence, and the ladder with
one's own placement in it, below it what was caught."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench import AGAIN, summary
from llama_lab.bench.claim import Claim
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import listed, times
from llama_lab.experiments.your_own_placement import measure
from llama_lab.figures import notes, rows
from llama_lab.figures.style import LIMIT_COLOUR, PALETTE, footnote, headline, new, styled

WIDEST = 110  # characters of a reason; they may run on into the margin
ROWS = 12  # of the figure; the table has all


def claim(fates: Sequence[measure.Fate]) -> Claim:
    """How many of the specimens that were made to mislead were caught."""
    if not fates:
        return Claim("A placement of your own takes one line.")
    caught = sum(bool(fate.caught) for fate in fates)
    return Claim(
        f"You add a placement in one line, and the checks caught {caught} of {len(fates)} that were made to mislead."
    )


def finding(table: Sequence[dict], mine: str, said: str) -> str:
    """The claim, what became of one's own placement, and of each specimen. said: the line that makes the placement."""
    fates = {e["name"]: measure.fate(e) for e in table}
    specimens = [fates[name] for name in measure.WHAT if name in fates]
    return claim(specimens).text(
        f"with one line, {said}: {fates[mine].why}",
        *(f"“{fate.name}” was caught by {fate.caught or 'nobody'} ({fate.why})" for fate in specimens),
    )


@styled
def own_ladder(trials: Sequence[Trial], table: Sequence[dict], mine: str, seed: int = 0) -> Figure:
    """Decode tokens/s, fastest first, one's own row marked; below a line the subjects that were made to mislead, and
    what else has no time. Where rows are too many, those nearest to the baseline are left to the table.

    trials: as `measure.strict` leaves them. table: `measure.table`.
    """
    below = [e for e in table if e["name"] in measure.WHAT or not e["valid_trials"]]
    placed = sorted((e for e in table if e not in below), key=lambda e: -e["tokens_per_second"]["median"])
    others = [e for e in placed if e["name"] not in (measure.BASELINE, measure.BASELINE + AGAIN, mine)]
    nearest = sorted(others, key=lambda e: abs(math.log(e["ratio_to_baseline"]["value"])))
    left = nearest[: max(0, len(table) - ROWS)]
    placed = [e for e in placed if e not in left]
    figure, axes = new(9.5, 0.5 * len([*placed, *below]) + 1.9)
    heights, limit = rows.heights(axes, [e["name"] for e in [*placed, *below]]), summary.limit(trials, measure.BASELINE)
    for entry in [*placed, *below]:
        height, rate, ratio = heights[entry["name"]], entry["tokens_per_second"], entry["ratio_to_baseline"]
        if not entry["valid_trials"]:
            fate = measure.fate(entry)
            words = textwrap.shorten(f"no time. {fate.caught.capitalize()}: {fate.why}", WIDEST, placeholder=" …")
            ground = dict(facecolor="white", edgecolor="none", pad=1.5)  # reasons may reach the line of the limit
            rows.beside(axes, height, words, x=0.01, color=LIMIT_COLOUR, bbox=ground)
            continue
        known = f"baseline, n = {rate['n']}"
        if ratio["verdict"] != summary.BASELINE:
            known = f"{times(ratio)}, n = {ratio['n']}: {ratio['judged']}"
        values = [t.tg for t in summary.warm(trials, entry["name"])]
        rows.subject(axes, entry["name"], values, rate, height, f"{rate['median']:.1f} tok/s · {known}", seed)
    notes.bandwidth_limit(axes, limit)
    fastest = max((t.tg for t in trials if t.valid), default=0)
    axes.set_xlim(0, max(limit * 1.06, fastest * 1.05))
    axes.axhspan(heights[mine] - 0.5, heights[mine] + 0.5, color=PALETTE["yellow"], alpha=0.3, linewidth=0, zorder=0)
    axes.get_yticklabels()[[*heights].index(mine)].set_fontweight("bold")
    if below:
        axes.axhline(len(below) - 0.5, color="black", linewidth=0.8)
        rows.beside(axes, len(below) - 0.5, "below: made to mislead, or without a time", style="italic")
    axes.set_xlabel("decode rate, tokens/s (point: one answer; bar: median; band: its 95 % interval)")
    if left:
        footnote(figure, f"Only in the table: {listed([e['name'] for e in left])}.")
    headline(figure, claim([measure.fate(e) for e in table if e["name"] in measure.WHAT]))
    return figure
