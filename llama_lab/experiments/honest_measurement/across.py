"""The same subject in every recorded table: how far runs made at different times differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llama_jax import checkpoint
from llama_jax.plumbing import paths
from llama_lab.bench import record, summary, wording
from llama_lab.bench.record import Trial

SUBJECTS = ("step", "loop", "loop+fused", "llamacpp")
SHORT = 320  # tokens of prompt and answer at most: a longer context is slower by itself
OTHERS = ("threads", "decode ", "chat", "kept")  # on fewer cores, under other releases of JAX, later turns of a chat

Rates = dict[str, dict[str, list[float]]]


def gather(home: Path = paths.ROOT / "data", subjects: Sequence[str] = SUBJECTS) -> Rates:
    """Subject → table → tokens/s of each warm, valid, greedy answer of one row by the packaged model in a short
    context. Tables of other kinds of row are ignored, and those of another processor, or of another set of
    instructions, than most were recorded on."""
    rates: Rates = {name: {} for name in subjects}
    known = [path for path in sorted(home.glob("[0-9][0-9]-*.csv")) if record.meta_path(path).is_file()]
    metas = {path: record.read_meta(path) for path in known}
    trials = {
        path: tuple(meta["environment"].get(key) for key in ("cpu", "kernels"))
        for path, meta in metas.items()
        if meta.get("kind", "Trial") == "Trial"
    }
    usual = Counter(trials.values()).most_common(1)
    for path in (path for path, processor in trials.items() if processor == usual[0][0]):
        for t in record.read(path)[0]:
            if t.subject in rates and counts(t):
                rates[t.subject].setdefault(path.stem, []).append(t.tg)
    return rates


def counts(t: Trial) -> bool:
    """Whether a trial is comparable across tables."""
    alike = t.model in (checkpoint.DEFAULT, f"{checkpoint.DEFAULT}/q4_1") and t.batch == 1 and t.sampling == "greedy"
    short = t.prompt_tokens + t.new_tokens <= SHORT and not t.run.startswith(OTHERS)
    return t.phase == "warm" and t.valid and alike and short and t.tg > 0


def medians(rates: Rates) -> dict[str, list[float]]:
    """Subject → its medians, ascending, where two tables or more have it."""
    several = {name: tables.values() for name, tables in rates.items() if len(tables) > 1}
    return {name: sorted(float(np.median(table)) for table in tables) for name, tables in several.items()}


def pair(above: str, below: str, table: str, home: Path = paths.ROOT / "data", seed: int = 0) -> str:
    """`16-your-own-placement: step+donate over step 1.033x [1.003, 1.064], n = 20 pairs in 5 processes: faster`; "" of
    a table without both."""
    path = home / f"{table}.csv"
    ratio = summary.paired_ratio(record.read(path)[0] if path.is_file() else [], above, below, seed)
    words = f"{ratio.value:.3f}x {wording.interval(ratio, '.3f')}, n = {ratio.n} pairs in {ratio.clusters} processes"
    return f"{table}: {above} over {below} {words}: {ratio.judged}" if ratio.n else ""


def described(rates: Rates, home: Path = paths.ROOT / "data"):
    """Each table's day, system, probed bandwidth and the median rate of each subject, a dash where it does not stand
    there: a pandas.DataFrame. rates: of `gather`."""
    import pandas as pd

    lines = []
    for name in sorted({name for tables in rates.values() for name in tables}):
        meta = record.read_meta(home / f"{name}.csv")
        probes, system = wording.bandwidths(meta), meta["environment"].get("os", "")
        about = dict(table=name, recorded=str(meta.get("created", ""))[:10])
        about |= {"system": system.removeprefix("Linux-").partition("-x86")[0], "GB/s": probes[1] if probes else None}
        middle = {subject: float(np.median(tables[name])) for subject, tables in rates.items() if name in tables}
        lines.append(about | {subject: middle.get(subject) for subject in rates})
    return pd.DataFrame(lines).set_index("table").round(1).astype(object).fillna("–")


def finding(rates: Rates) -> str:
    """How far the tables differ, and what follows."""
    middle = medians(rates)
    if not middle:
        return "No subject stands in two tables."
    words = [f"{name} {m[-1] / m[0]:.2f}-fold ({m[0]:.1f} to {m[-1]:.1f} tokens/s)" for name, m in middle.items()]
    return f"{claim(middle)}. Medians differ: {', '.join(words)}."


def claim(middle: dict[str, list[float]]) -> str:
    """What follows from `medians`, and the subject whose tables differ most."""
    apart = {name: each[-1] / each[0] for name, each in middle.items()}
    name = max(apart, key=apart.get)
    return f"Compare within a run: between tables, the rate of {name} differs {apart[name]:.2f}-fold"
