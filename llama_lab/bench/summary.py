"""From raw trials to the table: one entry a subject, in the shape `llama-jax bench --json` prints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import AGAIN, WRONG, gate, memory, statistics
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import times

NAN = float("nan")


def subjects(trials: Sequence[Trial]) -> list[str]:
    """Names in order of first appearance, the baseline's second one included."""
    return list(dict.fromkeys(t.subject for t in trials))


def warm(trials: Sequence[Trial], subject: str, valid: bool = True) -> list[Trial]:
    """A subject's warm trials, void ones left out unless asked for."""
    return [t for t in trials if t.subject == subject and t.phase == "warm" and (t.valid or not valid)]


def rates(trials: Sequence[Trial], subject: str) -> dict[tuple[int, int], float]:
    """Decode rate of a subject's valid warm trials by (process, block): what stood side by side."""
    return {(t.process, t.block): t.tg for t in warm(trials, subject)}


def paired_ratio(trials: Sequence[Trial], subject: str, baseline: str, seed: int = 0) -> statistics.Ratio:
    """Decode rate of a subject over the baseline's, paired by process and block, judged against the run's A/A control.

    Any other subject may stand for the baseline. The one that ran twice in a block counts with both its rates
    (geometric mean); the control is its second over its first. Blocks where either side is void are left out.
    """
    if subject in (baseline, baseline + AGAIN):
        return over(rates(trials, subject), rates(trials, baseline), seed)
    found = over(both_rates(trials, subject), both_rates(trials, baseline), seed)
    twice = next((t.subject for t in trials if t.subject.endswith(AGAIN)), "")
    return statistics.with_floor(found, over(rates(trials, twice), rates(trials, twice.removesuffix(AGAIN)), seed))


def both_rates(trials: Sequence[Trial], subject: str) -> dict[tuple[int, int], float]:
    """As `rates`, of a subject that may have run twice in a block."""
    first, again = rates(trials, subject), rates(trials, subject + AGAIN)
    return {k: float(statistics.pair_baseline([first.get(k, NAN)], [again.get(k, NAN)])[0]) for k in {*first, *again}}


def over(above: dict, below: dict, seed: int) -> statistics.Ratio:
    """Ratio of two sets of rates over the (process, block) that both have; processes resampled as wholes."""
    pairs = sorted(set(above) & set(below))
    return statistics.ratio(
        [above[p] for p in pairs], [below[p] for p in pairs], seed, [process for process, _ in pairs]
    )


def itl_pooled(trials: Sequence[Trial]) -> np.ndarray:
    """All inter-token latencies of these trials, seconds."""
    return np.concatenate([t.itl for t in trials]) if trials else np.array([])


def entry(trials: Sequence[Trial], subject: str, baseline: str, seed: int = 0) -> dict:
    """One subject's line."""
    good, everything = warm(trials, subject), warm(trials, subject, valid=False)
    starts = {
        phase: [t for t in trials if t.subject == subject and t.phase == phase and t.valid]
        for phase in ("cold", "cached")
    }
    rate = statistics.summarise([t.tg for t in good], seed, [t.process for t in good])
    answered = [t for t in everything if t.token_times_ns]
    failed = [t for t in trials if t.subject == subject and not t.valid]
    ratio = paired_ratio(trials, subject, baseline, seed)
    gaps = itl_pooled(good) * 1e3
    drift = statistics.drift([t.tg for t in sorted(good, key=lambda t: (t.process, t.block))])
    return {
        "name": subject,
        "kind": "peer" if any(t.backend != "jax" for t in everything) else "placement",
        "tokens_per_second": {"median": rate.median, "iqr": rate.iqr, "n": rate.n, "low": rate.low, "high": rate.high},
        "unstable": rate.unstable,
        "drift": {"change": drift.change, "significant": drift.significant},
        "pp": median([t.pp for t in good]),
        "ttft_ms": median([t.ttft * 1e3 for t in good]),
        "tpot_ms": median([t.tpot * 1e3 for t in good]),
        "itl_ms": {**statistics.percentiles(gaps), "n": len(gaps), "note": statistics.percentile_note(len(gaps))},
        "compile": first_request(starts["cold"]),
        "cached": first_request(starts["cached"]),
        "ratio_to_baseline": {
            "value": ratio.value,
            "low": ratio.low,
            "high": ratio.high,
            "n": ratio.n,
            "processes": ratio.clusters,
            "floor": ratio.floor,
            "verdict": "baseline" if subject == baseline else ratio.verdict,
            "more_blocks": 0 if subject == baseline else statistics.more_blocks(ratio),
        },
        "mbu": median([t.mbu for t in good]),
        "peak_rss_bytes": max((t.peak_rss_bytes for t in starts["cold"] if t.peak_rss_bytes), default=None),
        "memory": sizes(starts["cold"] or good),
        "leaked_buffers": memory.leak(everything),
        "tokens_equal": bool(answered) and not any(t.wrong or gate.PARTS in t.reason for t in answered),
        "approximate": any(gate.approximate(t.quantisation) for t in everything),
        "valid_trials": len(good),
        "voided_trials": len(everything) - len(good),
        "reasons": sorted(
            {t.reason for t in everything if t.reason} | {f"{t.phase}: {t.reason}" for t in failed if t.phase != "warm"}
        ),
        "causes": sorted({t.cause for t in everything if t.cause}),
    }


