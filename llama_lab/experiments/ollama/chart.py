"""Charts of the peers: rates side by side, rate against quality, a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_jax.placement import parse
from llama_lab.bench import standings
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import counted, listed, named_well, round_ratio, span, weights
from llama_lab.experiments.ollama import table
from llama_lab.figures import labels, notes, rows
from llama_lab.figures.labels import End, readable
from llama_lab.figures.marks import (
    FILE_READERS,
    WIDE,
    distance_label,
    distance_words,
    fastest_and_near,
    gaps_words,
    look,
    shade,
    speed_against_distance,
)
from llama_lab.figures.style import GREY, LIMIT_COLOUR, footnote, headline, new, styled

LINES = 5  # of a figure


@styled
def peer_ladder(
    entries: Sequence[dict],
    missing: Sequence[dict],
    prefill_limit: float | None,
) -> Figure:
    """Decode rate, prefill rate and time to first token of every subject, the fastest to decode on top, with intervals;
    the limit of each weight format beside.

    entries: `standings.ladder`. prefill_limit: prompt tokens/s that the machine's float32 arithmetic allows.
    """
    figure, panels = new(11, 0.5 * len(entries) + 1.7, columns=3, sharey=True)
    figure.get_layout_engine().set(wspace=0.07)  # numbers stand at the right of their panel, not at the next one's axis
    entries = sorted(entries, key=lambda e: -e["decode"].median if e["decode"].n else np.inf)
    heights = rows.heights(panels[0], [e["name"] for e in entries])
    panels[0].set_ylim(-0.7, len(entries) + 0.1)  # room for what the numbers are
    read = {e["name"]: weights(e["dtype"]) if e["dtype"] else "" for e in entries}
    read |= {
        e["name"]: f"{e['dtype']} weights, rounded once more" for e in entries if e["backend"] == standings.OPENVINO
    }
    file = next((e["dtype"] for e in entries if e["backend"] in FILE_READERS and e["dtype"]), "")
    kernels = {"gemv": "a kernel per matrix product", "fused": "one kernel call per token"}
    for e in (e for e in entries if e["dtype"] == "gguf"):
        read[e["name"]] = ", ".join(filter(None, (file or weights("gguf"), kernels.get(parse(e["name"]).kernels))))
    read |= {e["name"]: f"JAX, {read[e['name']]}" for e in entries if e["backend"] == standings.JAX}
    names = ["\n".join(filter(None, (named_well(name), read[name]))) for name in heights]
    panels[0].set_yticks([*heights.values()], names)
    more, less = "tokens/s (log scale)", "ms (log; less is better)"
    titles = {"decode": f"decode, {more}", "prefill": f"prefill, {more}", "ttft": f"first token, {less}"}
    for axes, (what, title) in zip(panels, titles.items(), strict=True):
        axes.grid(axis="y", visible=False)
        axes.set_xscale("log")
        for e in entries:
            row(axes, e, what, heights[e["name"]])
        numbers = "median (of limit)" if what == "decode" else "median"
        rows.beside(axes, len(entries) - 0.35, numbers, x=1.02, color=GREY)
        axes.set_title(title, loc="left", fontsize=10.5)
        readable(axes.xaxis)
        axes.tick_params(axis="x", labelsize=8.5)
        axes.tick_params(axis="y", labelsize=10)
    for e in entries:
        if not e["decode"].n:  # as far to the right as the words go
            words = f"no valid trial: {'; '.join(e['reasons'])[:WIDE] or 'not measured'}"
            style = dict(va="center", fontsize=8.5, color=LIMIT_COLOUR, transform=panels[0].get_yaxis_transform())
            panels[0].text(0.02, heights[e["name"]], words, zorder=9, **style).set_in_layout(False)
    above = dict(color=LIMIT_COLOUR, fontsize=9, ha="right", va="center")
    if limits := [e["limit"] for e in entries if e["decode"].n and e["limit"]]:
        panels[0].text(1.05 * limits[0], len(entries) - 0.35, "bandwidth limit", **above)
    wide = [e for e in entries if e["dtype"] == "float32"]
    if prefill_limit and wide:  # of those that multiply in float32; 8-bit products may pass it
        for e in wide:
            rows.tick(panels[1], prefill_limit, heights[e["name"]])
        panels[1].text(1.05 * prefill_limit, heights[wide[0]["name"]] + 0.5, "fp32 compute limit", **above)
    counts = [e["decode"].n for e in entries if e["decode"].n] or [0]
    n = f"n {'=' if len({*counts}) == 1 else '≥'} {min(counts)}"
    prompts = span((t.prompt_tokens for e in entries for t in e["rows"] if t.backend == standings.JAX), "d")
    marks = [f"Point: one of {n} answers; bar: median; band: 95% interval; prefill of {prompts} tokens"]
    ours, theirs = standings.fastest(entries), table.rival(entries)
    words = [f"{ours['name']} decodes {ours['decode'].median:.0f} tokens/s"] if ours else []
    other = f"{named_well(theirs['name'])}, the fastest other runtime," if theirs else ""
    words += [f"{other} {theirs['decode'].median:.0f}"] if theirs else []
    headline(figure, "; ".join(words) or "Nothing was measured")
    footnote(figure, "; ".join(filter(None, (*marks, gaps_words(missing)))))
    return figure


def row(axes, entry: dict, what: str, height: float) -> None:
    """One subject's trials, median and interval in one panel, and in the first its own limit."""
    summary, tint = entry[what], shade(entry)
    if not summary.n:
        return
    marker = look(entry["name"], entry["backend"])[1]
    rows.points(axes, entry["points"][what], height, tint, spread=0.16, even=True, s=13, marker=marker)
    rows.interval(axes, summary, height, mark=15)
    words = f"{summary.median:.0f}"
    if what == "decode" and entry["limit"]:
        rows.tick(axes, entry["limit"], height)
        words += f" ({summary.median / entry['limit']:.0%})"
    rows.beside(axes, height, words, 10.5, x=1.02)


