"""Results in words: intervals, counts, lists."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Sequence

from llama_lab.bench.numbers import interval, round_ratio
from llama_lab.bench.statistics import UNDECIDED, Ratio, Verdict

ROOM = 180  # characters of what a finding or a caption begins with
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z“])")  # a number may follow a point, a name in small letters a comma
PART = re.compile(r"(?<=;) (?![^\[\](]*[\])])")
CLAUSE = re.compile(r"(?<=[;:,.]) (?![^\[\](]*[\])])")
WORDS, NUMBERS = 20, 2  # of a finding's first sentence, at the most
NUMBER = re.compile(r"(?<![\w+.,-])\d[\d.,]*")  # not the 8 of chunk8, nor the 2 of GPT-2
APART = 1.2  # fastest probe over the median one: from here on they are said to differ
WIDEST = 2.0  # high over low: a wider interval is not named first


def with_n(ratio: Ratio) -> str:
    """`1.31x [1.22, 1.40] (n = 6)`."""
    return f"{ratio.words} (n = {ratio.n})"


def settled(ratio: Ratio) -> bool:
    """Whether a ratio may be said without its interval: the trials decide it, and the interval is no wider than a
    factor of WIDEST."""
    return ratio.verdict not in UNDECIDED and ratio.high / ratio.low <= WIDEST


def decodes(ratio: Ratio, who: str) -> str:
    """`decodes 3.1 times as fast as llama.cpp`, or `decodes faster than` it where nobody knows by how much. The trials
    decide it."""
    return (
        f"decodes {round_ratio(ratio.value)} times as fast as {who}"
        if settled(ratio)
        else f"decodes {ratio.verdict} than {who}"
    )


def fastest_beside(name: str, ratio: Ratio, who: str) -> str:
    """The fastest placement's decode rate over another's, in a sentence; that it is undecided where it is."""
    if ratio.verdict in UNDECIDED:
        return f"Whether {name}, the fastest placement, decodes faster than {who} is undecided here."
    return f"The fastest placement, {name}, {decodes(ratio, who)}."


def standing(found: Ratio, label: str, other: dict) -> str:
    """One ratio in words; one that these trials do not decide, or that scatters by more than it says, is said to
    be so."""
    kind = "" if other["dtype"] == "float32" else f" on {weights(other['dtype'])}"
    words = f"{found.words} of {label} ({other['name']}{kind})"
    blocks = f"n = {found.n} block{'s' * (found.n > 1)}"
    if found.verdict == Verdict.UNSTABLE:
        return f"{words}, unstable over {blocks}"
    return words + f", which {blocks} do{'es' * (found.n == 1)} not decide" * (found.verdict in UNDECIDED)


def weights(dtype: str) -> str:
    """`bfloat16 weights`; of a GGUF file's, which may be of several kinds, `the file's own blocks`."""
    return "the file's own blocks" if dtype == "gguf" else f"{dtype} weights"


def times(ratio: dict) -> str:
    """`5.21x [4.83, 5.62]` of a ratio's entry."""
    return f"{ratio['value']:.2f}x {interval(ratio)}"


def instructions(environment: dict) -> str:
    """`kernels avx512vnni`: the instruction set, in which processors of one name differ; "" where none is known."""
    known = environment.get("kernels")
    return f"kernels {known}" if known and known != "none" else ""


def probed(meta: dict) -> str:
    """`bandwidth 33 GB/s (probes 30 to 34, n = 20)`; where they differ widely `limits by the fastest of n = 20
    bandwidth probes, 63 GB/s; median 34`; "" of a table without probes."""
    runs = [run for run in meta.get("bandwidth_gbps", {}).values() if isinstance(run, dict)]
    if not runs:
        return ""
    n, most, least = sum(run["n"] for run in runs), max(run["max"] for run in runs), min(run["min"] for run in runs)
    usual = statistics.median_high(run["median"] for run in runs)
    if most <= APART * usual:
        return f"bandwidth {most:.0f} GB/s (probes {least:.0f} to {most:.0f}, n = {n})"
    return f"limits by the fastest of n = {n} bandwidth probes, {most:.0f} GB/s; median {usual:.0f}"


def raced(races: Sequence[dict]) -> tuple[list[dict], str]:
    """(the races that there were, `llamacpp and ik-llamacpp`: who else ran in them). races: of first tokens, each
    {name, tokens, others, ratio: of times, or None}."""
    known = [race for race in races if race["ratio"] is not None and race["ratio"].n]
    others = list(dict.fromkeys(name for race in known for name in race["others"]))
    return known, listed(others) if others else ""


def first_before(races: Sequence[dict]) -> str:
    """`step+fused makes the first token before llamacpp and ik-llamacpp at 5 of 5 prompt lengths`; "" without a
    race."""
    known, others = raced(races)
    ahead = sum(race["ratio"].verdict == Verdict.FASTER for race in known)
    if not known:
        return ""
    return f"{known[0]['name']} makes the first token before {others} at {ahead} of {len(known)} prompt lengths"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def short_model(model: str) -> str:
    """A model's name for a label; one with other sizes than its preset's by that preset."""
    preset, _, changes = model.partition(",")
    return f"{preset} (changed)" if changes else model


def opening(text: str, room: int = ROOM) -> str:
    """The first sentence, or as much of it as there is room for."""
    return clipped(SENTENCE.split(text, maxsplit=1)[0], room)


def clipped(text: str, room: int) -> str:
    """As many clauses as there is room for, at least one, none cut within itself or its brackets."""
    clauses = CLAUSE.split(text)
    kept = max(1, sum(length <= room for length in itertools.accumulate(len(clause) + 1 for clause in clauses)))
    return text if kept == len(clauses) else " ".join(clauses[:kept]).rstrip(";:,.") + " …"


def points(finding: str) -> tuple[str, list[str]]:
    """How a finding begins, and the details that follow, one by one: its other sentences, and what semicolons part in
    them outside of brackets."""
    first, *others = SENTENCE.split(finding.strip())
    return first, [part.rstrip(".;") for other in others for part in PART.split(other)]


def complaints(finding: str) -> list[str]:
    """What keeps a finding's first sentence from being understood by somebody who has read nothing."""
    said = SENTENCE.split(finding.strip(), maxsplit=1)[0]
    words, numbers = len(said.split()), len(NUMBER.findall(said))
    found = [f"its first sentence has {words} words, more than {WORDS}"] if words > WORDS else []
    found += [f"its first sentence has {numbers} numbers, more than {NUMBERS}"] if numbers > NUMBERS else []
    return found + ([] if said.endswith(".") else ["its first sentence does not end with a full stop"])
