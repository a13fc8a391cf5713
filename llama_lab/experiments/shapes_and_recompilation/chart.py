"""Charts of streams of requests: when each policy compiles, where its time goes, and three surprises with their
cures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from llama_lab.bench import workload
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import listed
from llama_lab.experiments.shapes_and_recompilation import table
from llama_lab.experiments.shapes_and_recompilation.table import Account, middle
from llama_lab.figures import bars, rows
from llama_lab.figures.bars import Part
from llama_lab.figures.style import GREY, OTHERS, footnote, headline, new, styled

LOST, FIRST, WORK, WASTE = OTHERS[5], OTHERS[1], OTHERS[4], OTHERS[0]  # parts of time: no subject's
PARTS = {
    "work": Part(WORK),
    "compiling": Part(LOST, "//"),
    "rest of first calls": Part("#BBBBBB", ".."),
}
WARM = {
    "useful work": Part(WORK),
    "padding": Part(WASTE, "xx"),
    "copying": Part(OTHERS[2], "\\\\"),
}
SURPRISES = {"first request of the process": Part(FIRST), "later requests: the surprise": Part(LOST, "//")}
LABELS = {
    "work": "the work itself (timed once warm; left: with its padding)",
    "padding": "extra time over exact lengths",
    "copying": "extra time of copying",
}
LARGEST = 1700  # area of the largest mark, points squared


@styled
def compilations(lanes: dict[str, list[dict]], accounts: Sequence[Account]) -> Figure:
    """A lane a policy, requests in the order they came; a mark where programs were compiled, its area the seconds that
    took.

    lanes: `table.by_request` of each subject. accounts: of the same subjects.
    """
    figure, axes = new(10, 0.72 * len(lanes) + 2.2)
    heights, most = rows.heights(axes, list(lanes)), max(step["seconds"] for lane in lanes.values() for step in lane)
    for a in accounts:
        height = heights[a.subject]
        for i, step in enumerate(lanes[a.subject], 1):
            if step["programs"]:
                area = LARGEST * step["seconds"] / most
                axes.scatter(i, height, s=area, color=LOST, alpha=0.75, linewidths=0, zorder=3)
                axes.text(i, height, str(step["programs"]), ha="center", va="center", fontsize=10, zorder=4)
            else:
                axes.plot(i, height, "|", color=GREY, markersize=9)
        spread = f" [{min(a.lost):.1f}, {max(a.lost):.1f}]" if len(a.lost) > 1 else ""
        rows.beside(axes, height, f"{a.programs} programs\n{middle(a.lost):.1f} s{spread} lost", 9.5)
    tokens = [step["tokens"] for step in next(iter(lanes.values()))]
    axes.set_xticks(range(1, len(tokens) + 1), [f"{i}\n{n}" for i, n in enumerate(tokens, 1)])
    axes.set_xlim(0.5, len(tokens) + 0.5)
    axes.set_xlabel("request, in the order they came to a fresh process; below it the tokens of its prompt")
    n = min(len(a.blocks) for a in accounts)
    middles = f"Medians of n = {n} processes; in brackets the least and the most" if n > 1 else "n = 1 process a policy"
    ends = [pick(accounts, key=lambda a: a.programs) for pick in (min, max)]
    few, many = (f"{middle(a.lost):.1f} s" for a in ends)
    said = f"Over {len(tokens)} requests {table.does(ends[0].subject, 'cost')} {few} of compiling"
    headline(figure, said + f", {table.called(ends[1].subject)} {many}" * (ends[0] is not ends[1]))
    marks = f"Number: programs compiled. Area: seconds lost (largest {most:.1f} s). Tick: nothing compiled."
    footnote(figure, f"{marks} {middles}.")
    return figure


@styled
def stream_seconds(accounts: Sequence[Account], ratios: dict[str, Ratio]) -> Figure:
    """Seconds to serve the stream: from a fresh process work, compiling and the rest of first calls, every process's
    total as a point (left); once warm useful work and what a policy adds to it (right).

    ratios: each subject's total over the fastest one's.
    """
    parts, beyond = table.parts(accounts), table.warm_parts(accounts)
    figure, (axes, warm) = new(11.5, 0.62 * len(accounts) + 2.4, columns=2, sharey=True, width_ratios=(1.6, 1))
    heights = rows.heights(axes, [a.subject for a in accounts])
    warm.grid(axis="y", visible=False)
    warm.tick_params(axis="y", length=0)
    for a in accounts:
        height, lengths = heights[a.subject], parts.get(a.subject, {})
        bars.stack(axes, height, [(lengths.get(name, 0.0), part) for name, part in PARTS.items()])
        axes.plot(a.total, [height] * len(a.total), "o", color="black", markersize=4, zorder=4)
        rows.beside(axes, height, total_words(a, ratios.get(a.subject)), 9.5)
        if mine := beyond.get(a.subject, {}):
            ms = bars.stack(warm, height, [(1e3 * seconds / a.requests, WARM[name]) for name, seconds in mine.items()])
            rows.beside(warm, height, f"{ms:.0f} ms, {a.padding:.0%} padding", 9.5)
    drawn = {name for mine in beyond.values() for name, seconds in mine.items() if seconds}
    shown = PARTS | {name: part for name, part in WARM.items() if name in drawn - {"useful work"}}
    bars.legend(axes, {LABELS.get(name, name): part for name, part in shown.items()})
    figure.legend(loc="outside lower center", ncols=len(shown), fontsize=9.5)
    n = min(len(a.blocks) for a in accounts)
    served = f"seconds to serve {accounts[0].requests} requests one after the other\n(point: a process, n = {n};"
    paired = f"mean of n ratios to the fastest{', with its 95% interval' * (n > 1)}"
    axes.set_xlabel(f"{served} bar: median process;\nx: {paired})")
    warm.set_xlabel("ms per request, the same stream again\n(bar: median; padding: share of prompt positions)")
    axes.set_title("from a fresh process", fontsize=10)
    warm.set_title("once warm", fontsize=10)
    headline(figure, once_warm(accounts))
    return figure


def once_warm(accounts: Sequence[Account]) -> str:
    """What the policy that is fastest from a fresh process, and exact lengths, which pad nothing, take there and once
    nothing compiles; or the fastest, where exact lengths are not faster."""
    known = {a.subject: a for a in accounts if np.isfinite(middle(a.warm))}
    ms = {name: 1e3 * middle(a.warm) / a.requests for name, a in known.items()}
    best = table.fastest(accounts)
    if not ms or not best:
        return "No policy has a time"
    least = min(ms, key=ms.get)
    if ms.get(workload.EXACT, np.inf) < ms.get(best.subject, np.inf):
        least = workload.EXACT
    first, rival = table.called(best.subject), table.called(least)
    if best.subject == least:
        fastest = f"{first[0].upper()}{first[1:]} {'is' if table.single(best.subject) else 'are'} fastest"
        return f"{fastest} in a fresh process and once warm, at {ms[least]:.0f} ms a request"
    took = middle(known[least].total)
    said = f"Fresh, {table.does(best.subject, 'serve')} {best.requests} requests in {middle(best.total):.1f} s"
    said += f", {rival} in {took:.1f}" * bool(np.isfinite(took))
    if best.subject not in ms:
        return f"{said}; warm, {rival} in {ms[least]:.0f} ms each"
    said += f"; warm, in {ms[best.subject]:.0f} and {ms[least]:.0f} ms each"
    said += f" ({rival})" * (not np.isfinite(took))
    verdict = table.ratio(best, known[least], of="warm").verdict
    return said + {Verdict.SLOWER: "", Verdict.EQUAL: " (level)"}.get(verdict, " (undecided)")


def total_words(a: Account, ratio: Ratio | None) -> str:
    """`23.1 s · 3.42x [3.10, 3.77]`, over the fastest, or why there is no total."""
    if not np.isfinite(middle(a.total)):
        return f"{a.wrong} requests have wrong tokens: no time"
    return f"{middle(a.total):.1f} s · {ratio.words if ratio and ratio.n else 'fastest'}"


@styled
def surprises(pairs: dict[str, tuple[Account, Account]]) -> Figure:
    """Seconds lost to compiling by three streams and by their cures, for the first request and for what came after it.

    pairs: as `table.surprises` gives them.
    """
    every = [a for pair in pairs.values() for a in pair]
    figure, axes = new(11, 0.58 * len(every) + 2.2)
    heights = rows.heights(axes, [a.subject for a in every])
    cures = {cured.subject for _, cured in pairs.values()}
    axes.set_yticks([*heights.values()], [f"{'cure: ' * (name in cures)}{name}" for name in heights])
    bold = dict(fontsize=9.5, fontweight="bold", va="bottom", transform=axes.get_yaxis_transform())
    for i, (title, pair) in enumerate(pairs.items()):
        for a in pair:
            height, lost, later = heights[a.subject], middle(a.lost), middle(a.later)
            bars.stack(axes, height, zip((lost - later, later), SURPRISES.values(), strict=True), 0.5)
            axes.plot(a.lost, [height] * len(a.lost), "o", color="black", markersize=4, zorder=4)
            words = f"{a.programs} programs, {a.surprises} of them later: {later:.1f} s"
            words = words if a.surprises else f"{a.programs} programs, all for the first request"
            axes.text(max(a.lost), height, "  " + words, va="center", fontsize=9)
        top = heights[pair[0].subject]
        axes.text(0, top + 0.36, title[0].upper() + title[1:], **bold)
        if i:
            axes.axhline(top + 0.72, color="#CCCCCC", linewidth=0.8)
    axes.set_ylim(top=len(every) - 0.1)
    for label, part in SURPRISES.items():
        edge = "white" if part.hatch else None
        axes.barh(0, 0, color=part.color, hatch=part.hatch, edgecolor=edge, label=label)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9.5)
    axes.set_xlim(0, 1.45 * max(max(a.lost) for a in every))
    n = min(len(a.blocks) for a in every)
    axes.set_xlabel(f"seconds lost to compiling (point: one process, n = {n}; bar: median)")
    dearest = sorted(pairs, key=lambda name: -middle(pairs[name][0].later))
    seconds = listed([f"{middle(pairs[name][0].later):.1f}" for name in dearest])
    claim = f"{listed(dearest)} cost {seconds} s of compiling after the first request"
    left = f"{sum(middle(cured.later) for _, cured in pairs.values()):.1f}"
    headline(figure, f"{claim[0].upper()}{claim[1:]}; cures leave {f'{left} s' if float(left) else 'none'}")
    return figure
