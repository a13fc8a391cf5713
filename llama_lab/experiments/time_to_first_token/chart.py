"""Charts of the time to first token against prompt length: the best of each kind, and kernels over llama.cpp on the
same file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import standings
from llama_lab.bench.intervals import FEWEST
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.summary import grouped
from llama_lab.bench.wording import counted, named_well
from llama_lab.experiments.time_to_first_token import finding, same_file, side_by_side, table
from llama_lab.figures import labels, marks, notes, rows
from llama_lab.figures.style import LIMIT_COLOUR, colour, footnote, headline, new, styled

LINES_OF_KERNELS = {"XLA": "--", "gemv": (0, (8, 2)), "fused": "-"}  # the limit is dotted
LIMIT = "float32 limit"
LINES = 4  # beside the limit
SECOND = "d"  # the mark of a second line of a colour
TICKS_APART = 1.4  # as a factor, on a log axis of lengths

Looks = dict[str, tuple[str, str, str | tuple]]  # subject → (colour, marker, line style), in the order of drawing


@styled
def ttft_by_length(
    trials: Sequence[Trial], limits: dict[int, float], seed: int = 0, arithmetic: bool = False
) -> Figure:
    """TTFT against prompt length, with intervals, of `table.highlighted`: a line each, the time at the longest prompt
    at its end.

    limits: length → ms, `table.limits`. arithmetic: whether each of them is that of arithmetic.
    """
    trials = side_by_side.interleaved(trials)
    shown, asked = table.highlighted(trials)[:LINES], table.lengths(trials)
    if not shown:
        return notes.nothing("No subject has first tokens at every length.")
    figure, axes = new(9.5, 5.4)
    backends = {t.subject: t.backend for t in trials}
    looks: Looks = {}
    for name, dashes in zip(shown, cycle(("-", "--", "-.", (0, (8, 2)))), strict=False):
        taken = colour(name) in {shade for shade, _, _ in looks.values()}
        looks[name] = (colour(name), SECOND if taken else marks.MARKERS.get(backends[name], "v"), dashes)
    took = {name: table.middle(trials, name, asked[-1]) for name in shown}
    kept = side_by_side.kept(trials)
    words = {name: f"{named_well(name)} ({kept[name]}): {ms:,.0f} ms" for name, ms in took.items()}
    words |= {LIMIT: f"float32 arithmetic limit: {limits[asked[-1]]:,.0f} ms"} if arithmetic else {}
    by_length(axes, trials, looks, words, {n: limits[n] for n in asked}, {}, seed, close=True)
    names = table.placements(trials) + table.rivals(trials)
    first = table.best(trials, names, asked[-1:])
    took.setdefault(first, table.middle(trials, first, asked[-1]))
    always = len(asked) > 1 and {first} == {table.best(trials, names, [n]) for n in asked}
    where = f"every length, {{}} at {asked[-1]} tokens" if always else f"{asked[-1]} prompt tokens, {{}}"
    words = "" if any(finding.with_kernels(t.subject) for t in trials) else "Without our kernels, "
    words += f"{named_well(first)} has the earliest first token at {where.format(f'{took[first]:,.0f} ms')}"
    headline(figure, words)
    if others := ahead_of_drawn(trials, shown, asked[0]):
        footnote(figure, f"Not drawn, though sooner than the drawn peers at a prompt of {asked[0]} tokens: {others}.")
    return figure


def ahead_of_drawn(trials: Sequence[Trial], shown: Sequence[str], n: int) -> str:
    """`llama.cpp+q4_0 (17.3 ms), ik_llama.cpp (18.7 ms)`: peers that are not drawn, whose first token after `n` tokens
    comes before that of those that are."""
    took = {name: table.middle(trials, name, n) for name in table.rivals(trials)}
    best = min((ms for name, ms in took.items() if name in shown), default=0)
    ahead = sorted((ms, name) for name, ms in took.items() if name not in shown and ms < best)
    return ", ".join(f"{named_well(name)} ({ms:,.1f} ms)" for ms, name in ahead)


@styled
def first_tokens(trials: Sequence[Trial], limits: dict[int, float], reading: dict[str, float], seed: int = 0) -> Figure:
    """TTFT against prompt length of the placements and of each other program's fastest mode (left);
    each subject's over that of llama.cpp's fastest mode of the same file (right).

    trials: of `same_file`. limits: length → ms of float32, `table.limits`. reading: label → ms to read other formats
    once.
    """
    backends = {t.subject: t.backend for t in trials if t.valid}
    names = [name for name in table.placements(trials) + table.rivals(trials) if name in backends]
    if not names:
        return notes.nothing("No first token counts.")
    figure, (left, right) = new(11, 5.6, columns=2, gridspec_kw={"width_ratios": [1.2, 1]})
    looks = {
        name: (*marks.look(name, backends[name]), LINES_OF_KERNELS.get(marks.kind(name, backends[name]), "-."))
        for name in names
    }
    asked = table.lengths(trials)
    peers = {backends[name]: [] for name in names if backends[name] != standings.JAX}
    for name in names:
        peers.get(backends[name], []).append(name)
    ahead = {table.best(trials, modes, asked[-1:]) for modes in peers.values()}
    drawn = {name: looks[name] for name in names if backends[name] == standings.JAX or name in ahead}
    words = {name: named_well(name) for name in drawn}
    bound = [name for name in drawn if backends[name] == standings.JAX and "+" not in name]  # by float32's limit
    if reading and len(bound) == 1:
        words[LIMIT] = f"limit of {bound[0]}"  # of no kernel
    by_length(left, trials, drawn, words, limits, reading, seed)
    raced = [
        (name, n, *same_file.over(trials, name, n, seed))
        for name in names
        for n in asked
        if name not in standings.SAME_FILE
    ]
    pairs = [(name, n, ratio) for name, n, _, ratio in raced if ratio]
    ratios_by_length(right, pairs, asked, looks, "over llama.cpp on the same file")
    if not pairs:
        right.text(0.5, 0.5, "llama.cpp was not measured here", transform=right.transAxes, ha="center", va="bottom")
    rivals = ", ".join(dict.fromkeys(rival for *_, rival, _ in sorted(raced, key=lambda race: race[1]) if rival))
    values = [1.0, *(ratio.value for _, _, ratio in pairs)]
    right.set_ylim(min(values) / 2, 2 * max(values))  # an interval may go on beyond
    labels.readable(right.yaxis)
    right.set_ylabel(f"time over that of {named_well(rivals or 'llamacpp')}\n(log scale; below 1: sooner)")
    words = finding.first_before(same_file.races(trials, seed))
    headline(figure, words or "First tokens of the kernels, no other runtime on the same file measured")
    return figure


def by_length(
    axes,
    trials: Sequence[Trial],
    looks: Looks,
    words: Mapping[str, str],
    limits: dict[int, float],
    reading: dict[str, float],
    seed: int,
    close: bool = False,
) -> None:
    """Medians and their intervals against prompt length, a line per subject with words at its end; limits in red.
    close: whether the vertical axis ends near these lines, without room for other subjects' times."""
    asked, entries = table.lengths(trials), [e for e in table.table(trials, seed) if e["n"]]
    drawn = [e for e in entries if e["subject"] in looks]
    lines = {name: [(e["tokens"], span(e)) for e in drawn if e["subject"] == name] for name in looks}
    band = dict(linewidth=5, alpha=0.35)
    ends = {name: line(axes, points, *looks[name], 2.2, band) for name, points in lines.items() if points}
    ends[LIMIT] = asked[-1], limits[asked[-1]]
    looks = {**looks, LIMIT: (LIMIT_COLOUR, "", ":")}
    words = {LIMIT: LIMIT if reading else f"{LIMIT}: {ends[LIMIT][1]:,.0f} ms", **words}
    inside = drawn if close else entries
    lowest = min((np.nanmin(span(e)) for e in inside if e["tokens"] == asked[0]), default=np.inf)
    limit_below(axes, asked, limits, reading)
    highest = max([np.nanmax(span(e)) for e in inside], default=1.0)
    least = min([*limits.values(), *reading.values(), lowest])
    below, above = (0.8, 1.3) if close else (0.55, 2.5)  # room for words below the limit and labels at the ends
    axes.set_ylim(below * least, above * highest)
    of_length(axes, asked)
    named_ends(axes, ends, looks, words, asked)
    axes.set_ylabel("time to first token, ms (log scale)")
    n = counted(e["n"] for e in drawn)
    few = " or range over processes" * any(1 < len(medians(e)) < FEWEST for e in drawn)
    axes.set_title(f"median; band: 95% interval{few}; {n}", fontsize=10)


