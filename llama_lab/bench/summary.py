"""From rows to tables: what stood side by side and its ratio, the tally of any rows, and the table of subjects in the
shape that `llama-jax bench --json` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from llama_lab.bench import AGAIN, WRONG, frames, gate, memory, statistics
from llama_lab.bench.record import Row, Trial
from llama_lab.bench.rows import UNCHECKED
from llama_lab.bench.statistics import DIFFERENT, Ratio
from llama_lab.bench.wording import times

NAN = float("nan")
BASELINE = "baseline"  # in place of a verdict
NOT_EQUAL = (WRONG, gate.PARTS, UNCHECKED)  # in the reason of a row whose tokens are not known to be the reference's
SIZES = ("weights", "kv", "argument", "output", "temp", "alias", "device_peak")  # of a trial, each with `_bytes`

Rows = Sequence[Row]
Where = str | Callable  # an attribute of a row, or a function of it


def subjects(trials: Rows) -> list[str]:
    """Names in order of first appearance."""
    return list(dict.fromkeys(t.subject for t in trials))


def warm(trials: Rows, subject: str, valid: bool = True) -> list[Trial]:
    """A subject's warm trials, void ones left out unless asked for."""
    return [t for t in trials if t.subject == subject and t.phase == "warm" and (t.valid or not valid)]


def in_block(trial: Trial) -> tuple[int, int]:
    """(process, block): trials with the same were measured side by side."""
    return trial.process, trial.block


def rates(trials: Rows, subject: str, value: Where = "tg", place: Callable = in_block) -> dict[tuple, float]:
    """A subject's valid warm trials' value by the place, (process, …), where they stood side by side with others."""
    get = getter(value)
    return {place(t): get(t) for t in warm(trials, subject)}


def both_rates(trials: Rows, subject: str, value: Where = "tg", place: Callable = in_block) -> dict[tuple, float]:
    """As `rates`, of a subject that may have run twice in a block: the geometric mean of the two."""
    first, again = (rates(trials, name, value, place) for name in (subject, subject + AGAIN))
    return {k: float(statistics.pair_baseline([first.get(k, NAN)], [again.get(k, NAN)])[0]) for k in {*first, *again}}


def over(above: dict, below: dict, seed: int = 0) -> Ratio:
    """Ratio of two sets of rates over the (process, …) that both have; processes resampled as wholes."""
    pairs = sorted(set(above) & set(below))
    return statistics.ratio(
        [above[p] for p in pairs], [below[p] for p in pairs], seed, [process for process, *_ in pairs]
    )


def control(trials: Rows, seed: int = 0, value: Where = "tg", place: Callable = in_block) -> Ratio:
    """The A/A control: the second run in a block of the subject that ran twice over its first; n = 0 if none did."""
    twice = next((t.subject for t in trials if t.subject.endswith(AGAIN)), "")
    return over(*(rates(trials, name, value, place) for name in (twice, twice.removesuffix(AGAIN))), seed)


def paired_ratio(
    trials: Rows, subject: str, baseline: str, seed: int = 0, value: Where = "tg", place: Callable = in_block
) -> Ratio:
    """A subject's rate over the baseline's, paired by process and block, judged against the run's A/A control.

    Any other subject may stand for the baseline. The one that ran twice in a block counts with both its rates
    (geometric mean); the control is its second over its first. Blocks where either side is void are left out.
    """
    if subject in (baseline, baseline + AGAIN):
        return over(*(rates(trials, name, value, place) for name in (subject, baseline)), seed)
    measured = over(*(both_rates(trials, name, value, place) for name in (subject, baseline)), seed)
    return statistics.with_floor(measured, control(trials, seed, value, place))


