"""What the trials of this experiment say: the subjects whose histograms are drawn, conversations, the ladder as a
table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, quality, statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.bench.standings import JAX, OLLAMA, best, fastest, of_run, ratio
from llama_lab.experiments.ollama.kept import KEPT
from llama_lab.experiments.ollama.measure import CHAT


def ours(entries: Sequence[dict]) -> dict | None:
    """The fastest placement in float32: what PyTorch is compared with."""
    return best(entries, lambda e: e["backend"] == JAX and e["arithmetic"] == quality.REFERENCE)


def rival(entries: Sequence[dict]) -> dict | None:
    """The fastest peer."""
    return best(entries, lambda e: e["backend"] != JAX)


def histogram(entries: Sequence[dict]) -> list[dict]:
    """The subjects whose histograms answer the question: our fastest placement, the fastest peer, our fastest in
    float32, and Ollama if it ran."""
    chosen = [fastest(entries), rival(entries), ours(entries), best(entries, lambda e: e["backend"] == OLLAMA)]
    return list({e["name"]: e for e in chosen if e}.values())


def talks(
    trials: Sequence[Trial], names: Sequence[str], reference: str, seed: int = 0, run: str = CHAT
) -> dict[str, dict]:
    """Subject → {turns: seconds of each valid answer, a list a turn; total: Summary of whole conversations; ratio: how
    many times as long a conversation takes as the reference's, paired}. run: CHAT, or KEPT for servers that may keep
    the history.

    A conversation with a turn that is void, or whose answer ended early, has no total.
    """
    asked = max((t.new_tokens for t in of_run(trials, run)), default=0)
    chat = [t for t in of_run(trials, run) if t.valid and t.new_tokens == asked]
    count, entries = max((t.prompt for t in of_run(trials, run)), default=-1) + 1, {}
    totals = {name: whole_talks([t for t in chat if t.subject == name], count) for name in {*names, reference}}
    for name in names:
        turns = [[t.seconds for t in chat if t.subject == name and t.prompt == k] for k in range(count)]
        if any(turns):
            entries[name] = dict(
                turns=turns,
                total=statistics.summarise(list(totals[name].values()), seed),
                ratio=statistics.of_times(summary.over(totals[name], totals[reference], seed)),
            )
    return entries


def whole_talks(trials: Sequence[Trial], turns: int) -> dict[tuple[int, int], float]:
    """Seconds of each conversation that has all its turns, by (process, block)."""
    seconds = summary.grouped(trials, summary.in_block, "seconds")
    return {key: float(np.sum(values)) for key, values in seconds.items() if len(values) == turns}


def both_ways(trials: Sequence[Trial], names: Sequence[str], seed: int = 0):
    """Median seconds of each turn with the history kept, and of the same subject that reads it all again (NaN where it
    was not asked so), a pandas.DataFrame."""
    import pandas as pd

    again, kept = (talks(trials, names, next(iter(names), ""), seed, run) for run in (CHAT, KEPT))
    rows = []
    for name, talk in kept.items():
        for k, seconds in enumerate(talk["turns"]):
            before = again[name]["turns"][k] if name in again else []
            rows.append(
                {
                    "server": name,
                    "turn": k + 1,
                    "kept, s": float(np.median(seconds)) if seconds else np.nan,
                    "read again, s": float(np.median(before)) if before else np.nan,
                    "n": len(seconds),
                }
            )
    return pd.DataFrame(rows, columns=["server", "turn", "kept, s", "read again, s", "n"]).round(3)


def under_ours(entries: Sequence[dict], trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """The entries, each with `over`: the decode rate of the fastest placement over its, and the `verdict` of that."""
    mine, lines = fastest(entries), []
    for e in entries:
        over = ratio(trials, mine["name"], e["name"], seed) if mine and e["decode"].n else statistics.NO_RATIO
        lines.append(e | dict(over=over, verdict=over.verdict if over.n and mine is not e else ""))
    return lines


COLUMNS = frames.Columns(
    {
        "subject": "name",
        "backend": "backend",
        "weights": "dtype",
        **frames.interval("decode tok/s", "decode"),
        "prefill tok/s": "prefill.median",
        "TTFT ms": "ttft.median",
        "limit tok/s": "limit",
        **frames.interval("fastest of ours over it", "over", "value", ends="ratio "),
        "verdict": "verdict",
        "valid": "decode.n",
        "void": "void",
    },
    index="subject",
    digits=3,
)
