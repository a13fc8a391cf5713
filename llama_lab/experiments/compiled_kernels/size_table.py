"""What rows of engines on files of several sizes say: each engine's rate, its share of the limit, and how far it is
from the best peer on the same file."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import standings, statistics, summary
from llama_lab.bench.job import whole
from llama_lab.bench.record import Trial
from llama_lab.experiments.compiled_kernels.sizes import PROMPT

DECODE, PREFILL = "decode", "prefill"


def shape_of(trial: Trial) -> tuple[str, int]:
    """(DECODE, context) or (PREFILL, tokens of the prompt)."""
    if trial.new_tokens > PROMPT:
        return DECODE, trial.prompt_tokens + trial.new_tokens
    return PREFILL, trial.prompt_tokens


def table(trials: Sequence[Trial], seed: int = 0) -> list[dict]:
    """One entry a file, shape and subject, by bytes a token: {file, what (DECODE or PREFILL), tokens, name, backend,
    bytes: that a token reads, rate: Summary of tokens/s (of a prompt: its tokens until the next one is there), mbu:
    median share of the limit, nan of a prompt's, best: the peer with the highest median rate there, ratio: over that
    peer, None without one, void: answers that do not count}."""
    groups: dict[tuple, dict[str, list[Trial]]] = {}
    for t in whole(trials):
        if not t.valid and not t.new_tokens:
            continue  # it failed, so that nobody knows at what
        groups.setdefault((t.run, *shape_of(t)), {}).setdefault(t.subject, []).append(t)
    found = []
    for (file, what, tokens), by in groups.items():
        rates = {name: rates_of(rows, what) for name, rows in by.items()}
        entries = [entry_of(by[name], what, list(rates[name].values()), seed) for name in by if rates[name]]
        best = standings.best([dict(e, decode=e["rate"]) for e in entries], lambda e: e["backend"] != standings.JAX)
        for e in entries:
            over = summary.over(rates[e["name"]], rates[best["name"]], seed) if best else None
            found.append(dict(file=file, what=what, tokens=tokens, **e, best=best and best["name"], ratio=over))
    return sorted(found, key=lambda e: (e["what"], e["tokens"], e["bytes"], e["file"]))


def rates_of(rows: Sequence[Trial], what: str) -> dict[tuple[int, int], float]:
    """Tokens/s of the valid answers by (process, block)."""
    return {(t.process, t.block): t.tg if what == DECODE else t.pp for t in rows if t.valid}


def entry_of(rows: Sequence[Trial], what: str, rates: Sequence[float], seed: int) -> dict:
    good = [t for t in rows if t.valid]
    share = statistics.summarise([t.mbu for t in good]).median if what == DECODE else float("nan")
    return dict(
        name=good[0].subject,
        backend=good[0].backend,
        bytes=good[0].bytes_per_token,
        rate=statistics.summarise(rates, seed),
        mbu=float(share),
        void=len(rows) - len(good),
    )


def ours(entries: Sequence[dict]) -> list[dict]:
    """The entries of placements that have a peer beside them."""
    return [e for e in entries if e["backend"] == standings.JAX and e["ratio"] is not None and e["ratio"].n]


def as_frame(entries: Sequence[dict]):
    """The table for a notebook, a pandas.DataFrame."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "file": e["file"],
                "what": e["what"],
                "tokens": e["tokens"],
                "subject": e["name"],
                "MB a token": round(e["bytes"] / 1e6, 1),
                "tokens/s": round(e["rate"].median, 1),
                "share of the limit": round(e["mbu"], 3),
                "best peer": e["best"],
                "over it": round(e["ratio"].value, 2) if e["ratio"] else None,
                "low": round(e["ratio"].low, 2) if e["ratio"] else None,
                "high": round(e["ratio"].high, 2) if e["ratio"] else None,
                "n": e["rate"].n,
                "void": e["void"],
            }
            for e in entries
        ]
    )
