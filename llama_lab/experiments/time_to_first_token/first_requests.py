"""What first requests of fresh processes say: their parts, by length, and what one of them does to a mean of warm
ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, statistics
from llama_lab.bench.cold import Start
from llama_lab.bench.published import COLD_LOOP, figure_of
from llama_lab.bench.summary import grouped, warm
from llama_lab.bench.wording import listed, named_well
from llama_lab.experiments.time_to_first_token.measure import TAIL
from llama_lab.experiments.time_to_first_token.side_by_side import interleaved
from llama_lab.experiments.time_to_first_token.table import at_length, first_ms, middle, placements, rivals, weights

NOT_APART = "not measured apart"
PARTS = ("compile_ms", "script_ms", "freeze_ms", "profiled_ms")  # of a first request, in the order of `parts`


def cold(trials: Sequence[Start], at: int, seed: int = 0) -> list[dict]:
    """First requests of fresh processes at one length, by subject: TTFT in ms of each, and its parts at the median.

    warm_ms: the subject's warm median at that length, beside all subjects. The parts add up to `median`: those of
    `parts` that are known; usual_ms, what a warm request takes as well; once_ms, the rest. apart: whether PyTorch's
    compiling and scripting are parts of their own; in older rows they hide in once_ms.
    """
    entries = []
    for name in placements(trials) + rivals(trials):
        starts = [t for t in at_length(trials, at) if (t.phase, t.subject) == ("cold", name) and t.valid]
        if not starts:
            continue
        times, warm_ms = [first_ms(t) for t in starts], middle(interleaved(trials), name, at)
        whole = statistics.summarise(times, seed).median
        known = dict(zip(PARTS, np.median([parts(t) for t in starts], axis=0).tolist(), strict=True))
        usual = max(0.0, float(np.nanmin([warm_ms, whole - sum(known.values())])))
        entries.append(
            dict(
                subject=name,
                tokens=at,
                n=len(times),
                cold=times,
                median=whole,
                warm_ms=warm_ms,
                **known,
                apart=all(t.backend != "torch" or t.script_ns is not None for t in starts),
                scripts=any(t.script_calls_ns for t in starts),
                next_ms=float(np.median([optimising(t) for t in starts])),
                usual_ms=usual,
                once_ms=whole - sum(known.values()) - usual,
                load_s=float(np.median([t.load_ns for t in starts])) / 1e9,
                peak_rss_bytes=max((t.peak_rss_bytes for t in starts if t.peak_rss_bytes), default=None),
            )
        )
    return entries


def plainest(entries: Sequence[dict], trials: Sequence[Start]) -> list[dict]:
    """The entries of `cold` without the variants of a peer on the same weights (`torch+static` beside `torch`), and of
    each placement its soonest shape: the rows of a figure, whose table has all."""
    kinds = weights(trials)
    plain = {e["subject"]: e["subject"].partition("+")[0] for e in entries}
    kept = [e for e in entries if (own := e["subject"]) == plain[own] or kinds[own] != kinds.get(plain[own])]
    shapes = grouped(kept, lambda e: e["subject"].partition(" ")[0]).values()
    return [min(entries, key=lambda e: e["warm_ms"]) for entries in shapes]


def over_warm(entries: Sequence[dict]) -> str:
    """`torch-compile 306, step exact 20, torch 1.0`: how many warm requests fit into the first one. entries: of
    `cold`."""
    over = {e["subject"]: e["median"] / e["warm_ms"] for e in entries if np.isfinite(e["warm_ms"])}
    ordered = sorted(over.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {ratio:,.0f}" if ratio >= 10 else f"{name} {ratio:.1f}" for name, ratio in ordered)


def parts(start: Start) -> tuple[float, float, float, float]:
    """What a first request is known to spend before its first token, in ms; zeros where that is nothing, or not known.

    Trace, lower and compile as JAX reports them, or what Dynamo and Inductor take; `torch.jit.script`;
    `torch.jit.freeze`; and what the first calls of scripted functions take beyond later ones.
    """
    compiling = (start.first_trace_ns or 0) + (start.first_lower_ns or 0) + (start.first_backend_ns or 0)
    script, freeze, calls = start.script_ns or 0, start.freeze_ns or 0, start.script_calls_ns
    return max(0, compiling - script) / 1e6, script / 1e6, freeze / 1e6, beyond(calls, 0) / 1e6


def optimising(start: Start) -> float:
    """ms that the second calls of scripted functions take beyond later ones: of the request after the first."""
    return beyond(start.script_calls_ns, 1) / 1e6


def beyond(calls: Sequence[int], nth: int) -> int:
    """What the n-th of some calls took beyond the quickest after the first two, from which on nothing is prepared."""
    return max(0, calls[nth] - min(calls[2:])) if len(calls) > 2 else 0


def cold_table(entries: Sequence[dict]):
    """First requests as a pandas.DataFrame: seconds, their parts, and the process's peak memory. Compiling that was
    measured apart for nobody has no column. entries: of `cold`."""
    frame = frames.show(entries, COLUMNS)
    return frame.loc[:, [not frame[name].isin([NOT_APART]).all() for name in frame]]


def prepared(entry: dict) -> float:
    """ms of a first request that neither compile nor recur: of a subject that scripts, scripting included."""
    return entry["median"] - entry["compile_ms"] - entry["usual_ms"]


COLUMNS = frames.Columns(
    {
        **frames.same("tokens", "subject"),
        "processes": "n",
        "cold s": frames.scaled("median", 1e3),
        "compile s": lambda e: f"{e['compile_ms'] / 1e3:.3f}" if e["apart"] else NOT_APART,
        "other, once s": lambda e: prepared(e) / 1e3,
        "warm s": frames.scaled("warm_ms", 1e3),
        "load s": "load_s",
        "peak GB": lambda e: (e["peak_rss_bytes"] or 0) / 1e9,
    },
    index=("tokens", "subject"),
    digits=3,
)
SCRIPTS = frames.Columns(
    {
        "subject": "subject",
        "script, ms": "script_ms",
        "freeze, ms": "freeze_ms",
        "first run, ms": "profiled_ms",
        "rest of other, ms": "once_ms",
        "second run, ms": "next_ms",
    },
    index="subject",
    digits=1,
)  # of `scripted`


def scripted(entries: Sequence[dict]) -> list[dict]:
    """The entries of subjects under TorchScript. entries: of `cold`."""
    return [e for e in entries if e["scripts"]]


def mixing(trials: Sequence[Start], at: int) -> list[dict]:
    """What a mean over a loop of COLD_LOOP requests becomes when the first of them is cold: {subject, n, mixed, warm,
    largest}, in ms.

    mixed: mean of one cold request (a median one) and COLD_LOOP - 1 warm ones, as the published loop was. warm: mean of
    the warm ones. largest: of the warm ones, above which none of their percentiles can lie. Subjects with too few warm
    trials are left out.
    """
    entries = []
    for e in cold(trials, at):
        here = [t for t in warm(at_length(trials, at), e["subject"]) if t.run != TAIL]  # of which there may be hundreds
        values = [first_ms(t) for t in sorted(here, key=lambda t: (t.process, t.run, t.block))]
        if len(values) >= COLD_LOOP - 1:
            mixed = float(np.mean([e["median"], *values[: COLD_LOOP - 1]]))
            own = dict(mixed=mixed, warm=float(np.mean(values)), largest=max(values))
            entries.append(dict(subject=e["subject"], n=len(values), **own))
    return entries


def lifted(entries: Sequence[dict]) -> str:
    """Whose mean the cold request lifts above every warm one, and where the mean of the others lies. entries: of
    `mixing`."""
    over = {e["subject"]: e["mixed"] / e["largest"] for e in entries}
    above = [named_well(name) for name, ratio in over.items() if ratio > 1]
    below = [ratio for ratio in over.values() if ratio <= 1]
    words = f"mean above every warm request: {listed(above) or 'nobody'}"
    if not below:
        return words
    return f"{words}; of the others it is {min(below):.1f} to {max(below):.1f} of the largest warm request"


MIXED = frames.Columns(
    {
        **frames.same("subject", "n"),
        "mean with a cold one": "mixed",
        **frames.same("warm", "largest"),
        "mean / largest": lambda entry: entry["mixed"] / entry["largest"],
    },
    digits=1,
)


def originals() -> dict[str, tuple[float, float, float]]:
    """What was published: case → (mean, P99, mean without the one cold row), ms. A case says where its first two stand,
    the document's own table or the stored results of its repository; the third is computed from the rows of the
    same."""
    kinds = ("mean", "P99", "mean without the cold row")
    cases = {"JIT-only (document)": "JIT-only"} | {
        name: name for name in (f"{case} (repository)" for case in ("plain", "JIT-only", "CUDA graph + TorchScript"))
    }
    return {case: tuple(figure_of("ttft", f"{kind}, {name}") for kind in kinds) for case, name in cases.items()}


def as_published():
    """The published means and P99 of each case: a pandas.DataFrame, ms."""
    import pandas as pd

    n = figure_of("ttft", "requests of a warm loop")
    lines = [
        {
            "published": case,
            "mean": mean,
            f"P99 of {n:.0f} warm": p99,
            "mean / P99": mean / p99,
            "mean without the cold row (computed)": without,
            "mean / mean without": mean / without,
        }
        for case, (mean, p99, without) in originals().items()
    ]
    return pd.DataFrame(lines).set_index("published").round(2)
