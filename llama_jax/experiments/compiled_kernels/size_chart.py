"""Charts of engines on files of several sizes: each engine's rate over that of the best peer on the same file, against
the bytes that a token reads."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_jax.experiments.compiled_kernels import finding
from llama_jax.figures.labels import readable
from llama_jax.figures.marks import look
from llama_jax.figures.style import LIMIT_COLOUR, headline, new, plain_ticks, styled

TITLES = {"decode": "Decode, {tokens:,} tokens in the cache", "prefill": "A prompt of {tokens:,} tokens"}
NOUNS = {"decode": "decode rate", "prefill": "prompt tokens a second"}


@styled
def over_best(entries: Sequence[dict], what: str) -> Figure:
    """A panel a context or prompt length, a point a file and subject with its 95 % interval, a colour a subject.

    entries: of `size_table.table`. what: "decode" or "prefill".
    """
    mine = [e for e in entries if e["what"] == what and e["ratio"] is not None and e["ratio"].n]
    sizes = sorted({e["tokens"] for e in mine}) or [0]
    figure, panels = new(max(8.0, 1 + 3.2 * len(sizes)), 4.9, columns=len(sizes), squeeze=False, sharey=True)
    for axes, tokens in zip(panels[0], sizes, strict=True):
        here = [e for e in mine if e["tokens"] == tokens]
        panel(axes, here)
        n = min((e["ratio"].n for e in here), default=0)
        axes.set_xlabel(f"MB a token reads (log scale)\nn ≥ {n} blocks, 95 % intervals", fontsize=9)
        axes.set_title(TITLES[what].format(tokens=tokens), fontsize=11.5)
    if ratios := [e["ratio"].value for e in mine]:  # few blocks may leave an interval without end
        panels[0][0].set_ylim(0.7 * min(0.9, *ratios), 1.4 * max(1.1, *ratios))
    panels[0][0].set_ylabel(f"{NOUNS[what]} over the best peer's\non the same file (log scale)")
    handles, names = legend(panels[0])
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 6), fontsize=9.5)
    else:
        axes.text(0.5, 0.5, "nothing measured", transform=axes.transAxes, ha="center", color=LIMIT_COLOUR)
    headline(figure, finding.claim(entries, what) or "No size was measured")
    return figure


def panel(axes, entries: Sequence[dict]) -> None:
    """The points of one context or length."""
    axes.axhline(1, color=LIMIT_COLOUR, linewidth=1.2, linestyle=(0, (2, 1)))
    names = list(dict.fromkeys(e["name"] for e in entries))
    for e in entries:
        apart = 1.035 ** (names.index(e["name"]) - (len(names) - 1) / 2)  # so that no interval hides another
        (colour, marker), ratio, x = look(e["name"], e["backend"]), e["ratio"], apart * e["bytes"] / 1e6
        axes.plot([x, x], [ratio.low, ratio.high], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.plot(x, ratio.value, marker, color=colour, markersize=8, markeredgecolor="white", label=e["name"])
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_ticks(axes.xaxis)
    axes.xaxis.set_minor_locator(NullLocator())
    readable(axes.yaxis)
    sizes = {}
    for e in entries:  # a file's size by the placement's bytes: another engine may read some more
        sizes[e["file"]] = min(round(e["bytes"] / 1e6), sizes.get(e["file"], 10**9))
    places = sorted(sizes.values())
    close = [i > 0 and p < 1.6 * places[i - 1] for i, p in enumerate(places)]
    axes.set_xticks(places, ["\n" * near + f"{p:,}" for p, near in zip(places, close, strict=True)])
    axes.margins(0.12)


def legend(panels: Sequence) -> tuple[list, list[str]]:
    """Each subject's mark and name once."""
    found = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return list(found.values()), list(found)
