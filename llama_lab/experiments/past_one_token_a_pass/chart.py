"""Charts of decoding with drafts: rates by task, and how many tokens passes make."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from llama_lab.bench.wording import counted, listed
from llama_lab.experiments.past_one_token_a_pass import table
from llama_lab.experiments.past_one_token_a_pass.measure import TASKS
from llama_lab.figures import rows
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import look
from llama_lab.figures.style import LIMIT_COLOUR, OTHERS, footnote, headline, new, styled

WORDS = {"open": "Open questions", "copy": "Copy of a passage", "edit": "Copy with a word replaced"}
BARS = dict(zip(TASKS, zip(OTHERS, ("", "//", ".."), strict=False), strict=True))


@styled
def rates(entries: Sequence[dict], model: str, missing: Sequence[dict] = ()) -> Figure:
    """Decode tokens/s by task: every answer a point, median with its 95% interval, the ratio over the same subject
    without drafts.

    entries: of `table.table`. missing: subjects that did not run, each a labelled gap.
    """
    names = list(dict.fromkeys(e["name"] for e in entries))
    gaps = [gap["name"] for gap in missing if gap["name"] not in names]
    figure, panels = new(11.5, 0.6 * max(len(names) + len(gaps), 1) + 2, columns=len(TASKS), sharey=True, sharex=True)
    every = [rate for e in entries for rate in e["points"]["decode"]] or [1.0]
    least, most = min(every), max(every)
    for axes, task in zip(panels, TASKS, strict=True):
        heights = rows.heights(axes, [*names, *gaps])
        for e in (e for e in entries if e["task"] == task):
            height, rate = heights[e["name"]], e["decode"]
            if not rate.n:
                axes.text(least, height, "no valid trial", va="center", fontsize=9, color=LIMIT_COLOUR)
                continue
            shade, marker = look(e["name"], e["backend"])
            axes.scatter(e["points"]["decode"], [height] * rate.n, s=14, alpha=0.45, color=shade, marker=marker)
            rows.interval(axes, rate, height)
            words = f"{rate.median:.0f}" + (f" · {e['ratio'].words}" if e["ratio"] else "")
            side = "left" if rate.median**2 < least * most else "right"  # of the mark is more room
            axes.text(rate.median, height + 0.27, words, fontsize=8, ha=side, va="bottom")
        for name in gaps:
            axes.text(least, heights[name], "did not run", va="center", fontsize=9, color=LIMIT_COLOUR)
        axes.set_title(WORDS[task], fontsize=11)
        axes.set_xlabel("decode rate, tokens/s (log)")
        axes.set_xscale("log")
        axes.set_xlim(0.6 * least, 1.6 * most)
        readable(axes.xaxis)
    n = counted(e["decode"].n for e in entries if e["decode"].n)
    ratios = "x: rate over that of the same subject without drafts, mean of pairs with its 95% interval"
    footnote(figure, f"Point: an answer, {n} each; mark and band: median and 95% interval; {ratios}.")
    headline(figure, table.title(entries, model))
    return figure


@styled
def tokens_a_pass(entries: Sequence[dict], name: str) -> Figure:
    """Share of the passes of one subject that made so many tokens, one bar per task."""
    figure, axes = new(9, 4)
    known = [e for e in entries if e["name"] == name and e["passes"]]
    most = max((max(e["passes"]["made"]) for e in known), default=1)
    width = 0.8 / max(len(known), 1)
    for i, e in enumerate(known):
        made, (shade, hatch) = np.array(e["passes"]["made"]), BARS[e["task"]]
        shares = [np.mean(made == n) for n in range(1, most + 1)]
        passes, accepted = f"{e['passes']['tokens_a_pass']:.2f} per pass", f"{e['passes']['accepted']:.0%}"
        words = f"{WORDS[e['task']]}: {passes}, {accepted} of drafts accepted"
        at = np.arange(1, most + 1) + (i - (len(known) - 1) / 2) * width
        axes.bar(at, shares, width, color=shade, hatch=hatch, edgecolor="white", label=words)
    axes.set_xticks(range(1, most + 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set(xlabel=f"tokens that a pass of {name} makes", ylabel="share of passes")
    means = [f"{e['passes']['tokens_a_pass']:.2f}{' tokens' * (e is known[0])}" for e in known]
    said = listed([f"{mean} on {table.NOUNS[e['task']]}" for mean, e in zip(means, known, strict=True)])
    who = "With prompt lookup" if "+lookup" in name else f"Under {name}"
    headline(figure, f"{who} the mean pass makes {said}" if said else f"Nothing is known of {name}'s passes")
    if known:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.19), fontsize=9)
    return figure
