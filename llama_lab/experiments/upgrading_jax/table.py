"""What the trials of all releases say: rates, first tokens, what broke when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.plumbing import runtime
from llama_lab.bench import statistics, summary
from llama_lab.bench.record import Trial
from llama_lab.experiments.upgrading_jax.child import CLOSE
from llama_lab.experiments.upgrading_jax.measure import DECODE, START

SLOW_UPDATES = 2.0  # times as long as the number of updates explains: they are no longer made in place


def releases(meta: dict) -> list[str]:
    """Those that ran, in their order."""
    return [name for name in meta["parameters"]["releases"] if name in meta["facts"]]


def decodes(trials: Sequence[Trial], release: str, placement: str, phase: str = "warm") -> list[Trial]:
    """All decodes of one placement under one release, void ones too."""
    mine = (t for t in trials if t.run == DECODE + release and t.subject == placement and t.new_tokens != 1)
    return [t for t in mine if t.phase == phase]


def first_tokens(trials: Sequence[Trial], release: str, prompt_tokens: int) -> list[Trial]:
    mine = (t for t in trials if t.run == DECODE + release and t.new_tokens == 1)
    return [t for t in mine if t.prompt_tokens == prompt_tokens and t.valid]


def rate(trials: Sequence[Trial], release: str, placement: str) -> statistics.Summary:
    """Tokens/s of the valid decodes, whole processes resampled."""
    good = [t for t in decodes(trials, release, placement) if t.valid]
    return statistics.summarise([t.tg for t in good], clusters=[t.process for t in good])


def by_round(trials: Sequence[Trial], release: str, placement: str) -> dict[int, float]:
    """Median tokens/s of each round, in which every release had one process."""
    good = [t for t in decodes(trials, release, placement) if t.valid]
    return {number: float(np.median(rates)) for number, rates in summary.grouped(good, "block", "tg").items()}


def ratio(trials: Sequence[Trial], placement: str, release: str, other: str) -> statistics.Ratio:
    """Decode rate under one release over that under another, in pairs of a round."""
    mine, theirs = (by_round(trials, name, placement) for name in (release, other))
    both = sorted(mine.keys() & theirs.keys())
    return statistics.ratio([mine[n] for n in both], [theirs[n] for n in both])


def wrong(trials: Sequence[Trial], meta: dict, release: str) -> list[str]:
    """What this release computes wrongly: issues whose check fails and that the package does not avoid (those that
    crash say so), placements that NumPy's float64 or the reference's tokens disagree with."""
    facts = meta["facts"][release]
    faults = {}
    for check in runtime.CHECKS:
        outcome = facts["checks"].get(check.name, runtime.RIGHT)
        if outcome != runtime.RIGHT and not check.avoided:
            faults[check.issue + " crashes" * outcome.startswith("crashes")] = None
    faults |= dict.fromkeys(
        f"{name}: not NumPy's logits" for name, error in facts["oracle"].items() if not error <= CLOSE
    )
    missed = {t.subject for t in trials if t.run == DECODE + release and t.wrong}
    return [*faults, *(f"{name}: other tokens" for name in sorted(missed))]


def cache_hits(trials: Sequence[Trial], release: str) -> tuple[int, int] | None:
    """(programs read, programs compiled) by the second process with the same persistent cache; None where it did not
    run."""
    starts = [t for t in trials if t.run == START + release and t.phase == "cached"]
    return (starts[-1].cache_hits, starts[-1].compiled) if starts else None


def compile_seconds(trials: Sequence[Trial], release: str, placement: str) -> float:
    """Median seconds that tracing, lowering and compiling took of a process's first request."""
    cold = decodes(trials, release, placement, "cold")
    return float(np.median([t.compile_seconds for t in cold])) if cold else float("nan")


def by_release(trials: Sequence[Trial], meta: dict):
    """For reading, a pandas.DataFrame: a line a release, those that could not be had included."""
    import pandas as pd

    lines = []
    for release in meta["parameters"]["releases"]:
        line = {"jax": release}
        if release in meta["facts"]:
            names = meta["parameters"]["placements"]
            line |= {f"{name} tok/s": round(rate(trials, release, name).median, 1) for name in names}
            line |= {f"{name} compiles s": round(compile_seconds(trials, release, name), 2) for name in names[1:]}
            for n in sorted({t.prompt_tokens for t in trials if t.new_tokens == 1}):
                times = [t.ttft * 1e3 for t in first_tokens(trials, release, n)]
                line[f"first token at {n} ms"] = round(float(np.median(times)), 1) if times else None
            read = cache_hits(trials, release)
            line["persistent cache"] = "did not run" if read is None else f"{read[0]} read, {read[1]} compiled"
            line["update in a loop"] = f"{meta['facts'][release]['updates']:.1f}x"
            line["temporary MB of loop"] = round(temporary(meta, release, "loop") / 1e6, 2)
            line["wrong"] = ", ".join(wrong(trials, meta, release)) or "nothing"
        else:
            gap = next((g for g in meta["missing"] if g["name"] == release), {"reason": "not measured"})
            line["wrong"] = f"could not be had: {gap['reason']}"
        lines.append(line)
    return pd.DataFrame(lines).set_index("jax")


def temporary(meta: dict, release: str, placement: str) -> float:
    """Temporary bytes of a placement's decode program; NaN where XLA did not say."""
    return meta["sizes"].get(f"{release} {placement}", {}).get("temp_bytes") or float("nan")


def broken(meta: dict):
    """What broke when, a pandas.DataFrame: a line a known fault, a column a release, each cell what was seen here."""
    import pandas as pd

    lines = []
    for check in runtime.CHECKS:
        seen = {name: meta["facts"][name]["checks"].get(check.name) for name in releases(meta)}
        if any(seen.values()):
            cells = {
                name: "right" if outcome == runtime.RIGHT else outcome.partition(":")[0]
                for name, outcome in seen.items()
                if outcome
            }
            note = f"avoided: {check.avoided}" if check.avoided else ""
            lines.append(
                {"fault": check.name, "issue": check.issue, "reported for": check.known, **cells, "here": note}
            )
    updates = {name: f"{meta['facts'][name]['updates']:.1f}x" for name in releases(meta)}
    lines.append(
        {"fault": "time of small updates in a loop", "issue": "jax #40101", "reported for": "CPU, 0.11.1", **updates}
    )
    return pd.DataFrame(lines).set_index("fault").fillna("")
