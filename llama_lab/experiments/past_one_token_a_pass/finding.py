"""What drafts were found to gain, task by task, in a sentence for a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import standings
from llama_lab.bench.numbers import round_ratio
from llama_lab.bench.statistics import UNDECIDED, Verdict
from llama_lab.bench.wording import listed, settled
from llama_lab.experiments.past_one_token_a_pass.measure import TASKS

NOUNS = {"open": "open questions", "copy": "a copy", "edit": "a copy with a word replaced"}


def past_one(entries: Sequence[dict], missing: Sequence[dict] = ()) -> str:
    """Of each placement with drafts what they do to its rate on each task, what the fastest takes of them on a copy,
    whether any token differed, and who was not measured. entries: of `table.table`."""
    drafted = list(
        dict.fromkeys(e["name"] for e in entries if e["ratio"] and e["ratio"].n and e["backend"] == standings.JAX)
    )
    said = []
    for name in drafted:
        found = {e["task"]: e for e in entries if e["name"] == name and e["ratio"] and e["ratio"].n}
        parts = [f"{found[task]['ratio'].words} on {NOUNS[task]}" for task in TASKS if task in found]
        said.append(f"with drafts {name} decodes at {listed(parts)} of its rate without")
    if best := standings.best([e for e in entries if e["task"] == "copy"], lambda e: e["passes"]):
        passes = best["passes"]
        said.append(
            f"on a copy a pass of {best['name']} makes {passes['tokens_a_pass']:.2f} tokens and"
            f" {passes['accepted']:.0%} of its drafts are accepted"
        )
    judged = [e for e in entries if e["equal"] is not None and e["backend"] == standings.JAX]
    other = list(dict.fromkeys(e["name"] for e in judged if not e["equal"]))
    if judged:
        said.append(f"{listed(other)} made other tokens than without" if other else "no token of ours differs")
    if absent := list(dict.fromkeys(gap["name"] for gap in missing)):
        said.append(f"{listed(absent)} {'was' if len(absent) == 1 else 'were'} not measured here")
    sentence = "; ".join(said) or "nothing was measured"
    return " ".join(filter(None, [claim(entries), f"{sentence[0].upper()}{sentence[1:]}."]))


def claim(entries: Sequence[dict]) -> str:
    """What drafts do to the fastest placement that has them, on a copy and on open questions; "" where none has."""
    drafted = [e for e in entries if e["ratio"] and e["ratio"].n and e["backend"] == standings.JAX]
    if (best := standings.best([e for e in drafted if e["task"] == "copy"])) is None:
        return ""
    on = {e["task"]: gained(e["ratio"]) for e in drafted if e["name"] == best["name"]}
    free = f"; on open questions they {on['open']}" if "open" in on else ""
    return f"Drafts under {best['name'].partition('+lookup')[0]} {on['copy']} on copied text{free}."


def gained(ratio) -> str:
    """`make 1.8 times the rate`, `gain nothing`, which way it goes where nobody knows by how much, or that it is
    undecided."""
    if ratio.verdict in UNDECIDED:
        return "may gain or lose"
    if not settled(ratio):
        return "gain" if ratio.verdict == Verdict.FASTER else "lose"
    return "gain nothing" if ratio.verdict == Verdict.EQUAL else f"make {round_ratio(ratio.value)} times the rate"