@styled
def speed_and_quality(entries: Sequence[dict], distances: Sequence[dict]) -> Figure:
    """Decode rate against the distance of each subject's arithmetic from float32, every subject labelled; up is further
    away.

    distances: `quality.table`. What has no logits has no place, and is named below.
    """
    figure, axes = new(10.5, 6.4)
    known, tokens = {d["subject"]: d for d in distances}, max((d["tokens"] for d in distances), default=0)
    both = [(e, known.get(e["arithmetic"])) for e in entries if e["decode"].n]
    shown = [(e, d) for e, d in both if d and d["kl"] is not None]
    speed_against_distance(axes, shown)
    axes.set_ylabel(distance_label(f"{tokens:,} tokens of English"))
    headline(figure, fastest_and_near(shown))
    without = [
        f"{named_well(e['name'])} ({e['decode'].median:.0f} tokens/s; {distance_words(d)})"
        for e, d in both
        if d is None or d["kl"] is None
    ]
    footnote(figure, f"Distance not measured, so not drawn: {listed(without)}" if without else "")
    return figure


@styled
def conversation(
    talks: dict[str, dict],
    backends: dict[str, str],
    history: Sequence[int],
    new_tokens: int,
    reference: str,
    kept: bool = False,
) -> Figure:
    """Seconds of each turn of a conversation under the quickest (left), and of the whole under all (right), times as
    long as the reference's in words.

    talks: `table.talks`. history: prompt tokens of each turn. kept: by servers that keep the history.
    """
    figure, (left, right) = new(10.5, 4.6, columns=2, gridspec_kw={"width_ratios": [1.1, 1]})
    if not talks:
        headline(figure, "Nobody was asked to hold this conversation")
        return figure
    whole_ones = [name for name, f in talks.items() if f["total"].n] or list(talks)
    quickest = sorted(whole_ones, key=lambda name: talks[name]["total"].median)[:LINES]
    turns(left, {name: talks[name] for name in quickest}, backends, history, reference)
    left.set_ylabel(f"seconds to the end of {new_tokens} tokens,\nmedian (log scale)")
    heading = "Each turn reads only what is new" if kept else "Each turn reads all that was said before"
    left.set_title(heading + f" (the {LINES} quickest)" * (len(talks) > LINES), fontsize=10)
    whole(right, talks, backends, reference)
    said = longest_beside(talks, backends, len(history), reference)
    headline(figure, f"With the history kept, {said[0].lower()}{said[1:]}" if kept else said)
    return figure


