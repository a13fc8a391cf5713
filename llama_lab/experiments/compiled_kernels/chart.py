"""Charts of compiled kernels: where a token's time goes, how rates go with context and threads, what several rows in
one pass cost, and each engine's rate over that of the best peer on the same file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from llama_lab.bench import summary
from llama_lab.bench.available import backend_of
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import counted, listed, named_well
from llama_lab.experiments.compiled_kernels import finding, sizes, where
from llama_lab.experiments.compiled_kernels.rows import BATCH, SEQUENCE
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End, readable
from llama_lab.figures.marks import look
from llama_lab.figures.style import LIMIT_COLOUR, colour, footnote, headline, new, styled

DASHES = ("-", "--", ":", "-.")
LINE = dict(linewidth=1.8, markersize=6, markeredgecolor="white")


def sentence(words: str, otherwise: str) -> str:
    """A headline that begins with a capital letter. otherwise: where there is nothing to say."""
    words = words or otherwise
    return words[0].upper() + words[1:]


# Where a token's time goes --------------------------------------------------------------------------------------------


@styled
def token_parts(entries: Sequence[dict], context: int) -> Figure:
    """Milliseconds that a token at a context spends in its parts, each by what its absence saves, with 95% intervals;
    a panel a part, all on one scale, and a row a placement.

    entries: `where.table`. The rest, which is what the parts leave, stands in the table.
    """
    titles = {part: words for part, words in where.WORDS.items() if part != "rest"}
    figure, panels = new(10, 0.62 * max(2, len(entries)) + 2, columns=len(titles), sharex=True, sharey=True)
    for axes, (part, title) in zip(panels, titles.items(), strict=True):
        heights = rows.heights(axes, [f"{e['name']}\n{e['total']:.1f} ms per token" for e in entries])
        for e, height in zip(entries, heights.values(), strict=True):
            axes.barh(height, e[part], height=0.5, color=colour(e["name"]), alpha=0.6)
            style = dict(color="black", linewidth=1.8, solid_capstyle="butt")  # a cap would seem to reach 0
            axes.plot([e[f"{part}_low"], e[f"{part}_high"]], [height] * 2, **style)
            words = "hidden by noise" if finding.hidden(e, part) else f"{e[part]:.1f} ms"
            end = np.nanmax([e[part], e[f"{part}_high"], 0])
            axes.annotate(words, (end, height), (4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_title(title.replace(", ", ",\n"))
        axes.set_xlabel("ms per token")
    panels[0].set_xlim(0, 1.4 * max((e[f"{part}_high"] for e in entries for part in titles), default=1))
    n = min((e["n"] for e in entries), default=0)
    parts = "A part is what its absence saves, so the parts need not add up to the whole."
    footnote(figure, f"Context {context}. Bar: mean of n = {n} blocks; line: its 95% interval, cut at 0. {parts}")
    if not entries:
        notes.empty(panels[0], "no placement has all of its differences", color=LIMIT_COLOUR)
        headline(figure, "Where a token's time goes was not measured")
        return figure
    said = finding.first_and_last(entries) if len(entries) > 1 else finding.largest_part(entries)
    headline(figure, sentence(said, "noise hides where a token's time goes"))
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
            ends.append(End(f"{name}: {medians[-1]:.0f}", xs[-1], medians[-1], tint))
        labels.at_ends(axes, ends, 1.13, offset=9, size=8.5, centred=True)
        axes.set_xticks(list(places.values()), list(places), fontsize=9)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.08)
        room_at_right(axes, 0.025 * max((len(text.get_text()) for text in axes.texts), default=0))
        readable(axes.yaxis)
        n, (title, noun) = counted(p["rate"].n for points in subjects.values() for p in points), AXES[axis]
        axes.set_xlabel(f"{noun}\n(dot: an answer, {n} each; line: medians)", fontsize=9)
        axes.set_title(title, fontsize=12)
        if not subjects:
            notes.empty(axes, "nothing measured", color=LIMIT_COLOUR)
    panels[0][0].set_ylabel("decode rate, tokens/s (log scale)")
    stays = finding.stays(axes_points.get("context", {}), backends)
    headline(figure, stays or "Rates by context and by threads")
    return figure


def room_at_right(axes, share: float) -> None:
    """Lengthen the axis to the right by a share of what is drawn on it, for labels at the ends of lines."""
    (low, high), scale = axes.get_xlim(), axes.xaxis.get_transform()
    low, high = scale.transform([low, high])
    axes.set_xlim(right=scale.inverted().transform(high + share * (high - low)))


# Rows -----------------------------------------------------------------------------------------------------------------


@styled
def costs(entries: Sequence[dict]) -> Figure:
    """Time of a pass over that of one token, against tokens; a panel per kind of rows, a line per engine and context.

    entries: `rows.table`.
    """
    figure, panels = new(11, 4.9, columns=2, sharey=True)
    dashes = dict(zip(sorted({e["context"] for e in entries}), cycle(DASHES), strict=False))
    titles = {SEQUENCE: "Tokens of one sequence", BATCH: "One token of each of several sequences"}
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
                ends.append(End(f"{engine}, context {context}: {values[-1]:.2f}x", xs[-1], values[-1], tint))
        counts = sorted({e["rows"] for e in mine}) or [1, 2]
        last = counts[-1]
        axes.plot(counts, counts, color=LIMIT_COLOUR, linewidth=1, linestyle=(0, (1, 2)))
        above = dict(textcoords="offset points", ha="right", va="bottom", fontsize=8.5, color=LIMIT_COLOUR)
        axes.annotate("one token after the other", (last, last), (-4, 0), **above)
        labels.at_ends(axes, ends, 1.12, size=8.5, centred=True)
        axes.set_xticks(counts, counts)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(right=last**1.6)
        ticks = [2**i for i in range(6) if 2**i <= last]
        axes.set_yticks(ticks, ticks)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("tokens in one pass (log scale)")
        axes.set_title(title, fontsize=12)
    panels[0].set_ylabel("time of a pass, over one token's (log scale)")
    n = counted(e["ratio"].n for e in entries if e["ratio"].n)
    footnote(figure, f"Mark: mean of {n} processes; bar: its 95% interval.")
    words = finding.together(entries)
    headline(figure, sentence(words, "what rows cost was not measured"))
    return figure


# Sizes ----------------------------------------------------------------------------------------------------------------

SHAPES = {  # what is asked → (what a subject does, its rate, words for a number of tokens and for the bytes drawn)
    sizes.DECODE: (
        "decode",
        "decode rate",
        "{:,} tokens in the cache",
        "MB read per token with {:,} in the cache",
    ),
    sizes.PREFILL: (
        "read a prompt",
        "prompt tokens a second",
        "prompt of {:,} tokens",
        "MB of weights and of a cache of {:,} tokens",
    ),
}


@styled
def over_best(entries: Sequence[dict], what: str) -> Figure:
    """Each placement's rate over the best peer's on the same file, with 95% intervals: a group of points a file, from
    small to large by what the placements read of it, a mark a context or prompt length.

    entries: of `sizes.table`. what: `sizes.DECODE` or `sizes.PREFILL`.
    """
    figure, axes = new(9.5, 4.9)
    mine, (does, rate, shape, size) = [e for e in sizes.ours(entries) if e["what"] == what], SHAPES[what]
    weighs = summary.grouped(mine, lambda e: e["file"], lambda e: e["bytes"])
    read = {file: min(weights) for file, weights in weighs.items()}
    files = {file: i for i, file in enumerate(sorted(read, key=read.get))}
    asked = summary.grouped(sorted(mine, key=lambda e: (e["name"], e["tokens"])), lambda e: (e["name"], e["tokens"]))
    names = list(dict.fromkeys(name for name, _ in asked))
    placed = []  # (entry, where it is drawn)
    for i, ((name, tokens), here) in enumerate(asked.items()):
        apart = 0.26 * (i - (len(asked) - 1) / 2)  # so that no interval or number hides another
        xs = [files[e["file"]] + apart for e in here]
        placed += zip(here, xs, strict=True)
        low, values, high = np.transpose([rows.ends(e["ratio"]) for e in here])
        axes.vlines(xs, low, high, color=colour(name), linewidth=4, alpha=0.35)
        words = f"{name}, " * (len(names) > 1) + shape.format(tokens)
        axes.plot(xs, values, "osD^vP"[i % 6], color=colour(name), markersize=8, markeredgecolor="white", label=words)
        open_ = [(x, e["ratio"].value) for x, e in zip(xs, here, strict=True) if e["ratio"].verdict != Verdict.FASTER]
        if open_:
            style = dict(color=colour(name), markerfacecolor="white", markersize=8, linestyle="")
            axes.plot(*zip(*open_, strict=True), "osD^vP"[i % 6], **style)
        for x, e in zip(xs, here, strict=True):
            at = (x, e["ratio"].value)
            up = 7 if 0.95 < at[1] < 1.1 else 0  # clear of the line at 1
            axes.annotate(f"{at[1]:.2f}", at, (5, up), textcoords="offset points", va="center", fontsize=8)
    axes.axhline(1, color=LIMIT_COLOUR, linewidth=1.2, linestyle=(0, (2, 1)))
    axes.annotate("same rate", (1, 1), (-4, -3), xycoords=("axes fraction", "data"), textcoords="offset points",
                  ha="right", va="top", fontsize=8.5, color=LIMIT_COLOUR)  # fmt: skip
    axes.set_yscale("log")
    if ratios := [e["ratio"].value for e in mine]:  # few blocks may leave an interval without end
        axes.set_ylim(0.7 * min(0.9, *ratios), 1.4 * max(1.1, *ratios))
        for e, x in placed:
            cut_ends(axes, e["ratio"], x, colour(e["name"]))
            ends_near_one(axes, e["ratio"], x, colour(e["name"]))
        axes.legend(loc="upper right", fontsize=9.5)
        ahead = sum(e["ratio"].verdict == Verdict.FASTER for e in mine)
        words = f"Compiled kernels {does} faster than the best other runtime in {ahead} of {len(mine)} cases"
    else:
        notes.empty(axes, "nothing measured", color=LIMIT_COLOUR)
        ahead, words = 0, f"No {rate} was measured beside another runtime's"
    readable(axes.yaxis)
    axes.set_xlim(-0.6, len(files) - 0.4)
    axes.set_xticks(range(len(files)), [file_words(file, read[file]) for file in files], fontsize=9)
    n = counted(e["ratio"].n for e in mine)
    within = " of one process" * all(e["ratio"].clusters == 1 for e in mine)
    counts = Counter(e["best"] for e in mine).most_common()
    each = [f"{named_well(name)} in {count}" for name, count in counts]
    best = f" Best other runtime: {listed(each)} of {len(mine)} cases." * bool(counts)
    shortest = min((e["tokens"] for e in mine), default=0)
    axes.set_xlabel(f"file and {size.format(shortest)}", fontsize=10)
    hollow = "; hollow: not shown to be faster" * (ahead < len(mine))
    who = f"Compiled kernels: {listed(names)}. " * bool(names)
    footnote(figure, f"{who}Band: 95% interval of {n} blocks{within}{hollow}.{best}")
    axes.set_ylabel(f"{rate}\nover the best other\nruntime's (log scale)")
    headline(figure, words)
    return figure


def cut_ends(axes, ratio: Ratio, x: float, tint: str) -> None:
    """An arrow and where it ends, of an interval that goes beyond the frame."""
    bottom, top = axes.get_ylim()
    for end, edge, inwards in ((ratio.low, bottom, 1), (ratio.high, top, -1)):
        if end < bottom or end > top:
            arrow = dict(arrowstyle="->", color=tint, linewidth=1.5)
            axes.annotate("", (x, edge), (0, 12 * inwards), textcoords="offset points", arrowprops=arrow)
            place = dict(textcoords="offset points", va="center", fontsize=7.5, color=tint)
            axes.annotate(f"to {end:.2f}", (x, edge), (5, 8 * inwards), **place)


def ends_near_one(axes, ratio: Ratio, x: float, tint: str) -> None:
    """Where an interval ends that looks as if it ended at 1."""
    for word, end in (("from", ratio.low), ("to", ratio.high)):
        if finding.near_one(end):
            place = dict(textcoords="offset points", va="center", fontsize=8, color=tint)
            axes.annotate(f"{word} {end:.3f}", (x, end), (5, 7 if end > 1 else -7), **place)


def file_words(file: str, size: float) -> str:
    """A file's model, type and size, a line each: `smollm2-360m`, `q4_0`, `248 MB`, and whether its weights are
    random."""
    model, _, kind = file.rpartition("/")
    name = model.removeprefix("random:").removesuffix("-instruct")
    return f"{name}\n{kind}\n{size / 1e6:,.0f} MB" + "\nrandom weights" * model.startswith("random:")
