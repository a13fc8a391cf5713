"""What the trials of `versus` say: rates, ratios, conversations and memory of placements and peers side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from llama_jax.bench import quality, statistics, summary
from llama_jax.bench.record import Trial
from llama_jax.bench.statistics import Ratio
from llama_jax.bench.versus import CHAT, MAIN, MEMORY
from llama_jax.quantize import FORMS

JAX, TORCH, LLAMACPP, OLLAMA = "jax", "torch", "llama.cpp", "ollama"


def of(trials: Sequence[Trial], run: str = MAIN) -> list[Trial]:
    """The trials of one measurement, or of one of its subjects."""
    return [t for t in trials if t.run == run or t.run.startswith(f"{run} ")]


def ladder(trials: Sequence[Trial], names: Sequence[str], seed: int = 0, run: str = MAIN) -> list[dict]:
    """One entry a subject, in the order given: {name, backend, dtype (as `weights` says it), arithmetic, decode, prefill (tokens/s) and
    ttft (ms): Summary each, points: the same three raw, limit: tokens/s that the bandwidth allows for its bytes, void, reasons}."""
    main, found = of(trials, run), []
    for name in names:
        good, every = summary.warm(main, name), summary.warm(main, name, valid=False)
        points = dict(decode=[t.tg for t in good], prefill=[t.pp for t in good], ttft=[t.ttft * 1e3 for t in good])
        known = next(iter(good or every), None)
        found.append(dict(
            name=name, backend=known and known.backend, dtype=known and weights(known), points=points, void=len(every) - len(good),
            arithmetic=known and quality.arithmetic(known.backend, known.dtype, known.quantisation, name),
            **{k: statistics.summarise(v, seed, [t.process for t in good]) for k, v in points.items()},
            limit=summary.limit(main, name) if any(t.bandwidth_gbps and t.bytes_per_token for t in good) else None,
            reasons=sorted({t.reason for t in every if t.reason and not t.valid}),
        ))  # fmt: skip
    return found


def weights(trial: Trial) -> str:
    """What a subject's weights are kept as: the quantised form where its arithmetic names one (`gguf+fused`), else its dtype."""
    return next((part for part in trial.quantisation.split("+") if part in FORMS), trial.dtype)


def best(entries: Sequence[dict], wanted: Callable[[dict], bool] = lambda entry: True) -> dict | None:
    """The entry with the highest median decode rate among those that are wanted; None where none has a valid trial."""
    return max((e for e in entries if e["decode"].n and wanted(e)), key=lambda e: e["decode"].median, default=None)


def ours(entries: Sequence[dict]) -> dict | None:
    """The fastest placement in float32: what PyTorch is compared with."""
    return best(entries, lambda e: e["backend"] == JAX and e["arithmetic"] == quality.REFERENCE)


def fastest(entries: Sequence[dict]) -> dict | None:
    """The fastest placement on whatever weights."""
    return best(entries, lambda e: e["backend"] == JAX)


def rival(entries: Sequence[dict]) -> dict | None:
    """The fastest peer."""
    return best(entries, lambda e: e["backend"] != JAX)


def histogram(entries: Sequence[dict]) -> list[dict]:
    """The subjects whose histograms answer the question: our fastest placement, the fastest peer, our fastest in float32, and Ollama if
    it ran."""
    chosen = [fastest(entries), rival(entries), ours(entries), best(entries, lambda e: e["backend"] == OLLAMA)]
    return list({e["name"]: e for e in chosen if e}.values())


def disturbed(trials: Sequence[Trial], baseline: str, seed: int = 0, run: str = MAIN) -> str:
    """A short phrase for a figure where the run's own A/A control says that it was not quiet."""
    return summary.disturbed(summary.table(of(trials, run), baseline, [baseline], seed))


def ratio(trials: Sequence[Trial], above: str, below: str, seed: int = 0, run: str = MAIN) -> Ratio:
    """Decode rate of one subject over another's, paired by block, judged against the run's A/A control."""
    return summary.paired_ratio(of(trials, run), above, below, seed)


def talks(trials: Sequence[Trial], names: Sequence[str], reference: str, seed: int = 0) -> dict[str, dict]:
    """Subject → {turns: seconds of each valid answer, a list a turn; total: Summary of whole conversations; ratio: how many times as
    long a conversation takes as the reference's, paired}.

    A conversation with a turn that is void, or whose answer ended early, has no total.
    """
    asked = max((t.new_tokens for t in of(trials, CHAT)), default=0)
    chat = [t for t in of(trials, CHAT) if t.valid and t.new_tokens == asked]
    count, found = max((t.prompt for t in of(trials, CHAT)), default=-1) + 1, {}
    totals = {name: whole_talks([t for t in chat if t.subject == name], count) for name in {*names, reference}}
    for name in names:
        turns = [[t.seconds for t in chat if t.subject == name and t.prompt == k] for k in range(count)]
        if any(turns):
            found[name] = dict(turns=turns, total=statistics.summarise(list(totals[name].values()), seed),
                               ratio=summary.over(totals[name], totals[reference], seed))  # fmt: skip
    return found


def whole_talks(trials: Sequence[Trial], turns: int) -> dict[tuple[int, int], float]:
    """Seconds of each conversation that has all its turns, by (process, block)."""
    seconds: dict[tuple[int, int], list[float]] = {}
    for t in trials:
        seconds.setdefault((t.process, t.block), []).append(t.seconds)
    return {key: float(np.sum(values)) for key, values in seconds.items() if len(values) == turns}


def footprints(trials: Sequence[Trial], notes: Sequence[dict], names: Sequence[str]) -> list[dict]:
    """One entry a subject: {name, backend, dtype, peak: bytes of each process, libraries: bytes held before the model (median), weights,
    kv: bytes as predicted}. notes: of the measuring processes, as the meta file keeps them."""
    held, found = {}, []
    for note in notes:
        if "libraries_rss_bytes" in note:
            held.setdefault(note["subject"], []).append(note["libraries_rss_bytes"])
    for name in names:
        mine = [t for t in of(trials, MEMORY) if t.subject == name and t.valid and t.peak_rss_bytes]
        if mine:
            t = mine[0]
            found.append(dict(name=name, backend=t.backend, dtype=weights(t), peak=[t.peak_rss_bytes for t in mine],
                              libraries=summary.median(held.get(name, [])), weights=t.weights_bytes, kv=t.kv_bytes))  # fmt: skip
    return found


def as_frame(entries: Sequence[dict], trials: Sequence[Trial], seed: int = 0):
    """The ladder for a notebook, a pandas.DataFrame: one row a subject, the ratio that of the fastest placement over it."""
    import pandas as pd

    mine, rows = fastest(entries), []
    for e in entries:
        found = ratio(trials, mine["name"], e["name"], seed) if mine and e["decode"].n else Ratio(*[float("nan")] * 3, 0)
        rows.append({
            "subject": e["name"], "backend": e["backend"], "weights": e["dtype"], "decode tok/s": e["decode"].median,
            "low": e["decode"].low, "high": e["decode"].high, "prefill tok/s": e["prefill"].median, "TTFT ms": e["ttft"].median,
            "limit tok/s": e["limit"], "fastest of ours over it": found.value, "ratio low": found.low, "ratio high": found.high,
            "verdict": found.verdict if found.n and mine is not e else "", "valid": e["decode"].n, "void": e["void"],
        })  # fmt: skip
    return pd.DataFrame(rows).set_index("subject").round(3)