def medians(e: dict) -> list[float]:
    """The median of each process that a subject's requests at a length ran in, ms. e: of `table.table`."""
    return [float(np.median(times)) for times in grouped(e["rows"], "process", table.first_ms).values()]


def span(e: dict) -> tuple[float, float, float]:
    """(low, median, high) as drawn: of few processes the range of their medians, as an interval from so few (Student's
    t) would reach beyond all values."""
    of = medians(e)
    low, high = (min(of), max(of)) if 1 < len(of) < FEWEST else (e["low"], e["high"])
    return low, e["p50"], high


def ratios_by_length(
    axes,
    ratios: Sequence[tuple[str, int, Ratio]],
    asked: Sequence[int],
    looks: Looks,
    title: str,
) -> None:
    """Ratios (subject, length, ratio), a line per subject with its name at the end; points a little apart so that
    intervals are seen."""
    names, ends = list(dict.fromkeys(name for name, _, _ in ratios)), {}
    for i, name in enumerate(names):
        here = {n: rows.ends(ratio) for other, n, ratio in ratios if other == name}
        apart = 1.02 ** (i - (len(names) - 1) / 2)
        line(
            axes,
            [(n * apart, ratio) for n, ratio in here.items()],
            *looks[name],
            2,
            dict(linewidth=1.6),
            size=8,
        )
        ends[name] = max(here), here[max(here)][1]
    of_length(axes, asked)
    named_ends(axes, ends, looks, {name: named_well(name) for name in names}, asked)
    axes.axhline(1, color="black", linewidth=1)
    n = counted(ratio.n for _, _, ratio in ratios)
    axes.set_title(f"{title}, {n} pairs; bars: 95%", fontsize=10)


