"""What first requests of fresh processes say: their parts, by length, and what one of them does to a mean of warm
ones."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from llama_lab.bench import frames, statistics
from llama_lab.bench.cold import Start
from llama_lab.bench.published import COLD_LOOP, figure_of
from llama_lab.experiments.time_to_first_token.plan import TAIL
from llama_lab.experiments.time_to_first_token.table import middle, milliseconds, placements, rivals, warm


def cold(trials: Sequence[Start], at: int, seed: int = 0) -> list[dict]:
    """First requests of fresh processes at one length, by subject: TTFT in ms of each, and its parts at the median.

    warm_ms: the subject's warm median at that length. Three parts add up to `median`: compile_ms, trace, lower and
    compile before the first token, as JAX reports them; usual_ms, what a warm request takes as well; once_ms, the rest,
    which is where PyTorch's compiling is.
    """
    entries = []
    for name in placements(trials) + rivals(trials):
        starts = [t for t in trials if (t.phase, t.subject, t.prompt_tokens) == ("cold", name, at) and t.valid]
        if not starts:
            continue
        times, n = milliseconds(starts), at
        compiling = float(
            np.median(
                [((t.first_trace_ns or 0) + (t.first_lower_ns or 0) + (t.first_backend_ns or 0)) / 1e6 for t in starts]
            )
        )
        warm_ms, whole = middle(trials, name, n), statistics.summarise(times, seed)
        usual = max(0.0, float(np.nanmin([warm_ms, whole.median - compiling])))
        entries.append(
            dict(
                subject=name,
                tokens=n,
                n=len(times),
                cold=times,
                median=whole.median,
                warm_ms=warm_ms,
                compile_ms=compiling,
                usual_ms=usual,
                once_ms=whole.median - compiling - usual,
                load_s=float(np.median([t.load_ns for t in starts])) / 1e9,
                peak_rss_bytes=max((t.peak_rss_bytes for t in starts if t.peak_rss_bytes), default=None),
            )
        )
    return entries


def cold_lengths(trials: Sequence[Start]) -> list[int]:
    """Prompt lengths of first requests, ascending."""
    return sorted({t.prompt_tokens for t in trials if t.phase == "cold" and t.prompt_tokens})


def cold_frame(trials: Sequence[Start], at: Sequence[int], seed: int = 0):
    """First requests at these lengths, as a pandas.DataFrame: seconds, their parts, and the process's peak memory."""
    return frames.show([e for n in at for e in cold(trials, n, seed)], COLUMNS)


COLUMNS = frames.Columns(
    {
        "tokens": "tokens",
        "subject": "subject",
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
    the warm ones.
    largest: of the warm ones, above which none of their percentiles can lie. Subjects with too few warm trials are left
    out.
    """
    entries = []
    for e in cold(trials, at):
        here = [t for t in warm(trials, e["subject"], e["tokens"]) if t.run != TAIL]  # of which there may be hundreds
        values = milliseconds(sorted(here, key=lambda t: (t.process, t.run, t.block)))
        if len(values) >= COLD_LOOP - 1:
            mixed = float(np.mean([e["median"], *values[: COLD_LOOP - 1]]))
            entries.append(
                dict(subject=e["subject"], n=len(values), mixed=mixed, warm=float(np.mean(values)), largest=max(values))
            )
    return entries


def originals() -> dict[str, tuple[float, float, float]]:
    """What was published of the two cases that the speed-up stands on: case → (mean, P99, mean without the one cold
    row), ms."""
    kinds = ("mean", "P99", "mean without the cold row")
    return {
        case: tuple(figure_of("ttft", f"{kind}, {case}") for kind in kinds)
        for case in ("JIT-only", "CUDA graph + TorchScript")
    }


def beside_the_original(trials: Sequence[Start], at: int):
    """The published means and P99, and the same two numbers made the same wrong way from our own trials: a
    pandas.DataFrame, ms."""
    cases = [
        (f"published: {case}", mean, p99, f"P99 {p99:.2f} of 100 warm", without)
        for case, (mean, p99, without) in originals().items()
    ] + [
        (f"here: {e['subject']}", e["mixed"], e["largest"], f"largest {e['largest']:.2f} of {e['n']} warm", e["warm"])
        for e in mixing(trials, at)
    ]
    return frames.show(cases, BESIDE)


BESIDE = frames.Columns(
    {
        "case": itemgetter(0),
        "mean": itemgetter(1),
        "beside it": itemgetter(3),
        "mean over it": lambda case: case[1] / case[2],
        "mean without the cold row": itemgetter(4),
        "mean over that": lambda case: case[1] / case[4],
    },
    index="case",
    digits=2,
)
