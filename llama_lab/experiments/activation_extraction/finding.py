"""What extraction was found to gain: a sentence for its notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.numbers import round_ratio, within
from llama_lab.bench.statistics import DIFFERENT, UNDECIDED, Ratio, Verdict
from llama_lab.bench.wording import listed, with_n
from llama_lab.experiments.activation_extraction import table as extraction_table
from llama_lab.experiments.activation_extraction import workers_table
from llama_lab.experiments.activation_extraction.plan import Extraction
from llama_lab.experiments.activation_extraction.rungs import BASE, CUT, PINNED, PRODUCT
from llama_lab.experiments.activation_extraction.workers import ONE, Run

NAMES = {
    "N2 torch": "transformers' output_hidden_states",
    "N2 torch cut": "the same cut after the last layer that is kept",
}


def extraction(rows: Sequence[Extraction], missing: Sequence[dict] = (), seed: int = 0) -> str:
    """How much faster `extract` is than N1 and than torch, how near its slower ceiling, and which additions gained
    nothing.

    missing: rungs that did not run here, {name, reason}.
    """
    table = {e["subject"]: e for e in extraction_table.table(rows, seed)}
    mine = table.get(PRODUCT)
    if mine is None or not mine["rate"].n:
        why = "; ".join(mine["reasons"]) if mine else "it was not asked for"
        return f"extract has no valid pass, so there is nothing to compare ({why})."
    said = [f"It puts {mine['rate'].median:,.0f} tokens/s of a quarter of the layers on the disk"]
    if (alike := extraction_table.like_for_like(rows, seed)).n:
        said.append(over(alike, "of a careful first version that keeps the same layers"))
    if BASE in table and mine["ratio"].n:
        said.append(over(mine["ratio"], "of one jit of every layer with blocking copies (N1)"))
    said += [over(found, f"of {NAMES[name]}") for name, found in extraction_table.rivals(rows, seed).items() if found.n]
    if (found := extraction_table.overlap(rows, seed=seed)).n:
        share = f"{found.value:.0%}{within(found, '.0%')} of the slower of its two ceilings"
        said.append(share + (" (n = 1)" if found.n == 1 else ""))
    return (
        f"{claim(rows, seed)} "
        + "; ".join([", ".join(said), *steps(rows, seed), *processes(rows, seed), *left_out(table, missing)])
        + "."
    )


def claim(rows: Sequence[Extraction], seed: int = 0) -> str:
    """How many times as fast `extract` is as others that keep the same layers; what is undecided is left out."""
    found = {"a careful first version": extraction_table.like_for_like(rows, seed)}
    found["transformers"] = extraction_table.rivals(rows, seed).get(CUT)
    decided = {who: r for who, r in found.items() if r and r.n and r.verdict in DIFFERENT}
    if not decided:
        return (
            "Whether `extract` writes the same layers faster than a careful first version, these passes do not decide."
        )
    words = [
        f"{round_ratio(r.value)} times as{' fast as' * (not i)} {who}" for i, (who, r) in enumerate(decided.items())
    ]
    return f"Keeping the same layers, `extract` is {listed(words)}."


def over(found: Ratio, of: str) -> str:
    """One ratio in words; one that these passes do not decide is said to be so."""
    return f"{with_n(found)} {of}" + (", which these passes do not decide" if found.verdict in UNDECIDED else "")


def steps(rows: Sequence[Extraction], seed: int) -> list[str]:
    """What the additions are worth: those that gain, and those that do not."""
    found = extraction_table.gains(rows, seed)
    better = {name: r for name, r in found.items() if r.n and r.verdict == Verdict.FASTER}
    worse = {name: r for name, r in found.items() if r.n and r.verdict == Verdict.SLOWER}
    same = [f"“{name}”" for name, r in found.items() if r.n and r.verdict == Verdict.EQUAL]
    open_ = [f"“{name}”" for name, r in found.items() if r.n and r.verdict in UNDECIDED]
    said = [f"what gains: {', '.join(f'“{name}” {r.words}' for name, r in better.items())}"] if better else []
    said += [f"{', '.join(f'“{name}” {r.words}' for name, r in worse.items())} alone costs time"] if worse else []
    said += [f"{listed(same)} {'gains' if len(same) == 1 else 'gain'} nothing here"] if same else []
    return said + ([f"no gain is shown for {listed(open_)}"] if open_ else [])


def processes(rows: Sequence[Extraction], seed: int) -> list[str]:
    """Tokens/s of the most processes over those of the fewest."""
    scaled = extraction_table.scaled(rows, seed)
    if len(scaled) < 2 or not scaled[-1]["ratio"].n:
        return []
    few, most = scaled[0]["workers"], scaled[-1]["workers"]
    return [f"{most} processes on the same cores make {over(scaled[-1]['ratio'], f'of the tokens/s of {few}')}"]


def left_out(table: dict[str, dict], missing: Sequence[dict]) -> list[str]:
    """Rungs without a time: wrong values, or nothing here to run them on."""
    wrong = [name for name, e in table.items() if not e["rate"].n and e["wrong"]]
    said = [f"{', '.join(wrong)} wrote other values and has no time"] if wrong else []
    gaps = {gap["name"]: gap["reason"] for gap in missing}
    if PINNED in gaps:
        said.append(f"{PINNED} is not measured ({gaps.pop(PINNED)})")
    return said + ([f"not measured: {', '.join(gaps)}"] if gaps else [])


def workers(runs: Sequence[Run], seed: int = 0) -> str:
    """What several workers make of one process, what a unit costs each engine, and the tokens from which on that is
    below 2 % of its time."""
    scaled, costs = workers_table.scaled(runs, seed), workers_table.overheads(runs, seed)
    if not (rate := workers_table.of_one(scaled)):
        return "No run of one process counts, so there is nothing to compare several workers with."
    said = [
        over(e.ratio, f"of one process by {e.workers} {e.subject}") for e in scaled if e.subject != ONE and e.ratio.n
    ]
    for subject, cost in costs.items():
        spent, needed = workers_table.milliseconds(cost), workers_table.smallest(cost.median, rate)
        said.append(f"a unit costs {spent} of a worker under {subject}, below 2 % from {needed:,.0f} tokens on")
    return f"One process writes {rate:,.0f} tokens/s; " + "; ".join(said or ["nobody was measured beside it"]) + "."
