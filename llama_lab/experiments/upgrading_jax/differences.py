"""How much the placements depend on the release, since which release a quantity is another, and what the flag costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from llama_lab.bench.record import Trial
from llama_lab.bench.wording import listed, span
from llama_lab.experiments.upgrading_jax import table
from llama_lab.experiments.upgrading_jax.environments import FLAGGED

RATE, COMPILE, FIRST = "{}, tokens/s", "{}, seconds to compile", "first token after {}, ms"  # of what is a quantity
EACH, APART = 2, 1.1  # releases on either side of a turn, and how far apart the means of both must lie


def dependence(trials: Sequence[Trial], meta: dict) -> list[str]:
    """A line for each placement: what lies between its fastest and its slowest release, of those with right values, and
    between the others; then the placements that depend most, or those that depend less where several depend most."""
    lines, ratios, right = [], {}, table.sound(trials, meta)
    for name in meta["parameters"]["placements"]:
        known = {release: table.rate(trials, release, name) for release in right}
        rates = {release: rate.median for release, rate in known.items() if rate.n}
        if len(rates) < 2:
            continue
        slowest, *others = sorted(rates, key=rates.get)
        ratios[name] = table.ratio(trials, name, others[-1], slowest)
        rest = f"; without {slowest}: {rates[others[-1]] / rates[others[0]]:.2f}x" if len(others) > 1 else ""
        lines.append(f"{name}: fastest release ({others[-1]}) over slowest ({slowest}): {ratios[name].words}{rest}")
    if len(ratios) > 1:
        first = max(ratios, key=lambda name: ratios[name].value)
        alike = [name for name, ratio in ratios.items() if name == first or not ratio.high < ratios[first].low]
        least = min(ratios[name].low for name in alike)
        below = [name for name, ratio in ratios.items() if name not in alike]
        if len(alike) == 1:
            lines.append(f"The release matters most to {first}.")
        elif below and all(ratios[name].high < least for name in below):
            lines.append(f"The release matters less to {listed(below)} than to {listed(alike)}.")
        else:
            lines.append(f"The release matters most to {listed(alike)}, not decided among them.")
    return lines


def turns(trials: Sequence[Trial], meta: dict) -> list[str]:
    """A line for each change that is shown, and a last one: whether compiling became faster or slower, and who lost
    speed."""
    found = changes(trials, meta)
    return [said(change) for change in found if change["shown"]] + [over_the_years(found)] * bool(found)


def said(change: dict) -> str:
    """`step, tokens/s: 20.0 to 21.0 before 0.4.0, 30.0 to 31.0 from 0.4.0 on (0.1.0: 5.0)`."""
    before, after = (span(change[side], change["form"]) for side in ("before", "after"))
    return f"{change['what']}: {before} before {change['since']}, {after} from {change['since']} on{change['apart']}"


def over_the_years(found: Sequence[dict]) -> str:
    """`Compiling became faster under step (from 0.7.2 on); no placement is shown to have lost speed.`; a loss by
    medians alone is named as such. found: of `changes`."""
    where = "{name} (from {since} on)".format_map
    less, more, lost, unsure = (
        listed([where(c) for c in found if (c["kind"], c["falls"], c["shown"]) == wanted])
        for wanted in ((COMPILE, True, True), (COMPILE, False, True), (RATE, True, True), (RATE, True, False))
    )
    compiling = [f"faster under {less}"] * bool(less) + [f"slower under {more}"] * bool(more)
    words = f"Compiling became {', '.join(compiling)}" if compiling else "Compiling is not shown to have changed"
    speed = f"{lost} lost speed" if lost else "no placement is shown to have lost speed"
    return f"{words}; {speed}{f'; by medians alone, {unsure} did' * bool(unsure)}."


def changes(trials: Sequence[Trial], meta: dict) -> list[dict]:
    """Quantities whose medians are others from some release on, as shipped: {kind, name, what, form, before, after,
    since, falls, apart: the release that is slowest under `step`, shown: of a rate, whether the bars of the figure are
    apart as well}."""
    names = [name for name in table.releases(meta) if "+" not in name]
    rates = {name: table.rate(trials, name, table.PLACEMENT).median for name in names}
    slowest = min(names, key=rates.get)
    found = []
    for kind, of, form, values in quantities(trials, meta, names):
        value = values.pop(slowest)
        apart = f" ({slowest}: {value:{form}})" * bool(np.isfinite(value))
        known = {name: value for name, value in values.items() if np.isfinite(value)}
        if (at := turn([*known.values()])) is not None:
            before, after = [*known.values()][:at], [*known.values()][at:]
            about = dict(kind=kind, name=of, what=kind.format(of), form=form, since=[*known][at], apart=apart)
            about |= dict(before=before, after=after, falls=max(after) < min(before))
            bars = (
                [table.bar_ends(trials, name, of) for name in known]
                if kind == RATE
                else [(v, v) for v in known.values()]
            )
            found.append(about | dict(shown=separate(bars[:at], bars[at:])))
    return found


def separate(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]) -> bool:
    """Whether no bar, (low, high), of one side overlaps one of the other."""
    (low, high), (other_low, other_high) = (
        (min(b[0] for b in side), max(b[1] for b in side)) for side in (before, after)
    )
    return high < other_low or other_high < low


def quantities(
    trials: Sequence[Trial], meta: dict, names: Sequence[str]
) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """(kind, of what, format, release → median, NaN where there is none) of decoding, compiling and first tokens."""
    placements = meta["parameters"]["placements"]
    for name in placements:
        yield RATE, name, ".1f", {n: table.rate(trials, n, name).median for n in names}
    for name in placements[1:]:
        yield COMPILE, name, ".2f", {n: table.compile_seconds(trials, n, name) for n in names}
    for length in sorted({t.prompt_tokens for t in trials if t.new_tokens == 1}):
        yield FIRST, str(length), ".0f", {n: first_token(trials, n, length) for n in names}


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
    lines = []
    for flagged in (name for name in names if name.endswith(FLAGGED) and name.removesuffix(FLAGGED) in names):
        plain = flagged.removesuffix(FLAGGED)
        ratios = {name: table.ratio(trials, name, flagged, plain) for name in meta["parameters"]["placements"]}
        words = [f"{name} {ratio.words}, {ratio.judged}" for name, ratio in ratios.items() if ratio.n]
        lines.append(f"The flag, decode rate of {flagged} over {plain}: {'; '.join(words)}.")
    return " ".join(lines) or "No release was measured with the flag and without it."
