"""How much the placements depend on the release, since which release a quantity is another, and what the flag costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llama_lab.bench.record import Trial
from llama_lab.bench.wording import listed, span
from llama_lab.experiments.upgrading_jax import table
from llama_lab.experiments.upgrading_jax.environments import FLAGGED

EACH, APART = 2, 1.1  # releases on either side of a turn, and how far apart the means of both must lie


def dependence(trials: Sequence[Trial], meta: dict) -> list[str]:
    """A line for each placement: what lies between its fastest and its slowest release, of those with right values, and
    between the others; then the placements that depend most, which are several where their intervals overlap."""
    said, ratios, right = [], {}, table.sound(trials, meta)
    for name in meta["parameters"]["placements"]:
        known = {release: table.rate(trials, release, name) for release in right}
        rates = {release: rate.median for release, rate in known.items() if rate.n}
        if len(rates) < 2:
            continue
        slowest, *others = sorted(rates, key=rates.get)
        ratios[name] = table.ratio(trials, name, others[-1], slowest)
        rest = f"; without {slowest}: {rates[others[-1]] / rates[others[0]]:.2f}x" if len(others) > 1 else ""
        said.append(f"{name}: fastest release ({others[-1]}) over slowest ({slowest}): {ratios[name].words}{rest}")
    if len(ratios) > 1:
        first = max(ratios, key=lambda name: ratios[name].value)
        alike = [name for name, ratio in ratios.items() if name == first or not ratio.high < ratios[first].low]
        open_ = ", not decided among them" * (len(alike) > 1)
        said.append(f"The release matters most to {listed(alike)}{open_}.")
    return said


def turns(trials: Sequence[Trial], meta: dict) -> list[str]:
    """A line for each quantity that is another from some release on, as shipped; the release that is slowest under
    `step` stands apart."""
    names = [name for name in table.releases(meta) if "+" not in name]
    rates = {name: table.rate(trials, name, table.PLACEMENT).median for name in names}
    slowest = min(names, key=rates.get)
    said = []
    for what, form, values in quantities(trials, meta, names):
        value = values.pop(slowest)
        apart = f" ({slowest}: {value:{form}})" * bool(np.isfinite(value))
        known = {name: value for name, value in values.items() if np.isfinite(value)}
        if (at := turn([*known.values()])) is not None:
            before, after = (span(part, form) for part in ([*known.values()][:at], [*known.values()][at:]))
            since = [*known][at]
            said.append(f"{what}: {before} before {since}, {after} from {since} on{apart}")
    return said


def quantities(
    trials: Sequence[Trial], meta: dict, names: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(what, format, release → median, NaN where there is none) of decoding, compiling and first tokens."""
    placements = meta["parameters"]["placements"]
    for name in placements:
        yield f"{name}, tokens/s", ".1f", {n: table.rate(trials, n, name).median for n in names}
    for name in placements[1:]:
        yield f"{name}, seconds to compile", ".2f", {n: table.compile_seconds(trials, n, name) for n in names}
    for length in sorted({t.prompt_tokens for t in trials if t.new_tokens == 1}):
        yield f"first token after {length}, ms", ".0f", {n: first_token(trials, n, length) for n in names}


def first_token(trials: Sequence[Trial], release: str, length: int) -> float:
    """Median milliseconds."""
    times = [t.ttft * 1e3 for t in table.first_tokens(trials, release, length)]
    return float(np.median(times)) if times else float("nan")


def turn(values: Sequence[float]) -> int | None:
    """Where a series is divided best in two parts that do not overlap; None if it cannot be, or if they lie close."""
    best, at = np.log(APART), None
    for i in range(EACH, len(values) - EACH + 1):
        before, after = np.log(values[:i]), np.log(values[i:])
        apart = abs(before.mean() - after.mean())
        if apart > best and (before.max() < after.min() or after.max() < before.min()):
            best, at = apart, i
    return at


def of_the_flag(trials: Sequence[Trial], meta: dict) -> str:
    """Decode rates of a release with the package's flag over those of the same without it."""
    names = table.releases(meta)
    said = []
    for flagged in (name for name in names if name.endswith(FLAGGED) and name.removesuffix(FLAGGED) in names):
        plain = flagged.removesuffix(FLAGGED)
        ratios = {name: table.ratio(trials, name, flagged, plain) for name in meta["parameters"]["placements"]}
        words = [f"{name} {ratio.words}, {ratio.judged}" for name, ratio in ratios.items() if ratio.n]
        said.append(f"The flag, decode rate of {flagged} over {plain}: {'; '.join(words)}.")
    return " ".join(said) or "No release was measured with the flag and without it."
