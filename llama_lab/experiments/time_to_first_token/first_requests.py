"""What first requests of fresh processes say: their parts, by length, and what one of them does to a mean of warm
ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import frames, statistics
from llama_lab.bench.cold import Start
from llama_lab.bench.published import COLD_LOOP, figure_of
from llama_lab.bench.summary import warm
from llama_lab.experiments.time_to_first_token.measure import TAIL
from llama_lab.experiments.time_to_first_token.table import at_length, first_ms, middle, placements, rivals


def cold(trials: Sequence[Start], at: int, seed: int = 0) -> list[dict]:
    """First requests of fresh processes at one length, by subject: TTFT in ms of each, and its parts at the median.

    warm_ms: the subject's warm median at that length. Three parts add up to `median`: compile_ms, trace, lower and
    compile before the first token, as JAX reports them; usual_ms, what a warm request takes as well; once_ms, the rest,
    which is where PyTorch's compiling is.
    """
    entries = []
    for name in placements(trials) + rivals(trials):
        starts = [t for t in at_length(trials, at) if (t.phase, t.subject) == ("cold", name) and t.valid]
        if not starts:
            continue
        times, warm_ms = [first_ms(t) for t in starts], middle(trials, name, at)
        whole = statistics.summarise(times, seed).median
        parts = [(t.first_trace_ns or 0) + (t.first_lower_ns or 0) + (t.first_backend_ns or 0) for t in starts]
        compiling = float(np.median([ns / 1e6 for ns in parts]))
        usual = max(0.0, float(np.nanmin([warm_ms, whole - compiling])))
        entries.append(
            dict(
                subject=name,
                tokens=at,
                n=len(times),
                cold=times,
                median=whole,
                warm_ms=warm_ms,
                compile_ms=compiling,
                usual_ms=usual,
                once_ms=whole - compiling - usual,
                load_s=float(np.median([t.load_ns for t in starts])) / 1e9,
                peak_rss_bytes=max((t.peak_rss_bytes for t in starts if t.peak_rss_bytes), default=None),
            )
        )
    return entries


def cold_table(trials: Sequence[Start], seed: int = 0):
    """First requests at each length that has some, as a pandas.DataFrame: seconds, their parts, and the process's peak
    memory."""
    lengths = sorted({t.prompt_tokens for t in trials if t.phase == "cold" and t.prompt_tokens})
    return frames.show([e for n in lengths for e in cold(trials, n, seed)], COLUMNS)


COLUMNS = frames.Columns(
    {
        **frames.same("tokens", "subject"),
        "processes": "n",
        "cold s": frames.scaled("median", 1e3),
        "compile s": frames.scaled("compile_ms", 1e3),
        "other, once s": frames.scaled("once_ms", 1e3),
        "warm s": frames.scaled("warm_ms", 1e3),
        "load s": "load_s",
        "peak GB": lambda e: (e["peak_rss_bytes"] or 0) / 1e9,
    },
    index=("tokens", "subject"),
    digits=3,
)


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


def originals() -> dict[str, tuple[float, float, float]]:
    """What was published: case → (mean, P99, mean without the one cold row), ms. A case says where its first two stand,
    the document's own table or the stored results of its repository; the third is computed from the rows of the
    same."""
    kinds = ("mean", "P99", "mean without the cold row")
    cases = {"JIT-only (document)": "JIT-only"} | {
        name: name for name in (f"{case} (repository)" for case in ("plain", "JIT-only", "CUDA graph + TorchScript"))
    }
    return {case: tuple(figure_of("ttft", f"{kind}, {name}") for kind in kinds) for case, name in cases.items()}


def beside_the_original(trials: Sequence[Start], at: int):
    """The published means and P99, and the same two numbers made the same wrong way from our own trials: a
    pandas.DataFrame, ms."""
    import pandas as pd

    n = figure_of("ttft", "requests of a warm loop")
    cases = [(f"published: {case}", *ms, f"P99 {ms[1]:.2f} of {n:.0f} warm") for case, ms in originals().items()]
    for e in mixing(trials, at):
        words = f"largest {e['largest']:.2f} of {e['n']} warm"
        cases.append((f"here: {e['subject']}", e["mixed"], e["largest"], e["warm"], words))
    lines = [
        {
            "case": case,
            "mean": mean,
            "beside it": words,
            "mean over it": mean / most,
            "mean without the cold row (computed)": without,
            "mean over that": mean / without,
        }
        for case, mean, most, without, words in cases
    ]
    return pd.DataFrame(lines).set_index("case").round(2)
