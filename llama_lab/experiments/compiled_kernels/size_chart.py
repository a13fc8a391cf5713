"""Charts of engines on files of several sizes: each engine's rate over that of the best peer on the same file."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.experiments.compiled_kernels import finding
from llama_lab.figures import notes
from llama_lab.figures.labels import readable
from llama_lab.figures.marks import look
from llama_lab.figures.style import LIMIT_COLOUR, headline, new, styled

TITLES = {"decode": "Decode, {tokens:,} tokens in the cache", "prefill": "A prompt of {tokens:,} tokens"}
NOUNS = {"decode": "decode rate", "prefill": "prompt tokens a second"}


@styled
def over_best(entries: Sequence[dict], what: str) -> Figure:
    """A panel a context or prompt length, a group of points a file, from small to large, with their 95 % intervals; a
    colour a subject.

    entries: of `size_table.table`. what: "decode" or "prefill".
    """
    mine = [e for e in entries if e["what"] == what and e["ratio"] is not None and e["ratio"].n]
    sizes = sorted({e["tokens"] for e in mine}) or [0]
    weighs: dict[str, float] = {}  # a file's bytes by the engine that reads least of it
    for e in mine:
        weighs[e["file"]] = min(e["bytes"], weighs.get(e["file"], e["bytes"]))
    files = sorted(weighs, key=weighs.get)
    room = 1 + (1.0 + 0.85 * len(files)) * len(sizes)
    figure, panels = new(max(8.0, room), 4.9, columns=len(sizes), squeeze=False, sharey=True)
    for axes, tokens in zip(panels[0], sizes, strict=True):
        here = [e for e in mine if e["tokens"] == tokens]
        panel(axes, here, files)
        axes.set_xticks(range(len(files)), [name_of(file, weighs[file]) for file in files], fontsize=8.5)
        n = min((e["ratio"].n for e in here), default=0)
        within = " of one process" * all(e["ratio"].clusters == 1 for e in here)
        axes.set_xlabel(
            f"file, and MB of it that a token reads\n(n ≥ {n} blocks{within}; bands: 95 % intervals)", fontsize=9
        )
        axes.set_title(TITLES[what].format(tokens=tokens), fontsize=11.5)
    if ratios := [e["ratio"].value for e in mine]:  # few blocks may leave an interval without end
        panels[0][0].set_ylim(0.7 * min(0.9, *ratios), 1.4 * max(1.1, *ratios))
    panels[0][0].set_ylabel(f"{NOUNS[what]} over the best peer's\non the same file (log scale)")
    handles, names = legend(panels[0])
    if handles:
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 6), fontsize=9.5)
    else:
        notes.empty(axes, "nothing measured", color=LIMIT_COLOUR)
    headline(figure, finding.claim(entries, what))
    return figure


def name_of(file: str, size: float) -> str:
    """A file's model, type and size, a line each: `smollm2-360m`, `q4_0`, `248 MB`."""
    model, _, kind = file.rpartition("/")
    return f"{model.removeprefix('random:').removesuffix('-instruct')}\n{kind}\n{size / 1e6:,.0f} MB"


def panel(axes, entries: Sequence[dict], files: Sequence[str]) -> None:
    """The points of one context or length."""
    axes.axhline(1, color=LIMIT_COLOUR, linewidth=1.2, linestyle=(0, (2, 1)))
    names = list(dict.fromkeys(e["name"] for e in entries))
    for e in entries:
        apart = 0.16 * (names.index(e["name"]) - (len(names) - 1) / 2)  # so that no interval hides another
        (colour, marker), ratio, x = look(e["name"], e["backend"]), e["ratio"], files.index(e["file"]) + apart
        axes.plot([x, x], [ratio.low, ratio.high], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.plot(x, ratio.value, marker, color=colour, markersize=8, markeredgecolor="white", label=e["name"])
    axes.set_xlim(-0.6, len(files) - 0.4)
    axes.set_yscale("log")
    readable(axes.yaxis)


def legend(panels: Sequence) -> tuple[list, list[str]]:
    """Each subject's mark and name once."""
    found = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    return list(found.values()), list(found)
