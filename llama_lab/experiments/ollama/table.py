"""Tables of this experiment: which subjects are compared, conversations, the ladder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from llama_lab.bench import AGAIN, frames, quality, standings, statistics, summary
from llama_lab.bench.claim import Claim, Comparison, fastest_beside, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.standings import JAX, LLAMACPP, MAIN, OLLAMA, TORCH, best, fastest, of_run
from llama_lab.bench.wording import listed, named_well, round_ratio
from llama_lab.experiments.ollama.measure import CHAT
from llama_lab.experiments.ollama.turns import KEPT

NATIVE = {OLLAMA: "Ollama", LLAMACPP: "llama.cpp, which Ollama runs"}


def transformers(entry: dict) -> bool:
    return entry["name"].startswith("transformers")


def of_backend(backend: str) -> Callable[[dict], bool]:
    return lambda entry: entry["backend"] == backend


RIVALS: dict[str, Callable[[dict], bool]] = {  # words → the entries among which the best is the rival
    "llama.cpp's strongest mode": of_backend(LLAMACPP),
    "ik_llama.cpp": of_backend(standings.IK),
    "Ollama": of_backend(OLLAMA),
    "transformers' `generate`": transformers,
    "torch's best mode": lambda e: e["backend"] == TORCH and not transformers(e),
}


def ours(entries: Sequence[dict]) -> dict | None:
    """The fastest placement in float32: what PyTorch is compared with."""
    return best(entries, lambda e: e["backend"] == JAX and e["arithmetic"] == quality.REFERENCE)


def rival(entries: Sequence[dict]) -> dict | None:
    """The fastest peer."""
    return best(entries, lambda e: e["backend"] != JAX)


def contenders(entries: Sequence[dict]) -> list[dict]:
    """The subjects whose answers answer the question: our fastest placement, the fastest peer, our fastest in
    float32, and Ollama if it ran."""
    chosen = [fastest(entries), rival(entries), ours(entries), best(entries, RIVALS["Ollama"])]
    return list({e["name"]: e for e in chosen if e}.values())


def claim(trials: Sequence[Trial], entries: Sequence[dict], seed: int = 0) -> Claim:
    """The fastest placement beside the fastest of all other programs, and beside Ollama, or llama.cpp where Ollama was
    not measured. entries: `standings.ladder`."""
    mine, strongest = fastest(entries), rival(entries)
    theirs = [(name, e) for backend, name in NATIVE.items() if (e := best(entries, of_backend(backend)))]
    if mine is None or not theirs:
        return Claim(f"Neither Ollama nor llama.cpp was measured beside {mine['name'] if mine else 'a placement'}.")

    def over(other: dict, name: str) -> Comparison:
        return Comparison(standings.ratio(trials, mine["name"], other["name"], seed), mine["name"], name)

    name, other = theirs[0]
    if strongest is other:
        return fastest_beside(over(other, name))
    first, second = over(strongest, strongest["backend"]), over(other, name)
    said = (
        "{name} decodes {first} times as fast as {strongest}, the fastest peer, and {second} times as fast as {other}."
    )
    numbers = dict(name=mine["name"], first=first, strongest=strongest["backend"], second=second, other=name)
    return stated(said, **numbers) or fastest_beside(first)


def answer(
    trials: Sequence[Trial], entries: Sequence[dict], larger: Sequence[dict], seed: int = 0, there: str = ""
) -> str:
    """The claim with the size of the file, and what the same lead is on larger files: the finding. larger: of
    `on_files`. there: their processor, where it is another."""
    said = claim(trials, entries, seed)
    leads: dict[str, list[str]] = {}
    for model, of_one in summary.grouped(larger, itemgetter("model")).items():
        for e in contenders(of_one):
            if e["backend"] != JAX and e["over"].n:
                open_ = " (undecided)" * (e["over"].verdict == statistics.Verdict.UNDECIDED)
                leads.setdefault(model, []).append(f"{e['over'].words} over {named_well(e['name'])}{open_}")
    file_bytes = rival(entries)["first"].weights_bytes if said.evidence else None
    size = f" on {file_bytes / 1e6:.0f} MB of weights" if file_bytes else ""
    on = f" and {there}" * bool(there)
    said_of = (f"; on {model}{on} its lead is {listed(words)}" for model, words in leads.items())
    more = "".join(said_of) * bool(size)
    mine, *others = contenders(entries)
    apart = [medians(trials, mine["name"], e["name"], seed) for e in others if said.evidence and e["backend"] != JAX]
    return Claim(f"{said.sentence.removesuffix('.')}{size}{more}.", said.evidence).text(*apart)


def medians(trials: Sequence[Trial], above: str, below: str, seed: int = 0) -> str:
    """`by medians loop+fused over Ollama is 3.40x, outside its interval of pairs`; "" where it is within, or reads as
    the mean of pairs."""
    if (quotient := standings.by_medians(of_run(trials), above, below, seed)) is None:
        return ""
    said = f"by medians {named_well(above)} over {named_well(below)} is {round_ratio(quotient)}x"
    return f"{said}, outside its interval of pairs"


def talks(
    trials: Sequence[Trial], names: Sequence[str], reference: str, seed: int = 0, run: str = CHAT
) -> dict[str, dict]:
    """Subject → {turns: seconds of each valid answer, one list per turn; total: Summary of whole conversations; ratio:
    how many times as long a conversation takes as the reference's, paired}. run: CHAT, or KEPT for servers that may
    keep the history.

    A conversation with a turn that is void, or whose answer ended early, has no total.
    """
    every = of_run(trials, run)
    asked, count = max((t.new_tokens for t in every), default=0), max((t.prompt for t in every), default=-1) + 1
    mine = summary.grouped([t for t in every if t.valid and t.new_tokens == asked], "subject")

    def totals(name: str) -> dict[tuple[int, int], float]:  # seconds of each whole conversation
        seconds = summary.grouped(mine.get(name, []), summary.in_block, "seconds")
        return {key: float(np.sum(values)) for key, values in seconds.items() if len(values) == count}

    return {
        name: dict(
            turns=[[t.seconds for t in mine[name] if t.prompt == k] for k in range(count)],
            total=statistics.summarise(list(totals(name).values()), seed),
            ratio=statistics.of_times(summary.over(totals(name), totals(reference), seed)),
        )
        for name in names
        if name in mine
    }


def both_ways(trials: Sequence[Trial], names: Sequence[str], seed: int = 0):
    """Median seconds of each turn with the history kept, and of the same subject that reads it all again (NaN if it
    was not asked so), a pandas.DataFrame."""
    import pandas as pd

    again, kept = (talks(trials, names, next(iter(names), ""), seed, run) for run in (CHAT, KEPT))
    lines = []
    for name, talk in kept.items():
        for k, seconds in enumerate(talk["turns"]):
            before = again[name]["turns"][k] if name in again else []
            middles = [float(np.median(values)) if values else np.nan for values in (seconds, before)]
            lines.append((name, k + 1, *middles, len(seconds)))
    return pd.DataFrame(lines, columns=["server", "turn", "kept, s", "read again, s", "n"]).round(3)


def on_files(trials: Sequence[Trial], seed: int = 0, ours: str = "") -> list[dict]:
    """`under_ours` of each model's own file, each entry with its `model`. trials: of `model_files.Files`."""
    lines = []
    for model, rows in summary.grouped(trials, "run").items():
        names = [name for name in dict.fromkeys(t.subject for t in rows) if not name.endswith(AGAIN)]
        lines += under_ours(standings.ladder(rows, names, seed, model), rows, seed, model, ours)
    return [dict(model=e["first"].model) | e for e in lines]


def under_ours(
    entries: Sequence[dict], trials: Sequence[Trial], seed: int = 0, run: str = MAIN, ours: str = ""
) -> list[dict]:
    """The entries, each with `over`: the decode rate of one placement over its, and the `verdict` of that. ours: that
    placement; the fastest where it is not among them."""
    mine, lines = best(entries, lambda e: e["name"] == ours) or fastest(entries), []
    for e in entries:
        known = mine and e["decode"].n
        over = standings.ratio(trials, mine["name"], e["name"], seed, run) if known else statistics.NO_RATIO
        lines.append(e | dict(over=over, verdict=over.judged if over.n and mine is not e else ""))
    return lines


def beside_files(small: Sequence[dict], large: Sequence[dict]) -> str:
    """`Our lead is smaller on qwen2.5-coder-1.5b over 3 of 3 programs, by the intervals. Shares of the limit here and
    there: loop+fused 60% and 62%, Ollama 15% and 50%.`, a line a model. small, large: of `under_ours`, `on_files`."""
    known, lines = {e["name"]: e for e in small if e["decode"].n and e["limit"]}, []
    for model, some in summary.grouped(large, itemgetter("model")).items():
        both = [(known[e["name"]], e) for e in some if e["name"] in known and e["decode"].n and e["limit"]]
        less = [there["over"].high < here["over"].low for here, there in both if there["backend"] != JAX]
        said = f"Our lead is smaller on {model} over {sum(less)} of {len(less)} programs, by the intervals."
        shares = [
            f"{named_well(pair[0]['name'])} " + " and ".join(f"{e['decode'].median / e['limit']:.0%}" for e in pair)
            for pair in both
        ]
        lines += [f"{said} Shares of the limit here and there: {', '.join(shares)}."] if less else []
    return "\n".join(lines)


COLUMNS = frames.Columns(
    {
        "subject": "name",
        "backend": "backend",
        "weights": "dtype",
        **frames.interval("decode tok/s", "decode"),
        "prefill tok/s": "prefill.median",
        "TTFT ms": "ttft.median",
        "limit tok/s": "limit",
        **frames.interval("ours over it", "over", "value", ends="ratio "),
        "verdict": "verdict",
        "valid": "decode.n",
        "void": "void",
    },
    index="subject",
    digits=3,
)
ON_FILES = frames.Columns({"model": "model"} | COLUMNS.shown, index=("model", "subject"), digits=3)
