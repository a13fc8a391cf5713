"""What compiled kernels were found to gain, and where a token's time goes under them: a sentence for a notebook."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llama_lab.bench import standings
from llama_lab.bench.numbers import within
from llama_lab.bench.statistics import DIFFERENT, UNDECIDED, Verdict
from llama_lab.bench.wording import first_before, listed, raced
from llama_lab.experiments.compiled_kernels import rows, scaling, size_table, where

WORDS = {Verdict.FASTER: "sooner at", Verdict.SLOWER: "later at", "": "undecided at"}


def compiled_kernels(
    races: Sequence[dict],
    parts: Sequence[dict],
    by_context: dict[str, list[dict]],
    by_size: Sequence[dict] = (),
    costs: Sequence[dict] = (),
    missing: Sequence[dict] = (),
) -> str:
    """Whose first token is sooner, what a token's time is made of, what a longer context leaves of a rate, what a
    larger model leaves of the lead, and what further rows cost.

    races: of `same_file.races`. parts: of `where.table`. by_context: subject → points, of `scaling.axis_of`.
    by_size: of `size_table.table`. costs: of `rows.table`. missing: subjects that did not run.
    """
    said = [*sooner(races), *taken_apart(parts), *kept(by_context), *ahead(by_size), *together(costs)]
    if absent := list(dict.fromkeys(gap["name"] for gap in missing)):
        said.append(f"{listed(absent)} {'was' if len(absent) == 1 else 'were'} not measured here")
    sentence = "; ".join(said) or "nothing was measured"
    lead = claim(by_size) or (first(races) if said else "")
    return " ".join(filter(None, [lead, f"{sentence[0].upper()}{sentence[1:]}."]))


def first(races: Sequence[dict]) -> str:
    """What is said first where no size was measured."""
    words = first_before(races)
    return f"{words}." if words else "Of compiled kernels only parts were measured here."


def claim(by_size: Sequence[dict], what: str = size_table.DECODE) -> str:
    """On how many files a placement on compiled kernels decodes, or reads short prompts, faster than all the
    others measured; "" where no size was measured."""
    mine = [e for e in size_table.ours(by_size) if e["what"] == what and e["ratio"].n]
    mine = [e for e in mine if e["name"] == mine[0]["name"] and e["tokens"] == min(m["tokens"] for m in mine)]
    if not mine:
        return ""
    verdicts = [e["ratio"].verdict for e in mine]
    ahead, open_ = verdicts.count(Verdict.FASTER), sum(v in UNDECIDED for v in verdicts)
    left = ", undecided on the rest" if open_ == len(mine) - ahead > 0 else ""
    verb = (
        "After short texts compiled kernels decode"
        if what == size_table.DECODE
        else "Compiled kernels read short prompts"
    )
    others = listed(list(dict.fromkeys(e["backend"] for e in by_size if e["backend"] != standings.JAX)))
    return f"{verb} faster than {others} on {ahead} of {len(mine)} files{left}."


def sooner(races: Sequence[dict]) -> list[str]:
    """`beside the soonest of llamacpp and ik-llamacpp the first token of step+fused comes sooner at 10 and 50 prompt
    tokens`."""
    known, others = raced(races)
    by: dict[str, list[str]] = {}
    for race in known:
        verdict = race["ratio"].verdict
        by.setdefault(verdict if verdict in DIFFERENT else "", []).append(str(race["tokens"]))
    if not by:
        return []
    words = ", ".join(f"{WORDS[verdict]} {listed(by[verdict])}" for verdict in WORDS if verdict in by)
    soonest = f"the soonest of {others}" if " and " in others else others
    return [f"beside {soonest} the first token of {known[0]['name']} comes {words} prompt tokens"]


def taken_apart(parts: Sequence[dict]) -> list[str]:
    """`a token of loop takes 29.1 ms (layers 63% [60%, 66%], …; noise hides attention)`, a placement each."""
    said = []
    for e in parts:
        seen = ", ".join(f"{part} {share(e, part)}" for part in where.PARTS if not hidden(e, part))
        over = e["rest_high"] < 0
        lost = listed([part for part in where.PARTS if hidden(e, part) and not (over and part == "rest")] or [""])
        more = f"; noise hides {lost}" * bool(lost) + "; together they are more than the token" * over
        said.append(f"a token of {e['name']} takes {e['total']:.1f} ms ({seen}, each by what its absence saves{more})")
    return said


def share(entry: dict, part: str) -> str:
    """`63% [60%, 66%]` of a token's time."""
    ends = within(entry, lambda ms: f"{ms / entry['total']:.0%}", f"{part}_")
    return f"{entry[part] / entry['total']:.0%}{ends}"


def hidden(entry: dict, part: str) -> bool:
    """Whether noise hides a part: its interval reaches 0."""
    return math.isfinite(entry[f"{part}_low"]) and not entry[f"{part}_low"] > 0


def kept(by_context: dict[str, list[dict]]) -> list[str]:
    """`from context 256 to 4096 loop+fused keeps 35% of its rate and llamacpp 43% (medians of n = 2 answers)`."""
    known = {name: points for name, points in by_context.items() if len(points) > 1}
    if not known:
        return []
    first, last = (next(iter(known.values()))[i]["value"] for i in (0, -1))
    (name, left), *others = ((name, f"{scaling.kept(points):.0%}") for name, points in known.items())
    words = listed([f"{name} keeps {left} of its rate", *(" ".join(other) for other in others)])
    n = min(p["rate"].n for points in known.values() for p in points)
    return [f"from context {first} to {last} {words} (medians of n = {n} answers)"]


def ahead(by_size: Sequence[dict]) -> list[str]:
    """`loop+fused decodes at 1.31 to 2.60 times the best peer's rate on the same file over 11 files, before it on 9 of
    them with 64 tokens in the cache and on 11 with 1,024; of prompts it …`."""
    return list(filter(None, (led(by_size, what) for what in (size_table.DECODE, size_table.PREFILL))))


def led(by_size: Sequence[dict], what: str) -> str:
    mine = [e for e in size_table.ours(by_size) if e["what"] == what]
    if not mine:
        return ""
    name, counts = mine[0]["name"], []
    ratios = [e["ratio"].value for e in mine if e["name"] == name and e["ratio"].verdict not in UNDECIDED]
    for tokens in sorted({e["tokens"] for e in mine}):
        here = [e["ratio"] for e in mine if e["name"] == name and e["tokens"] == tokens]
        counts.append(f"{sum(r.verdict == Verdict.FASTER for r in here)} of {len(here)} at {tokens:,} tokens")
    verb = "decodes at" if what == size_table.DECODE else "takes prompts at"
    between = f"{min(ratios):.2f} to {max(ratios):.2f} times" if ratios else "an undecided multiple of"
    decided = f" where that is decided, n = {min(e['ratio'].n for e in mine)}" if ratios else ""
    return f"{name} {verb} {between} the rate of the best peer on the same file{decided}, ahead on {listed(counts)}"


def together(costs: Sequence[dict]) -> list[str]:
    """`8 tokens of a sequence in one pass take loop+fused 1.65x [1.60, 1.70] as long as one`, every engine's, of the
    most rows at the shortest context."""
    known = [e for e in costs if e["kind"] == rows.SEQUENCE and e["rows"] > 1 and e["ratio"].n]
    if not known:
        return []
    most, context = max(e["rows"] for e in known), min(e["context"] for e in known)
    words = [f"{e['engine']} {e['ratio'].words}" for e in known if (e["rows"], e["context"]) == (most, context)]
    return [f"{most} tokens of a sequence in one pass take {listed(words)} as long as one"] if words else []
