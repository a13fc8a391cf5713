"""What a mask leaves of the decode rate: as a table, a sentence and a chart."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from llama_lab.bench import frames, statistics, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio, Verdict
from llama_lab.bench.wording import counted, listed, named_well
from llama_lab.experiments.jit_placement.masks import GRAMMARS, HOST, TABLE
from llama_lab.figures import rows
from llama_lab.figures.marks import gaps_words
from llama_lab.figures.style import GREY, LIMIT_COLOUR, colour, footnote, headline, new, styled

GENERATE = GRAMMARS[0]
PYTHONS = f"{named_well(GENERATE)}: llama.cpp, by the generator of its Python package."
MASK = "Mask: rules out what the grammar forbids, in the compiled program or by the host (Python) between two tokens."
LABELS = {"program": "mask in the program", "host": "mask by the host", "its own": "its own grammar"}
DRAWN, ROWS = ("loop+fused", *GRAMMARS, "step+fused", "step", "loop"), 7  # of the figure, foremost first; rows at most


def place(trial: Trial) -> tuple[int, int, int]:
    return trial.process, trial.block, trial.prompt


def table(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """One entry per subject under a grammar: {name, subject: without the way, where: the mask is made, free, masked:
    Summary of rates, ratio: masked over free, paired by process and text, points: pair by pair, n, void, reasons}."""
    entries = []
    for name in summary.subjects(sorted(trials, key=lambda t: t.subject)):
        base, found, way = name.partition(TABLE)
        if not found:
            continue
        rates = [summary.rates(trials, each, place=place) for each in (base, name)]
        void = [t for t in summary.warm(trials, name, valid=False) if not t.valid]
        where = "its own" if base in GRAMMARS else "host" if way else "program"
        pairs = sorted(rates[0].keys() & rates[1].keys())
        middles = [statistics.summarise([*r.values()], seed, [p for p, *_ in r]) for r in rates]
        entries.append(
            dict(name=name, subject=base, where=where, free=middles[0], masked=middles[1], n=len(pairs), void=len(void))
            | dict(ratio=summary.over(rates[1], rates[0], seed), points=[rates[1][p] / rates[0][p] for p in pairs])
            | dict(reasons=sorted({t.reason for t in void}))
        )
    return sorted(entries, key=lambda e: (e["where"] == "its own", e["subject"].count("+"), e["subject"], e["where"]))


def claim(trials: Sequence[Trial], seed: int = 0) -> Claim:
    """The mask in the program beside that of the host, under the placement on which they differ most."""
    hosted = [t.subject for t in trials if t.subject.endswith(HOST)]
    pairs = [
        Comparison(
            summary.over(*(summary.rates(trials, base + way, place=place) for way in (TABLE, HOST)), seed),
            f"{base} with the mask in the program",
            "the mask made by the host",
        )
        for base in dict.fromkeys(name.removesuffix(HOST) for name in hosted)
    ]
    if not (known := [pair for pair in pairs if pair.ratio.n]):
        return Claim("No valid answers were masked both in the program and by the host.")
    most = max(known, key=lambda pair: pair.ratio.value)
    said = "{name} decodes {gain} times as fast as with {other}."
    return stated(said, name=most.subject, gain=most, other=most.baseline) or most.generic


def by_place(entries: Sequence[dict]) -> dict[str, tuple[list[dict], list[dict]]]:
    """By the place of the mask: (the entries with pairs, those among them that are shown to lose rate)."""
    counted = {where: [e for e in entries if e["where"] == where and e["n"]] for where in LABELS}
    return {
        where: (mine, [e for e in mine if e["ratio"].verdict == Verdict.SLOWER])
        for where, mine in counted.items()
        if mine
    }


def slowed(entries: Sequence[dict]) -> str:
    """Whom each kind of mask is shown to slow down, the most first, and to what share of the free rate: `Forcing JSON
    slows Ollama to 0.64x and step masked by the host to 0.93x; with a mask in the program the cost is undecided`.
    entries: of `table`."""
    slow, others, placed = [], {}, by_place(entries)
    few = sum(len(lost) for _, lost in placed.values()) <= 3  # else a kind of mask has its number of subjects
    for where, (mine, lost) in placed.items():
        mask = LABELS[where].replace("its", "runtime's")
        masked = {"program": " masked in the program", "host": " masked by the host"}.get(where, "")
        if few or len(lost) == 1:
            slow += [(e["ratio"].value, f"{named_well(e['subject'])}{masked} to {e['ratio'].value:.2f}x") for e in lost]
        elif lost:
            least = min(e["ratio"].value for e in lost)
            slow.append((least, f"{len(lost)} of {len(mine)} with a {mask} to as little as {least:.2f}x"))
        if not lost:
            open_ = any(e["ratio"].verdict == Verdict.UNDECIDED for e in mine)
            others.setdefault("undecided" if open_ else "below 2%", []).append(f"a {mask}")
    if not placed:
        return "No valid answers under a grammar"
    said = f"slows {listed([words for _, words in sorted(slow)])}" if slow else "is not shown to slow any subject"
    return "; ".join([f"Forcing JSON {said}", *(f"with {listed(m)} the cost is {cost}" for cost, m in others.items())])


def left(entries: Sequence[dict]) -> list[str]:
    """What each kind of mask leaves of the free rate, from the least to the most; what it is shown to cost, or may
    cost although nothing is shown."""
    lines = []
    for where, (mine, lost) in by_place(entries).items():
        ends = dict.fromkeys(f"{pick(e['ratio'].value for e in mine):.0%}" for pick in (min, max))
        words = listed([f"{named_well(e['subject'])} ({loss(e['ratio'])})" for e in lost])
        words = f"a loss is shown for {words}" if lost else "no loss is shown"
        if rest := [e for e in mine if e not in lost]:
            least = min(rest, key=lambda e: e["ratio"].low)
            may = f"the interval of {named_well(least['subject'])} allows up to {1 - least['ratio'].low:.0%}"
            words += f"{'; ' if lost else ', but '}{may}" * (least["ratio"].low < 1)
        n = f"{len(mine)} subject{'s' * (len(mine) > 1)}"
        lines.append(f"{LABELS[where]}: {' to '.join(ends)} of the free rate ({n}); {words}")
    return lines


def loss(ratio: Ratio) -> str:
    """`7% [2%, 12%]`: what a ratio of rates leaves to 1."""
    return f"{1 - ratio.value:.0%} [{1 - ratio.high:.0%}, {1 - ratio.low:.0%}]"


def foremost(entries: Sequence[dict]) -> list[dict]:
    """At most ROWS entries, in their order: those that are shown to lose, then those of DRAWN, then others."""
    named, wanted = [e for _, lost in by_place(entries).values() for e in lost], {n: at for at, n in enumerate(DRAWN)}

    def place(i: int) -> tuple[bool, int]:
        return entries[i] not in named, wanted.get(entries[i]["subject"], len(DRAWN))

    return [entries[i] for i in sorted(sorted(range(len(entries)), key=place)[:ROWS])]


COLUMNS = frames.Columns(
    {
        "subject": "subject",
        "mask made in": "where",
        "free tok/s": "free.median",
        "masked tok/s": "masked.median",
        **frames.interval("masked over free", "ratio", "value"),
        "n": "n",
        "void": "void",
    },
    index=("subject", "mask made in"),
    digits=3,
)


@styled
def kept(entries: Sequence[dict], missing: Sequence[dict] = (), seed: int = 0) -> Figure:
    """The decode rate with a grammar over that without, a row per subject and place of the mask. entries: of
    `table`, of which the `foremost` are drawn. missing: subjects that did not run."""
    every, entries = entries, sorted(foremost(entries), key=lambda e: [*LABELS].index(e["where"]))
    figure, axes = new(9.5, 0.5 * len(entries) + 2)
    names = [f"{named_well(e['subject'])}, {LABELS[e['where']]}" for e in entries]
    heights = rows.heights(axes, names)
    for name, e in zip(names, entries, strict=True):
        if not e["n"]:
            words = f"no valid pair: {'; '.join(e['reasons'])[:80] or 'not measured'}"
            rows.beside(axes, heights[name], words, x=0.01, color=LIMIT_COLOUR)
            continue
        rows.points(axes, e["points"], heights[name], colour(e["subject"]), seed)
        rows.interval(axes, e["ratio"], heights[name], colour(e["subject"]))
        rows.beside(axes, heights[name], e["ratio"].words)
    axes.axvline(1, color=GREY, linewidth=0.9)
    over = dict(ha="center", va="bottom", fontsize=9, color=GREY, transform=axes.get_xaxis_transform())
    axes.text(1, 1, "no cost", **over)
    ends = [point for e in entries for point in e["points"]]
    axes.set_xlim(0, 1.05 * max(1.0, *ends) if ends else 1.05)
    meant = f"point: one of {counted(e['n'] for e in entries)} pairs; bar: mean; band: its 95% interval"
    axes.set_xlabel(f"decode rate of answers forced to be JSON over that of free answers\n({meant})")
    headline(figure, slowed(every))
    left_out = [e for e in every if e not in entries]
    hidden = summary.grouped(left_out, lambda e: LABELS[e["where"]], lambda e: named_well(e["subject"]))
    hidden = "; ".join(f"{listed(names)}, {where}" for where, names in hidden.items())
    hidden = hidden and f"Only in the table: {hidden}."
    meant = PYTHONS if any(e["subject"] == GENERATE for e in entries) else ""
    footnote(figure, " · ".join(filter(None, (MASK, meant, hidden, gaps_words(missing)))))
    return figure