def turns(axes, talks: dict[str, dict], backends: dict[str, str], history: Sequence[int], reference: str) -> None:
    """Medians of the seconds of each turn against the tokens before it."""
    ends = []
    for name, f in talks.items():
        tint, marker = look(name, backends[name])
        points = [(history[k], np.median(seconds)) for k, seconds in enumerate(f["turns"]) if seconds]
        dashed = name != reference and backends[name] == standings.JAX
        style = dict(color=tint, marker=marker, linewidth=1.8, linestyle="--" if dashed else "-")
        axes.plot(*zip(*points, strict=True), **style)
        ends.append(End(name, *points[-1], tint))
    labels.at_ends(axes, ends, 1.15)
    axes.set(xlim=(0, max(history) * 1.35))
    notes.log_scale(axes)
    axes.set_xlabel(f"tokens of history and question (turns 1 to {len(history)})")


def whole(axes, talks: dict[str, dict], backends: dict[str, str], reference: str) -> None:
    """Seconds of the whole conversation, one bar per subject."""
    talks = dict(sorted(talks.items(), key=lambda item: item[1]["total"].median if item[1]["total"].n else np.inf))
    heights = rows.heights(axes, list(talks))
    room = 1.4 * max((f["total"].median for f in talks.values() if f["total"].n), default=1)
    for name, f in talks.items():
        total, height = f["total"], heights[name]
        if not total.n:
            rows.beside(axes, height, "no conversation without a void turn", 8.5, x=0.02)
            continue
        axes.barh(height, total.median, height=0.55, alpha=0.75, color=look(name, backends[name])[0])
        axes.plot([total.low, total.high], [height] * 2, color="black", linewidth=2)
        words = "" if name == reference else f", {round_ratio(f['ratio'].value)}x"
        end = max(total.median, min(total.high, room) if np.isfinite(total.high) else 0)
        axes.text(end, height, f"  {total.median:.2f} s{words}", va="center", fontsize=8.5)
    axes.set_xlim(right=room)
    n = counted(f["total"].n for f in talks.values() if f["total"].n)
    ratios = f"x: ratio to {reference}, mean of pairs (not of the bars)"
    axes.set_xlabel(f"seconds (bar: median, {n}; line: 95% interval)\n{ratios}")
    axes.set_title("the whole conversation", fontsize=10)


def longest_beside(talks: dict[str, dict], backends: dict[str, str], count: int, reference: str) -> str:
    """How long the conversation takes under the quickest other runtime, beside the reference."""
    whole = {name: f for name, f in talks.items() if f["total"].n}
    others = [name for name in whole if name != reference and backends[name] != standings.JAX]
    if reference not in whole or not others:
        return f"{reference} or every other runtime lacks a whole conversation"
    quickest = min(others, key=lambda name: whole[name]["total"].median)
    ratio = whole[quickest]["ratio"]
    longer, than = f"takes {ratio.value:.2f} times as long{ratio.aside}", "as"
    if ratio.verdict == Verdict.UNDECIDED:
        longer, than = "is not decided to take longer", "than"
    return f"A conversation of {count} turns {longer} under {named_well(quickest)} {than} under {reference}"
