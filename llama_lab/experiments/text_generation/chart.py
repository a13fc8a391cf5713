"""When tokens reach the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from llama_lab.bench import summary
from llama_lab.bench.record import Trial
from llama_lab.experiments.text_generation import finding
from llama_lab.experiments.text_generation.measure import CACHED, UNCACHED
from llama_lab.figures import notes
from llama_lab.figures.style import colour, headline, new, styled


@styled
def arrivals(trials: Sequence[Trial], names: dict[str, str]) -> Figure:
    """Tokens on the host against time since the request: each subject's median answer as a staircase. names: subject →
    label."""
    figure, axes = new(9.5, 4.8)
    for (subject, label), style in zip(names.items(), ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), strict=False):
        good = sorted(summary.warm(trials, subject), key=lambda t: t.seconds)
        if not good:
            continue
        typical = good[(len(good) - 1) // 2]
        times = np.array(typical.token_times_ns) / 1e9
        shade = colour(subject)
        axes.step(
            [0, *times],
            [0, *range(1, len(times) + 1)],
            linestyle=style,
            where="post",
            color=shade,
            linewidth=2,
            label=f"{label}: {times[-1]:.2f} s, n = {len(good)}",
        )
    axes.set(xscale="log", xlabel="seconds since the request, log scale", ylabel="tokens on the host")
    axes.set_xlim(left=min(t.ttft for t in trials if t.phase == "warm" and t.valid) / 1.3)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    notes.plain(axes.xaxis)
    axes.legend(
        fontsize=9.5,
        loc="upper left",
        bbox_to_anchor=(0, -0.16),
        ncols=2,
        title="typical answer (median of n)",
        alignment="left",
    )
    both = all(summary.warm(trials, name) for name in (CACHED, UNCACHED))
    headline(figure, finding.claim(trials, CACHED, UNCACHED) if both else "When the tokens of one answer arrive")
    return figure


@styled
def attention(words: Sequence[str], weights: np.ndarray, title: str) -> Figure:
    """What each token looks at: a row a token that looks, a column one that is looked at, its share in percent.
    weights: [T T]."""
    figure, axes = new(7.2, 4.6)
    unseen = np.triu(np.ones_like(weights, bool), 1)  # a token looks at none that comes after it
    look = dict(cmap="Blues", vmin=0, vmax=100, annot=True, fmt=".0f", cbar=False, square=True)
    sns.heatmap(100 * np.asarray(weights), ax=axes, mask=unseen, xticklabels=words, yticklabels=words, **look)
    axes.set_xticks(axes.get_xticks(), words, rotation=30, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="y", rotation=0)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set(xlabel="looked at", ylabel="the token that looks")
    headline(figure, title)
    return figure
