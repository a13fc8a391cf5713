"""What the trials of all releases say: rates, first tokens, what broke when; and what upgrading does, in sentences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from llama_jax.plumbing import runtime, xla_flags
from llama_lab.bench import statistics, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.intervals import FEWEST
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import listed
from llama_lab.experiments.upgrading_jax.child import CLOSE
from llama_lab.experiments.upgrading_jax.environments import FLAGGED
from llama_lab.experiments.upgrading_jax.measure import DECODE, START

PLACEMENT = "step"  # of which the claim speaks
FAULTS = "faults not avoided"  # a column
OTHER_LOGITS, OTHER_TOKENS = "not NumPy's logits", "other tokens"
SLOW_UPDATES = 2.0  # times as long as the number of updates explains: they are no longer made in place


def releases(meta: dict) -> list[str]:
    """Those that ran, in their order."""
    return [name for name in meta["parameters"]["releases"] if name in meta["facts"]]


def decodes(trials: Sequence[Trial], release: str, placement: str, phase: str = "warm") -> list[Trial]:
    """The decodes of one placement under one release; of warm ones those that are valid."""
    mine = [t for t in trials if t.run == DECODE + release and t.subject == placement and t.new_tokens != 1]
    return [t for t in mine if t.phase == phase and (t.valid or phase != "warm")]


def first_tokens(trials: Sequence[Trial], release: str, prompt_tokens: int) -> list[Trial]:
    mine = [t for t in trials if t.run == DECODE + release and t.new_tokens == 1]
    return [t for t in mine if t.prompt_tokens == prompt_tokens and t.valid]


def rate(trials: Sequence[Trial], release: str, placement: str) -> statistics.Summary:
    """Tokens/s of the valid decodes, whole processes resampled."""
    good = decodes(trials, release, placement)
    return statistics.summarise([t.tg for t in good], clusters=[t.process for t in good])


def bar_ends(trials: Sequence[Trial], release: str, placement: str) -> tuple[float, float]:
    """The 95% interval of a rate; of fewer processes than a bootstrap needs the range of all answers, since Student's t
    of two or three medians would be wider than all that was seen."""
    good = decodes(trials, release, placement)
    if len({t.process for t in good}) >= FEWEST:
        mine = rate(trials, release, placement)
        return mine.low, mine.high
    return min(t.tg for t in good), max(t.tg for t in good)


def ratio(trials: Sequence[Trial], placement: str, release: str, other: str) -> statistics.Ratio:
    """Decode rate under one release over that under another, in pairs of medians of a round, in which every release had
    one process."""
    mine, theirs = (summary.grouped(decodes(trials, name, placement), "block", "tg") for name in (release, other))
    both = sorted(mine.keys() & theirs.keys())
    return statistics.ratio(*([float(np.median(rates[n])) for n in both] for rates in (mine, theirs)))


def wrong(trials: Sequence[Trial], meta: dict, release: str) -> list[str]:
    """What this release computes wrongly: issues whose check fails and that the package does not avoid (those that
    crash say so), placements that NumPy's float64 or the reference's tokens disagree with."""
    facts = meta["facts"][release]
    outcomes = [(check, facts["checks"].get(check.name, runtime.RIGHT)) for check in runtime.CHECKS]
    failed = [
        check.issue + " crashes" * outcome.startswith("crashes")
        for check, outcome in outcomes
        if outcome != runtime.RIGHT and not check.avoided
    ]
    apart = [f"{name}: {OTHER_LOGITS}" for name, error in facts["oracle"].items() if not error <= CLOSE]
    missed = sorted({t.subject for t in trials if t.run == DECODE + release and t.wrong})
    return [*dict.fromkeys([*failed, *apart]), *(f"{name}: {OTHER_TOKENS}" for name in missed)]


def sound(trials: Sequence[Trial], meta: dict) -> list[str]:
    """The releases that compute correctly."""
    return [name for name in releases(meta) if not wrong(trials, meta, name)]


def cache_hits(trials: Sequence[Trial], release: str) -> tuple[int, int] | None:
    """(programs read, programs compiled) by the second process with the same persistent cache; None if it did not
    run."""
    starts = [t for t in trials if t.run == START + release and t.phase == "cached"]
    return (starts[-1].cache_hits, starts[-1].compiled) if starts else None


def compile_seconds(trials: Sequence[Trial], release: str, placement: str) -> float:
    """Median seconds that tracing, lowering and compiling took of a process's first request."""
    cold = decodes(trials, release, placement, "cold")
    return float(np.median([t.compile_seconds for t in cold])) if cold else float("nan")


def by_release(trials: Sequence[Trial], meta: dict):
    """For reading, a pandas.DataFrame: a line per release, those that could not be had included."""
    import pandas as pd

    names, lines = meta["parameters"]["placements"], []
    for release in meta["parameters"]["releases"]:
        line = {"jax": release}
        if release in meta["facts"]:
            line |= {f"{name} tok/s": round(rate(trials, release, name).median, 1) for name in names}
            line |= {f"{name} compiles s": round(compile_seconds(trials, release, name), 2) for name in names[1:]}
            for n in sorted({t.prompt_tokens for t in trials if t.new_tokens == 1}):
                times = [t.ttft * 1e3 for t in first_tokens(trials, release, n)]
                line[f"first token at {n} ms"] = round(float(np.median(times)), 1) if times else None
            read = cache_hits(trials, release)
            line["persistent cache"] = "did not run" if read is None else f"{read[0]} read, {read[1]} compiled"
            line["update in a loop"] = f"{meta['facts'][release]['updates']:.1f}x"
            temporary = meta["sizes"].get(f"{release} loop", {}).get("temp_bytes") or float("nan")
            line["temporary MB of loop"] = round(temporary / 1e6, 2)
            line[FAULTS] = ", ".join(wrong(trials, meta, release)) or "–"
        else:
            gap = next((g for g in meta["missing"] if g["name"] == release), {"reason": "not measured"})
            line[FAULTS] = f"could not be had: {gap['reason']}"
        lines.append(line)
    return pd.DataFrame(lines).set_index("jax")


