"""What compiling costs and when it is paid back: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench.cold import Start
from llama_lab.bench.numbers import within
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import listed
from llama_lab.experiments.compile_time import table
from llama_lab.experiments.compile_time.measure import LAYOUTS, Compilation
from llama_lab.experiments.compile_time.starts import WAYS
from llama_lab.experiments.compile_time.table import BreakEven, Slope


def compiling(rows: Sequence[Compilation], trials: Sequence[Start], placement: str = "step", seed: int = 0) -> str:
    """Seconds a layer unrolled and scanned, what a cache and a file of executables leave of a cold start, and
    break-even."""
    said, slopes = [], [table.per_layer(rows, layout) for layout in LAYOUTS]
    if all(np.isfinite(found.slope) for found in slopes):
        unrolled, scanned = (milliseconds(found) for found in slopes)
        said.append(f"each layer adds {unrolled} to compiling when unrolled and {scanned} when scanned")
    cached, read, both = (
        table.start_ratio(trials, placement, *ways, lambda t: t.compile_part, seed)
        for ways in (("cached", "cold"), ("serialised", "cold"), ("serialised", "cached"))
    )
    if cached.n and read.n and both.n:
        said.append(
            f"of the compile part of a cold start JAX's persistent cache leaves {share(cached)} and a file of"
            " executables"
            f" {share(read)}, which is {share(both)} of the cached one"
            f" (n = {min(cached.n, read.n, both.n)} process pairs)"
        )
        said.append(f"a whole start takes {table.whole_starts(trials, placement)}")
    when: dict[str, list[str]] = {}
    for name in (placement, "loop"):
        found = table.break_even(trials, (name, "cold"), ("eager", "cold"), seed)
        if not np.isnan(found.tokens):
            when.setdefault(after(found), []).append(name)
    for words, names in when.items():
        verb = "is" if len(names) == 1 else "are"
        said.append(f"{listed(names)} compiled from nothing {verb} ahead of eager {words}")
    text = "; ".join(said)
    if not said:
        return "No start and no depth has valid trials to compare."
    return f"{claim(trials, placement, seed)} {text[0].upper()}{text[1:]}."


def claim(trials: Sequence[Start], placement: str = "step", seed: int = 0) -> str:
    """What programs kept on disk leave of a start's compiling."""
    ways = (table.start_ratio(trials, placement, w, "cold", lambda t: t.compile_part, seed) for w in WAYS[1:])
    known = sorted((r for r in ways if r.n), key=lambda r: r.value)
    if not known:
        return "No start has valid trials, so what programs kept on disk save is not known."
    if not all(r.n == 1 or r.high < 1 for r in known):
        return "These starts do not decide what keeping compiled programs on disk saves."
    left = " to ".join(dict.fromkeys(f"{r.value:.0%}" for r in (known[0], known[-1])))
    return f"Keeping compiled programs on disk leaves {left} of what compiling takes at a start."


def milliseconds(found: Slope) -> str:
    return f"{round(1e3 * found.slope) + 0:.0f} ms{within(found, lambda seconds: f'{1e3 * seconds:.0f}')}"


def share(found: Ratio) -> str:
    return f"{found.value:.0%}{within(found, '.0%')}"


def after(found: BreakEven) -> str:
    """`from the start`, `after 40 tokens [30, 55]`, `never`; what the interval leaves open is said."""
    if found.undecided:
        return f"at a point that {found.n} processes do not decide"
    if found.tokens == 0:
        words = "from the start" if not found.high > 0 else f"from the start or within {found.high:.0f} tokens"
    elif found.tokens == table.NEVER:
        words = "never" if not found.low < table.NEVER else f"not before {found.low:.0f} tokens, if at all"
    else:
        words = f"after {found.tokens:.0f} tokens"
        words += within(found, lambda tokens: "no end" if tokens == table.NEVER else f"{tokens:.0f}")
    return words + (" (too few processes for an interval)" if np.isnan(found.low) else "")
