"""What the published plan of extraction promised, beside what was measured: its six changes, all of them together, and
its budget of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, statistics, summary
from llama_lab.bench.published import ends, of
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import listed
from llama_lab.experiments.activation_extraction import rungs
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction.passes import STAGES, Extraction
from llama_lab.experiments.activation_extraction.rungs import ADDED_TO, BASE, COPIES, FIRST, PRODUCT, UNJITTED

CLAIM, NOT_MEASURED = "extraction", "not measured yet"
CHANGES = {  # the plan's six, as `data/published.csv` names them → the rung that makes each
    "jit of the extraction": COPIES,
    "asynchronous copies": rungs.ASYNC,
    "fixed batches": rungs.FIXED,
    "pipelining": rungs.THREADS,
    "vmap": rungs.VMAPPED,
    "scan over batches": rungs.SCANNED,
}
EVERYTHING = {  # `extract` over each of these: fewer layers and packing, of which the plan has nothing, are in it
    "`extract` over the plan's start": UNJITTED,
    "`extract` over its code's start": COPIES,
    "`extract` over the first version": BASE,
    "`extract` over the first version with the same layers": FIRST,
}


def changes(rows: Sequence[Extraction], seed: int = 0) -> list[dict]:
    """One entry per change of the plan: {change, promised, least: that is promised, standing, measured: the ratio in
    words, ratio, verdict: in words, pairs, rung, to: what it is measured over, programs and compile_s of both first
    passes, in words}.

    Two more follow: what the plan's own code does where it says `vmap`, and `extract` over where the plan began.
    """
    entries = [dict(change=change) | promised(change) | step(rows, rung, seed) for change, rung in CHANGES.items()]
    stacked = dict(change="vmap as its code is: layers stacked")
    entries.append(stacked | promised("vmap") | step(rows, rungs.STACKED, seed))
    for change, to in EVERYTHING.items():
        known = promised("gain", "potential") if to == UNJITTED else dict(promised="", standing="")
        entries.append(dict(change=change) | known | step(rows, PRODUCT, seed, to))
    return entries


def kept(entries: Sequence[dict]) -> str:
    """How many of the plan's changes were measured here, which of them keep the least that was promised, and what each
    makes of the rung before it. entries: `changes`."""
    planned = [e for e in entries if e["change"] in CHANGES]
    found = [e for e in planned if e["ratio"] and e["ratio"].n]
    absent = [e["change"] for e in planned if not e["ratio"] or not e["ratio"].n]
    keeping = [e["change"] for e in found if e["ratio"].low >= e["least"]]
    below = [e["change"] for e in found if e["ratio"].high < e["least"]]
    unsure = [e["change"] for e in found if e["change"] not in (*keeping, *below)]
    if not found:
        return f"None of the {len(CHANGES)} changes was measured."
    if len(below) == len(found):
        words = f"On warm passes here none of the {len(found)} measured changes keeps its promise; each interval ends"
        words += " below it"
    else:
        parts = [
            f"{listed(keeping)} keep{'s' * (len(keeping) == 1)} the promise" if keeping else "",
            f"{listed(unsure)} {'is' if len(unsure) == 1 else 'are'} undecided" if unsure else "",
            f"{listed(below)} {'does' if len(below) == 1 else 'do'} not, as the interval ends below it"
            if below
            else "",
        ]
        words = f"Of the {len(found)} change{'s' * (len(found) != 1)} measured here on warm passes, " + "; ".join(
            filter(None, parts)
        )
    counts = Counter(e["ratio"].verdict for e in found)
    judged = [f"{counts[v]} {'is' if counts[v] == 1 else 'are'} {v}" for v in Verdict if counts[v]]
    words += f". Against the rung that it is added to, {listed(judged)}."
    return f"{words} Not measured: {listed(absent)}." if absent else words


def first_passes(rows: Sequence[Extraction]) -> str:
    """Whether fixed batches keep their promise where compilation counts: the first pass, which compiles, beside that of
    the rung before. "" where either is not measured."""
    here, rung = extraction_table.ladder(rows), CHANGES["fixed batches"]
    before, after = (
        [row.wall_ns / 1e9 for row in here if row.subject == name and row.phase == "cold" and row.valid]
        for name in (ADDED_TO[rung], rung)
    )
    if not before or not after:
        return ""
    took, least = [extraction_table.middle(first) for first in (before, after)], promised("fixed batches")["least"]
    enough = "as promised" if took[0] / took[1] >= least else "less than promised"
    return (
        f"With compilation, first passes under fixed batches were {took[0] / took[1]:.1f}x as fast ({took[0]:.1f} →"
        f" {took[1]:.1f} s, n = {min(len(before), len(after))}), {enough} ({least:g}x)."
    )


def promised(*quantities: str) -> dict:
    """{promised: the published factors in words, least: of the first, standing}."""
    promised_ends = [ends(CLAIM, quantity) for quantity in quantities]
    factors = (" to ".join(f"{end.value:g}x" for end in both) for both in promised_ends)
    least = promised_ends[0][0]
    return dict(promised="; ".join(factors), least=least.value, standing=least.standing)


def step(rows: Sequence[Extraction], rung: str, seed: int, to: str = "") -> dict:
    """{measured, ratio: None if it was not measured, verdict, pairs, rung, to, programs, compile_s} of a rung over
    another: by default the one that it adds a thing to."""
    to = to or ADDED_TO[rung]
    here = extraction_table.ladder(rows)
    if not {rung, to} <= set(extraction_table.measured(here)):
        none = dict(measured=NOT_MEASURED, ratio=None, verdict="", pairs=0)
        return none | dict(rung=rung, to=to, programs="", compile_s="")
    both = [[row for row in here if row.subject == name and row.phase == "cold" and row.valid] for name in (to, rung)]
    programs, seconds = (
        " → ".join(form.format(extraction_table.middle([read(row) for row in first])) for first in both)
        for form, read in (("{:.0f}", lambda row: row.compiled), ("{:.1f}", lambda row: row.compile_seconds))
    )
    ratio = summary.paired_ratio(here, rung, to, seed)
    measured, verdict = (ratio.words, ratio.judged) if ratio.n else ("no pair of valid passes", "")
    about = dict(measured=measured, ratio=ratio, verdict=verdict, pairs=ratio.n)
    return dict(**about, rung=rung, to=to, programs=programs, compile_s=seconds)


COLUMNS = frames.Columns(
    {
        **frames.same("change", "promised", "standing", "measured", "verdict", "pairs", "rung"),
        "over": "to",
        "programs": "programs",
        "compile s": "compile_s",
    },
    index="change",
)


def budget(meta: dict, seed: int = 0) -> list[dict]:
    """The plan's budget of a batch beside ours, an entry a stage and one for all: {stage, before, share, after:
    published seconds, here: Summary of ms, own: its share of ours}. None if the plan has no such stage, and
    nothing at all where ours is not recorded."""
    spent = extraction_table.budget(meta)
    if not spent:
        return []
    lines = {stage: [entry[stage] for entry in spent] for stage in STAGES} | {"all": [sum(e.values()) for e in spent]}
    planned = [stage for stage in STAGES if stage != "disk"]  # which the plan does not count
    known = {when: {stage: of(CLAIM, f"{when}, {stage}").value for stage in planned} for when in ("before", "after")}
    known = {when: seconds | {"all": sum(seconds.values())} for when, seconds in known.items()}
    own = float(np.median(lines["all"]))
    entries = []
    for stage, values in lines.items():
        before, here = known["before"].get(stage), statistics.summarise(values, seed)
        share = before and before / known["before"]["all"]
        about = dict(stage=stage, before=before, share=share, after=known["after"].get(stage))
        entries.append(about | dict(here=here, own=here.median / own))
    return entries


BUDGET = frames.Columns(
    {
        "stage": "stage",
        "published s": "before",
        "share of it": "share",
        "promised s": "after",
        **frames.interval("here ms", "here"),
        "share here": "own",
    },
    index="stage",
    digits={"published s": 2, "promised s": 2, "here ms": 1, "low": 1, "high": 1, "share of it": 2, "share here": 2},
)