def tally(
    rows: Rows,
    by: Mapping[str, Where] | Sequence[str],
    value: Mapping[str, Where] | Sequence[str],
    quantiles: Sequence[int] = (),
    against: str = "",
    seed: int = 0,
    clusters: Where | None = "process",
    order: Sequence[tuple] | None = None,
):
    """One line per group of rows, a pandas.DataFrame.

    by: columns that name a group → an attribute of a row, or a function of it; or attributes alone. value: columns of
    Summaries → likewise, what is taken of each valid row; rows where it is None are left out. quantiles: percentiles of
    the first value, such as `p95`; None if there are too few. against: a baseline; `ratio` is then the decode rate
    of each line's subject over its, among the rows that differ in their subject alone. clusters: what is resampled as
    a whole; None resamples rows. order: the groups wanted, those without a row included; by default as they come.

    Further columns: `n` valid rows, `void` ones, `reasons` why, `wrong` (whether any row made other tokens), `points`
    (value's name → as measured), `rows` (the valid ones), `every`, `first` (a valid one, else a void one, else None).
    """
    import pandas as pd

    keys, values, labels = getters(by), getters(value), getter(clusters) if clusters else None
    groups, lines = grouped(rows, lambda row: tuple(get(row) for get in keys.values())), []
    for key in groups if order is None else order:
        every = groups.get(key, [])
        good, points = [row for row in every if row.valid], {}
        line = dict(zip(keys, key, strict=True)) | dict(n=len(good), void=len(every) - len(good))
        line |= dict(reasons=sorted({row.reason for row in every if row.reason and not row.valid}))
        line |= dict(wrong=any(row.wrong for row in every), rows=good, every=every)
        line["first"] = next(iter(good or every), None)
        for name, get in values.items():
            known = [row for row in good if get(row) is not None]
            points[name] = [get(row) for row in known]
            line[name] = statistics.summarise(points[name], seed, [labels(row) for row in known] if labels else None)
        line |= dict(points=points) | statistics.percentiles(next(iter(points.values())), quantiles)
        if against:
            setting = {name: get for name, get in keys.items() if name != "subject"}
            beside = [row for row in rows if all(get(row) == line[name] for name, get in setting.items())]
            line["ratio"] = paired_ratio(beside, line["subject"], against, seed)
        lines.append(line)
    return pd.DataFrame(lines, dtype=object)


def grouped(items: Iterable, key: Where, value: Where = lambda item: item) -> dict[Any, list]:
    """Key → the values of its items, in the order of their coming."""
    groups: dict[Any, list] = {}
    key_of, value_of = getter(key), getter(value)
    for item in items:
        groups.setdefault(key_of(item), []).append(value_of(item))
    return groups


def getters(columns: Mapping[str, Where] | Sequence[str]) -> dict[str, Callable]:
    """Column → what takes its value of a row."""
    named = columns if isinstance(columns, Mapping) else dict(zip(columns, columns, strict=True))
    return {name: getter(where) for name, where in named.items()}


def getter(where: Where) -> Callable:
    """What takes a value of a row."""
    return where if callable(where) else attrgetter(where)


def itl_pooled(trials: Sequence[Trial]) -> np.ndarray:
    """All inter-token latencies of these trials, seconds."""
    return np.concatenate([t.itl for t in trials]) if trials else np.array([])


def entry(trials: Sequence[Trial], subject: str, baseline: str, seed: int = 0) -> dict:
    """One subject's line."""
    mine = [t for t in trials if t.subject == subject]
    good, everything = warm(mine, subject), warm(mine, subject, valid=False)
    cold, cached = ([t for t in mine if t.phase == phase and t.valid] for phase in ("cold", "cached"))
    rate = statistics.summarise([t.tg for t in good], seed, [t.process for t in good])
    answered = [t for t in everything if t.token_times_ns]
    failed = {f"{t.phase}: {t.reason}" for t in mine if not t.valid and t.phase != "warm"}
    ratio, own = paired_ratio(trials, subject, baseline, seed), subject == baseline
    over = picked(ratio, "value", "low", "high", "n", "floor", "scattered") | dict(processes=ratio.clusters)
    gaps = itl_pooled(good) * 1e3
    drift = statistics.drift([t.tg for t in sorted(good, key=in_block)])
    judged = dict(verdict=ratio.verdict, judged=ratio.judged, more_blocks=statistics.more_blocks(ratio))
    judged |= dict(verdict=BASELINE, judged=BASELINE, more_blocks=0) if own else {}
    return {
        "name": subject,
        "kind": "peer" if any(t.backend != "jax" for t in everything) else "placement",
        "tokens_per_second": picked(rate, "median", "iqr", "n", "low", "high"),
        "unstable": rate.unstable,
        "drift": asdict(drift),
        "pp": median([t.pp for t in good]),
        "ttft_ms": median([t.ttft * 1e3 for t in good]),
        "tpot_ms": median([t.tpot * 1e3 for t in good]),
        "itl_ms": {**statistics.percentiles(gaps), "n": len(gaps), "note": statistics.percentile_note(len(gaps))},
        "compile": first_request(cold),
        "cached": first_request(cached),
        "ratio_to_baseline": over | judged,
        "mbu": median([t.mbu for t in good]),
        "peak_rss_bytes": largest(cold, "peak_rss_bytes"),
        "memory": {f"{kind}_bytes": largest(cold or good, f"{kind}_bytes") for kind in SIZES},
        "leaked_buffers": memory.leak(everything),
        "tokens_equal": bool(answered) and not any(part in t.reason for t in answered for part in NOT_EQUAL),
        "approximate": any(gate.approximate(t.quantisation) for t in everything),
        "valid_trials": len(good),
        "voided_trials": len(everything) - len(good),
        "reasons": sorted({t.reason for t in everything if t.reason} | failed),
        "causes": sorted({t.cause for t in everything if t.cause}),
    }