def broken(meta: dict):
    """What broke when, a pandas.DataFrame: a line per known fault, a column a release, each cell what was seen here."""
    import pandas as pd

    lines = []
    for check in runtime.CHECKS:
        seen = {name: meta["facts"][name]["checks"].get(check.name) for name in releases(meta)}
        if any(seen.values()):
            cells = {name: outcome.partition(":")[0] for name, outcome in seen.items() if outcome}
            here = f"avoided: {check.avoided}" if check.avoided else ""
            known = {"fault": check.name, "issue": check.issue, "reported for": check.known}
            lines.append({**known, **cells, "here": here})
    updates = {name: f"{meta['facts'][name]['updates']:.1f}x" for name in releases(meta)}
    known = {"fault": "time of small updates in a loop", "issue": "jax #40101", "reported for": "CPU, 0.11.1"}
    return pd.DataFrame([*lines, known | updates]).set_index("fault").fillna("")


def repaired(meta: dict) -> str:
    """Whether a known fault came back after a release without it, which releases as shipped have the fewest, and which
    has most more than the one before it."""
    plain = [name for name in releases(meta) if "+" not in name]
    back, counts = [], dict.fromkeys(plain, 0)
    for check in runtime.CHECKS:
        seen = {name: meta["facts"][name]["checks"].get(check.name) for name in plain}
        bad = {name: outcome != runtime.RIGHT for name, outcome in seen.items() if outcome}
        back += [check.name] * (sum(wrong for wrong, _ in itertools.groupby(bad.values())) > 1)
        for name in bad:
            counts[name] += bad[name]
    least = [name for name in plain if counts[name] == min(counts.values())]
    came = f"Came back after a repair: {listed(back)}." if back else "No repaired fault came back."
    newest = plain[-1]
    known = f"{counts[newest]}; the fewest are {counts[least[0]]}, under {listed(least)}"
    older, newer = max(
        itertools.pairwise(plain), key=lambda pair: counts[pair[1]] - counts[pair[0]], default=(newest,) * 2
    )
    more = f" A newer release can have more: {newer} has {counts[newer]}, {older} {counts[older]}."
    more *= counts[newer] > counts[older]
    return f"{came} The newest, {newest}, has {f'the fewest: {counts[newest]}' if newest in least else known}.{more}"


def agreement(trials: Sequence[Trial], meta: dict) -> str:
    """Under which releases the logits are NumPy's, and the tokens those of the locked release."""
    faults, said = {name: wrong(trials, meta, name) for name in releases(meta)}, []
    agreed = {OTHER_LOGITS: "Logits agree with NumPy's", OTHER_TOKENS: "tokens with the locked release's"}
    for fault, right in agreed.items():
        apart = [name for name, found in faults.items() if any(one.endswith(fault) for one in found)]
        said.append(f"{right} under {f'all releases but {listed(apart)}' if apart else 'every release'}")
    return "; ".join(said) + "."


def claim(trials: Sequence[Trial], meta: dict | None) -> Claim:
    """How far apart the slowest release and the fastest with right values are, and how far those with right values lie
    apart without the slowest. meta: None where nothing is recorded."""
    names = releases(meta) if meta else []
    if len(names) < 2:
        return Claim("No two releases of JAX are recorded, so nothing can be said of upgrading yet.")
    right = sound(trials, meta)
    rates = {name: rate(trials, name, PLACEMENT).median for name in names}
    fast, slow = max(right or names, key=rates.get), min(names, key=rates.get)
    others = sorted((name for name in right if name != slow), key=rates.get)
    subjects = (f"{PLACEMENT} under {name}" for name in (fast, slow))
    gain = Comparison(ratio(trials, PLACEMENT, fast, slow), *subjects)
    rest = "; apart from {slow}, the {n} others that pass every check make {least:.1f} to {most:.1f} tokens/s"
    rest *= len(others) > 1 and slow in right
    said = "Under `{under}`, JAX {fast} decodes {gain} times as fast as {slow}"
    least, most = (rates[others[end]] if others else 0.0 for end in (0, -1))
    numbers = dict(gain=gain, under=PLACEMENT, slow=slow, fast=fast, n=len(others), least=least, most=most)
    return stated(f"{said}{rest}.", when=bool(right), **numbers) or gain.generic


def set_up(meta: dict) -> str:
    """What a table was measured under, as the figure names it: `0.10.2`, `0.10.2+flag`."""
    env = meta["environment"]
    return env["packages"]["jax"] + FLAGGED * (xla_flags.SETTING in env.get("settings", {}).get("XLA_FLAGS", ""))


def finding(trials: Sequence[Trial], meta: dict | None) -> str:
    """The claim, what `+flag` is, and the releases that compute wrong values or copy what is updated in a loop."""
    names = releases(meta) if meta else []
    slow = [name for name in names if meta["facts"][name]["updates"] > SLOW_UPDATES]
    faults = {name: wrong(trials, meta, name) for name in names}
    faulty = [f"{name} ({', '.join(fault)})" for name, fault in faults.items() if fault]
    return claim(trials, meta).text(
        f"{FLAGGED} is the XLA flag that this package sets" if any(name.endswith(FLAGGED) for name in names) else "",
        f"wrong values or crashes under {listed(faulty)}" if faulty else "",
        f"small updates in a loop copy the whole array under {', '.join(slow)}" if slow else "",
    )