def first_request(starts: Sequence[Trial]) -> dict | None:
    """What the first request of a fresh process cost: programs XLA compiled, seconds of trace, lower and backend,
    TTFT."""
    if not starts:
        return None
    return {
        "n": int(np.median([t.compiled for t in starts])),
        "seconds": float(np.median([*map(compile_seconds, starts)])),
        "ttft_ms": median([t.ttft * 1e3 for t in starts]),
        "cache_hits": int(np.median([t.cache_hits for t in starts])),
        "processes": len(starts),
    }


def sizes(trials: Sequence[Trial]) -> dict:
    """Bytes of weights and cache (predicted) and of the compiled decode program (as XLA says), where they are known."""
    names = (
        "weights_bytes",
        "kv_bytes",
        "argument_bytes",
        "output_bytes",
        "temp_bytes",
        "alias_bytes",
        "device_peak_bytes",
    )
    return {
        name: max((getattr(t, name) for t in trials if getattr(t, name) is not None), default=None) for name in names
    }


def table(trials: Sequence[Trial], baseline: str, names: Sequence[str] | None = None, seed: int = 0) -> list[dict]:
    """All subjects; the baseline's twin (its A/A control) stands right after it.

    names: the subjects in the order wanted; by default that of their cold starts, which run in the order they were
    given.
    """
    found = subjects(sorted(trials, key=lambda t: (t.phase == "warm", t.block, t.order)))
    names = [n for n in names or found if not n.endswith(AGAIN)]
    twin = [n for n in found if n.endswith(AGAIN)]
    return [entry(trials, n, baseline, seed) for name in names for n in ([name, *twin] if name == baseline else [name])]


def disturbed(table: Sequence[dict]) -> str:
    """A short phrase for a figure where the run's own A/A control says that it was not quiet; "" where it was."""
    for e in table:
        ratio = e["ratio_to_baseline"]
        if e["name"].endswith(AGAIN) and ratio["verdict"] in ("faster", "slower", "unstable"):
            return f"A/A control {ratio['verdict']}: {times(ratio)}"
    return ""


def as_frame(entries: list[dict]):
    """The table for a notebook, a pandas.DataFrame: one row a subject, rounded for reading."""
    import pandas as pd

    return (
        pd.DataFrame(
            [
                {
                    "placement": e["name"],
                    "tokens/s": e["tokens_per_second"]["median"],
                    "IQR": e["tokens_per_second"]["iqr"],
                    "ratio": e["ratio_to_baseline"]["value"],
                    "low": e["ratio_to_baseline"]["low"],
                    "high": e["ratio_to_baseline"]["high"],
                    "verdict": e["ratio_to_baseline"]["verdict"],
                    "MBU": e["mbu"],
                    "TTFT ms": e["ttft_ms"],
                    "compilations": e["compile"] and e["compile"]["n"],
                    "compile s": e["compile"] and e["compile"]["seconds"],
                    "peak RSS GB": e["peak_rss_bytes"] and e["peak_rss_bytes"] / 1e9,
                    "valid": e["valid_trials"],
                    "void": e["voided_trials"],
                    "tokens": tokens_word(e),
                }
                for e in entries
            ]
        )
        .set_index("placement")
        .round(3)
    )


def tokens_word(e: dict) -> str:
    """equal: the reference's tokens. own: an approximate subject's, whose quality is measured apart. none: it made no
    whole answer. Else wrong."""
    if e["tokens_equal"]:
        return "equal"
    if e.get("approximate"):
        return "own"
    judged = e["valid_trials"] or any(WRONG in reason or gate.PARTS in reason for reason in e["reasons"])
    return "WRONG" if judged else "none"


def median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def compile_seconds(trial: Trial) -> float:
    """Trace, lower and backend time together."""
    return (trial.trace_ns + trial.lower_ns + trial.backend_ns) / 1e9


def baseline_of(table: Sequence[dict]) -> str:
    """The baseline's name in a table."""
    return next(e["name"] for e in table if e["ratio_to_baseline"]["verdict"] == "baseline")


def limit(trials: Sequence[Trial], subject: str) -> float:
    """A subject's bandwidth limit in tokens/s: probed bandwidth over the bytes a token must read (median of its warm
    trials)."""
    warmed = [t for t in trials if t.subject == subject and t.bandwidth_gbps]
    return float(np.median([t.limit for t in warmed]))


def break_even(subject: dict, other: dict) -> float | None:
    """Tokens after which `subject`, compilation included, is ahead of `other`, compilation included; None if never.

    0 when it is ahead from the first token. n tokens take compilation + TTFT + (n - 1) / rate.
    """

    def start(e: dict) -> float:  # the line's height at n = 0
        return e["compile"]["seconds"] + e["ttft_ms"] / 1e3 - 1 / e["tokens_per_second"]["median"]

    ahead = 1 / other["tokens_per_second"]["median"] - 1 / subject["tokens_per_second"]["median"]
    extra = start(subject) - start(other)
    if extra <= 0:
        return 0.0 if ahead >= 0 else None
    return extra / ahead if ahead > 0 else None
