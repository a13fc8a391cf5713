"""When tokens reach the host, and what the cache saves on one answer: the figures and the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from llama_lab.bench import statistics, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import span
from llama_lab.experiments.text_generation.measure import CACHED, SUBJECTS, UNCACHED
from llama_lab.figures.style import OTHERS, colour, headline, new, styled

STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def seconds(trials: Sequence[Trial]) -> dict[str, list[float]]:
    """Seconds of each valid answer with the cache, and of each without it."""
    return {name: [t.seconds for t in summary.warm(trials, name)] for name in (CACHED, UNCACHED)}


def times(trials: Sequence[Trial]) -> statistics.Ratio:
    """The time of an answer without the cache over that with it."""
    took = seconds(trials)
    return statistics.of_times(statistics.unpaired_ratio(took[UNCACHED], took[CACHED]))


def claim(trials: Sequence[Trial]) -> Claim:
    """How much longer the same answer takes where nothing is kept."""
    ratio = times(trials)
    longer = Comparison(ratio, UNCACHED, CACHED, "time of an answer, geometric mean")
    if longer.outcome != Verdict.SLOWER:
        return longer.generic
    said = "Without a KV cache each token reruns the whole reserved length: {what} {times:.1f} times as long."
    sizes = [t.new_tokens for t in answers(trials)]
    what = f"{span(sizes, 'd')} tokens take" if sizes else "an answer takes"
    return replace(stated(said, what=what, times=ratio.value), evidence=(longer,))


def answers(trials: Sequence[Trial]) -> list[Trial]:
    """The valid answers with the cache and without it."""
    return [t for name in (CACHED, UNCACHED) for t in summary.warm(trials, name)]


def finding(trials: Sequence[Trial]) -> str:
    """The claim, the medians behind it, and the length of the prompts."""
    prompts = [t.prompt_tokens for t in answers(trials)]
    return claim(trials).text(
        *(
            f"an answer takes {np.median(values):.2f} s under {name} (median), n = {len(values)}"
            for name, values in seconds(trials).items()
            if values
        ),
        f"the prompts have {span(prompts, 'd')} tokens" if prompts else "",
    )


def looked_at(words: Sequence[str], weights: np.ndarray) -> str:
    """What the last token looks at most, and what a token gives to the one before it and to the first, without the
    two that those are the same for: a line for a page without the picture. weights: [T T], of three tokens or more."""
    shares = np.asarray(weights)
    last = shares[-1]
    best = int(last.argmax())
    before, first = (100 * float(np.mean(of)) for of in (np.diagonal(shares, -1)[1:], shares[2:, 0]))
    return (
        f"{words[-1]!r} looks most at {words[best]!r} ({100 * last[best]:.0f}%). On average a token gives"
        f" {before:.0f}% to the one before it and {first:.0f}% to the first."
    )


@styled
def arrivals(trials: Sequence[Trial]) -> Figure:
    """Tokens on the host against time since the request, each subject's median answer as a staircase; between the ends
    with and without the cache, how many times as long the latter takes."""
    figure, axes = new(9.5, 4.8)
    for (subject, label), style in zip(SUBJECTS.items(), STYLES, strict=True):
        if good := sorted(summary.warm(trials, subject), key=lambda t: t.seconds):
            at = np.array(good[(len(good) - 1) // 2].token_times_ns) / 1e9
            words = f"{label}: {at[-1]:.2f} s, n = {len(good)}"
            shade = OTHERS[1] if subject == UNCACHED else colour(subject)
            look = dict(linestyle=style, where="post", color=shade, linewidth=2, label=words)
            axes.step([0, *at], [0, *range(1, len(at) + 1)], **look)
    took = {name: float(np.median(values)) for name, values in seconds(trials).items() if values}
    if len(took) == 2:
        top = axes.get_ylim()[1]
        axes.annotate("", (took[UNCACHED], top), (took[CACHED], top), arrowprops=dict(arrowstyle="<->"))
        middle, means = sum(took.values()) / 2, times(trials).value
        words = f"{means:.1f} times as long by geometric means, {took[UNCACHED] / took[CACHED]:.1f} by medians"
        axes.annotate(words, (middle, top), (0, 3), ha="center", textcoords="offset points")
        axes.set_ylim(0, 1.08 * top)
    axes.set(xlabel="seconds since the request", xlim=(0, None), ylabel="tokens on the host")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    title = "typical answer (median of n)"
    figure.legend(fontsize=9.5, title=title, alignment="left", loc="outside lower left", ncols=2)
    headline(figure, claim(trials) if all(seconds(trials).values()) else "When the tokens of one answer arrive")
    return figure


@styled
def attention(words: Sequence[str], weights: np.ndarray, title: str) -> Figure:
    """What each token looks at: a row per token that looks, a column one that is looked at, its share in percent.
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