def picked(values: object, *names: str) -> dict:
    return {name: getattr(values, name) for name in names}


def largest(trials: Sequence[Trial], name: str) -> int | None:
    return max((getattr(t, name) for t in trials if getattr(t, name) is not None), default=None)


def first_request(starts: Sequence[Trial]) -> dict | None:
    """What the first request of a fresh process cost: programs compiled, seconds of compiling, TTFT."""
    if not starts:
        return None
    return {
        "n": int(median([t.compiled for t in starts])),
        "seconds": median([t.compile_seconds for t in starts]),
        "ttft_ms": median([t.ttft * 1e3 for t in starts]),
        "cache_hits": int(median([t.cache_hits for t in starts])),
        "processes": len(starts),
    }


def table(trials: Sequence[Trial], baseline: str, names: Sequence[str] | None = None, seed: int = 0) -> list[dict]:
    """All subjects; the baseline's twin (its A/A control) stands right after it.

    names: the subjects in the order wanted; by default that of their cold starts, which run in the order they were
    given.
    """
    present = subjects(sorted(trials, key=lambda t: (t.phase == "warm", t.block, t.order)))
    names = [name for name in names or present if not name.endswith(AGAIN)]
    twin = [name for name in present if name.endswith(AGAIN)]
    wanted = [each for name in names for each in ([name, *twin] if name == baseline else [name])]
    return [entry(trials, name, baseline, seed) for name in wanted]


def disturbed(table: Sequence[dict], names: Mapping[str, str] = MappingProxyType({})) -> str:
    """A short phrase for a figure where the run's own A/A control says that it was not quiet; "" if it was. names: of
    subjects, as the figure's rows have them."""
    twins = {e["name"].removesuffix(AGAIN): e["ratio_to_baseline"] for e in table if e["name"].endswith(AGAIN)}
    loud = {name: ratio for name, ratio in twins.items() if ratio["verdict"] in DIFFERENT or ratio["scattered"]}
    said = (f"A/A control ({names.get(name, name)}) {times(r)}, {r['judged']}" for name, r in loud.items())
    return next(said, "")


def tokens_word(e: dict) -> str:
    """equal: the reference's tokens. own: an approximate subject's, whose quality is measured apart. unchecked: a plain
    function's, with nothing to compare them with. none: it made no whole answer. Else wrong."""
    if e["tokens_equal"]:
        return "equal"
    if not any(WRONG in reason for reason in e["reasons"]) and any(UNCHECKED in reason for reason in e["reasons"]):
        return "unchecked"
    if e.get("approximate"):
        return "own"
    judged = e["valid_trials"] or any(WRONG in reason or gate.PARTS in reason for reason in e["reasons"])
    return "WRONG" if judged else "none"


COLUMNS = frames.Columns(
    {
        "placement": "name",
        "tokens/s": "tokens_per_second.median",
        "IQR": "tokens_per_second.iqr",
        **frames.interval("ratio", "ratio_to_baseline", "value"),
        "verdict": "ratio_to_baseline.judged",
        "MBU": "mbu",
        "TTFT ms": "ttft_ms",
        "compilations": "compile.n",
        "compile s": "compile.seconds",
        "peak RSS GB": frames.scaled("peak_rss_bytes", 1e9),
        "valid": "valid_trials",
        "void": "voided_trials",
        "tokens": tokens_word,
    },
    index="placement",
    digits=3,
)


def median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def baseline_of(table: Sequence[dict]) -> str:
    """The baseline's name in a table."""
    return next(e["name"] for e in table if e["ratio_to_baseline"]["verdict"] == BASELINE)


def limit(trials: Sequence[Trial], subject: str) -> float:
    """A subject's bandwidth limit in tokens/s (median of its warm trials)."""
    return float(np.median([t.limit for t in trials if t.subject == subject and t.bandwidth_gbps]))


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
