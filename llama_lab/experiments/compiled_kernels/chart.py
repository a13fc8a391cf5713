"""Charts of compiled kernels: where a token's time goes, how rates go with context and threads, what several rows in
one pass cost, and each engine's rate over that of the best peer on the same file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_lab.bench import summary
from llama_lab.bench.available import backend_of
from llama_lab.experiments.compiled_kernels import finding, sizes, where
from llama_lab.experiments.compiled_kernels.rows import BATCH, SEQUENCE
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End, readable
from llama_lab.figures.marks import look
from llama_lab.figures.style import LIMIT_COLOUR, colour, headline, new, styled

DASHES = ("-", "--", ":", "-.")
LINE = dict(linewidth=1.8, markersize=6, markeredgecolor="white")


def sentence(words: str, otherwise: str) -> str:
    """A headline that begins with a capital letter. otherwise: where there is nothing to say."""
    words = words or otherwise
    return words[0].upper() + words[1:]


# Where a token's time goes --------------------------------------------------------------------------------------------


@styled
def token_parts(entries: Sequence[dict], context: int) -> Figure:
    """Milliseconds of a token at a context and of its parts, each by what its absence saves, with 95 % intervals; a
    panel a placement.

    entries: `where.table`.
    """
    shown = max(1, len(entries))  # an empty panel says that there is nothing
    columns = min(3, shown)
    lines = math.ceil(shown / columns)
    figure, panels = new(max(7.0, 4.9 * columns), 3.6 * lines, columns, lines, squeeze=False)
    for axes in panels.flat[shown:]:
        axes.set_axis_off()
    for axes, e in zip(panels.flat, entries, strict=False):
        heights, tint = rows.heights(axes, ["a token", *where.WORDS.values()]), colour(e["name"])
        room = 1.45 * e["total"]
        for part, name in where.WORDS.items():
            height = heights[name]
            axes.barh(height, e[part], height=0.5, color=tint, alpha=0.35)
            axes.plot([e[f"{part}_low"], e[f"{part}_high"]], [height] * 2, color="black", linewidth=1.8)
            words = " hidden by noise" if finding.hidden(e, part) else f" {e[part]:.1f} ms"
            axes.text(min(np.nanmax([e[part], e[f"{part}_high"], 0]), room), height, words, va="center", fontsize=9)
        top = heights["a token"]
        axes.barh(top, e["total"], height=0.5, color=tint)
        axes.text(e["total"], top, f" {e['total']:.1f} ms", va="center", fontsize=9, fontweight="bold")
        axes.plot([e["limit"]] * 2, [top - 0.35, top + 0.35], color=LIMIT_COLOUR, linewidth=2, linestyle=(0, (2, 1)))
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlim(right=room)
        axes.set_title(e["name"], color=tint)
        count = f"mean,\nn = {e['n']} blocks; line: 95 %"
        axes.set_xlabel(f"ms at context {context} ({count};\nred: the bandwidth's limit)")
    for axes in panels[:, 1:].flat:
        axes.set_yticklabels([])
    if not entries:
        notes.empty(panels[0][0], "no placement has all of its differences", color=LIMIT_COLOUR)
        headline(figure, "Where a token's time goes was not measured")
        return figure
    most = max(where.WORDS, key=lambda part: entries[0][part])
    takes = (f"{e[most]:.1f} of {e['total']:.1f} ms under {e['name']}" for e in (entries[0], *entries[1:][-1:]))
    headline(figure, f"Of a token the {most} take most: {', '.join(takes)}")
    return figure


# Scaling --------------------------------------------------------------------------------------------------------------

AXES = {
    "context": ("Tokens in the cache", "tokens of prompt and answer"),
    "threads": ("Threads", "cores the process may use"),
}


@styled
def scaling(axes_points: Mapping[str, dict[str, list[dict]]], backends: Mapping[str, str]) -> Figure:
    """Tokens/s against context and threads, a line per subject; every answer a point.

    axes_points: axis → `scaling.axis_of`. backends: of each subject.
    """
    figure, panels = new(5.2 * len(axes_points), 4.9, columns=len(axes_points), squeeze=False, sharey=True)
    names = dict.fromkeys(name for subjects in axes_points.values() for name in subjects)
    dashes = dict(zip(names, cycle(DASHES), strict=False))
    for axes, (axis, subjects) in zip(panels[0], axes_points.items(), strict=True):
        places = {v: int(v) for v in sorted({p["value"] for points in subjects.values() for p in points}, key=int)}
        axes.set_yscale("log")
        if axis == "context" and subjects and max(places.values()) > 8 * min(places.values()):
            axes.set_xscale("log")
        ends = []
        for name, points in subjects.items():
            (tint, marker), xs = look(name, backends[name]), [places[p["value"]] for p in points]
            answers = [(x, v) for x, p in zip(xs, points, strict=True) for v in p["points"]]
            axes.scatter(*zip(*answers, strict=True), s=12, color=tint, alpha=0.4, linewidths=0)
            medians = [p["rate"].median for p in points]
            axes.plot(xs, medians, color=tint, marker=marker, linestyle=dashes[name], **LINE)
            ends.append(End(f"{name}  {medians[-1] / medians[0]:.2f}x", xs[-1], medians[-1], tint))
        labels.at_ends(axes, ends, 1.13, offset=9, size=8.5, centred=True)
        axes.set_xticks(list(places.values()), list(places), fontsize=9)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.08)
        room_at_right(axes, 0.025 * max((len(text.get_text()) for text in axes.texts), default=0))
        readable(axes.yaxis)
        n, (title, noun) = min((p["rate"].n for points in subjects.values() for p in points), default=0), AXES[axis]
        axes.set_xlabel(f"{noun}\n(dot: an answer, n ≥ {n} each; line: medians; x: last over first)", fontsize=9)
        axes.set_title(title, fontsize=12)
        if not subjects:
            notes.empty(axes, "nothing measured", color=LIMIT_COLOUR)
    panels[0][0].set_ylabel("decode rate, tokens/s (log scale)")
    kept = finding.kept(axes_points.get("context", {}))
    headline(figure, sentence(kept, "how rates go with the context was not measured"))
    return figure


def room_at_right(axes, share: float) -> None:
    """Lengthen the axis to the right by a share of what is drawn on it, for labels at the ends of lines."""
    (low, high), scale = axes.get_xlim(), axes.xaxis.get_transform()
    low, high = scale.transform([low, high])
    axes.set_xlim(right=scale.inverted().transform(high + share * (high - low)))


# Rows -----------------------------------------------------------------------------------------------------------------


@styled
def costs(entries: Sequence[dict]) -> Figure:
    """Time of a pass over that of one row, against rows; one panel per kind of rows, one line per engine and context.

    entries: `rows.table`.
    """
    figure, panels = new(11, 4.9, columns=2, sharey=True)
    dashes = dict(zip(sorted({e["context"] for e in entries}), cycle(DASHES), strict=False))
    titles = {SEQUENCE: "Tokens of one sequence", BATCH: "One token of each of several"}
    for axes, (kind, title) in zip(panels, titles.items(), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        mine = [e for e in entries if e["ratio"].n and (e["kind"] == kind or e["rows"] == 1)]
        ends = []
        for engine in dict.fromkeys(e["engine"] for e in mine):
            tint, marker = look(engine, backend_of(engine))
            for context, style in dashes.items():
                points = [e for e in mine if (e["engine"], e["context"]) == (engine, context)]
                if len(points) < 2:
                    continue
                points.sort(key=lambda e: e["rows"])
                xs = [e["rows"] for e in points]
                low, values, high = np.transpose([rows.ends(e["ratio"]) for e in points])
                axes.plot(xs, values, color=tint, marker=marker, linestyle=style, **LINE)
                axes.vlines(xs, low, high, color=tint, linewidth=1.4)
                ends.append(End(f"{engine}, context {context}", xs[-1], values[-1], tint))
        counts = sorted({e["rows"] for e in mine}) or [1, 2]
        last = counts[-1]
        axes.plot(counts, counts, color=LIMIT_COLOUR, linewidth=1, linestyle=(0, (1, 2)))
        above = dict(textcoords="offset points", ha="right", va="bottom", fontsize=8.5, color=LIMIT_COLOUR)
        axes.annotate("each row as much as one", (last, last), (-4, 0), **above)
        labels.at_ends(axes, ends, 1.12, size=8.5, centred=True)
        axes.set_xticks(counts, counts)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(right=last**1.6)
        ticks = [2**i for i in range(6) if 2**i <= last]
        axes.set_yticks(ticks, ticks)
        axes.yaxis.set_minor_locator(NullLocator())
        n = min((e["ratio"].n for e in mine), default=0)
        axes.set_xlabel(f"rows in one pass (log scale;\nn ≥ {n} processes, bars: 95 % intervals)")
        axes.set_title(title, fontsize=12)
    panels[0].set_ylabel("time of a pass, over one row's (log scale)")
    headline(figure, sentence(finding.together(entries), "what rows cost was not measured"))
    return figure


# Sizes ----------------------------------------------------------------------------------------------------------------

TITLES = {
    sizes.DECODE: ("Decode, {tokens:,} tokens in the cache", "decode rate"),
    sizes.PREFILL: ("A prompt of {tokens:,} tokens", "prompt tokens a second"),
}


@styled
def over_best(entries: Sequence[dict], what: str) -> Figure:
    """One panel per context or prompt length, a group of points a file, from small to large, with their 95 % intervals;
    a colour a subject.

    entries: of `sizes.table`. what: `sizes.DECODE` or `sizes.PREFILL`.
    """
    mine = [e for e in entries if e["what"] == what and e["ratio"] is not None and e["ratio"].n]
    shapes = sorted({e["tokens"] for e in mine}) or [0]
    weighs = summary.grouped(mine, lambda e: e["file"], lambda e: e["bytes"])
    read = {file: min(weights) for file, weights in weighs.items()}  # by the engine that reads least of it
    files = {file: i for i, file in enumerate(sorted(read, key=read.get))}
    ticks = [file_words(file, read[file]) for file in files]
    title, noun = TITLES[what]
    room = 1 + (1.0 + 0.85 * len(files)) * len(shapes)
    figure, panels = new(max(8.0, room), 4.9, columns=len(shapes), squeeze=False, sharey=True)
    subjects = {}
    for axes, tokens in zip(panels[0], shapes, strict=True):
        here = [e for e in mine if e["tokens"] == tokens]
        axes.axhline(1, color=LIMIT_COLOUR, linewidth=1.2, linestyle=(0, (2, 1)))
        names = list(dict.fromkeys(e["name"] for e in here))
        for e in here:
            apart = 0.16 * (names.index(e["name"]) - (len(names) - 1) / 2)  # so that no interval hides another
            (tint, marker), ratio, x = look(e["name"], e["backend"]), e["ratio"], files[e["file"]] + apart
            axes.plot([x, x], [ratio.low, ratio.high], color=tint, linewidth=4, alpha=0.35, solid_capstyle="butt")
            (mark,) = axes.plot(x, ratio.value, marker, color=tint, markersize=8, markeredgecolor="white")
            subjects.setdefault(e["name"], mark)
        axes.set_xlim(-0.6, len(files) - 0.4)
        axes.set_yscale("log")
        readable(axes.yaxis)
        axes.set_xticks(range(len(files)), ticks, fontsize=8.5)
        n = min((e["ratio"].n for e in here), default=0)
        within = " of one process" * all(e["ratio"].clusters == 1 for e in here)
        intervals = f"(n ≥ {n} blocks{within}; bands: 95 % intervals)"
        axes.set_xlabel(f"file, and MB of it that a token reads\n{intervals}", fontsize=9)
        axes.set_title(title.format(tokens=tokens), fontsize=11.5)
    if ratios := [e["ratio"].value for e in mine]:  # few blocks may leave an interval without end
        panels[0][0].set_ylim(0.7 * min(0.9, *ratios), 1.4 * max(1.1, *ratios))
        columns = min(len(subjects), 6)
        figure.legend([*subjects.values()], [*subjects], loc="outside lower center", ncols=columns, fontsize=9.5)
    else:
        notes.empty(axes, "nothing measured", color=LIMIT_COLOUR)
    panels[0][0].set_ylabel(f"{noun} over the best peer's\non the same file (log scale)")
    headline(figure, finding.claim(entries, what))
    return figure


def file_words(file: str, size: float) -> str:
    """A file's model, type and size, a line each: `smollm2-360m`, `q4_0`, `248 MB`."""
    model, _, kind = file.rpartition("/")
    return f"{model.removeprefix('random:').removesuffix('-instruct')}\n{kind}\n{size / 1e6:,.0f} MB"