def line(
    axes,
    points: Iterable[tuple[float, tuple[float, float, float]]],
    shade: str,
    marker: str,
    style: str | tuple,
    width: float,
    band: Mapping[str, float],
    size: float = 5,
) -> tuple[float, float]:
    """Points (x, (low, middle, high)) joined, with their intervals; returns where the line ends. band: how an interval
    is drawn. size: of the markers."""
    x, spans = zip(*points, strict=True)
    low, middles, high = zip(*spans, strict=True)
    axes.plot(x, middles, marker=marker, color=shade, linestyle=style, linewidth=width, markersize=size)
    axes.vlines(x, low, high, color=shade, **band)
    return x[-1], middles[-1]


def named_ends(
    axes, ends: dict[str, tuple[float, float]], looks: Looks, words: Mapping[str, str], asked: Sequence[int]
) -> None:
    """Subjects' words at the ends of their lines, in their colours, none over another."""
    low, high = axes.get_ylim()
    apart = (high / low) ** 0.034  # two labels of the axis must be so far apart to be read: some 3.4% of its height
    heights = labels.spread_labels({name: y for name, (_, y) in ends.items()}, apart, centred=True, top=high / apart)
    for name, at in heights.items():
        shade = looks[name][0]
        style = dict(fontsize=9, va="center", color=shade, annotation_clip=False)
        lead = dict(arrowstyle="-", color=shade, linewidth=0.6)
        axes.annotate(words[name], ends[name], (asked[-1] * 1.16, at), arrowprops=lead, **style)


def limit_below(axes, asked: Sequence[int], limits: dict[int, float], reading: dict[str, float]) -> None:
    """The limit of float32 first tokens, which is named at its end, and what reading other formats once takes at the
    least."""
    axes.plot(list(limits), list(limits.values()), color=LIMIT_COLOUR, linestyle=":", linewidth=1.8)
    for name, ms in reading.items():
        axes.plot([asked[0], asked[-1]], [ms] * 2, color=LIMIT_COLOUR, linewidth=1.2)
        words = f"limit of {name}: its weights read once"
        axes.text(asked[0], 0.93 * ms, words, color=LIMIT_COLOUR, fontsize=8, va="top")


def of_length(axes, asked: Sequence[int]) -> None:
    """Both axes logarithmic, a tick at each length; it is written where the next one leaves room."""
    written = thinned(sorted(asked, reverse=True), TICKS_APART)
    right = asked[-1] * (2.9 if len(asked) > 1 else 1.9)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt (log scale)", xlim=(asked[0] / 1.25, right))
    axes.minorticks_off()
    axes.set_xticks(written, written, fontsize=9)
    notes.one_two_five(axes.yaxis, minor=False)


def thinned(values: Iterable[float], factor: float) -> list[float]:
    """Of these values the first, and each that is at least a factor away from the last one kept."""
    kept = []
    for value in values:
        if not kept or max(value / kept[-1], kept[-1] / value) >= factor:
            kept.append(value)
    return kept
