"""What the cache saves on one answer: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_lab.bench import statistics, summary
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Verdict


def medians(trials: Sequence[Trial], names: Sequence[str]) -> dict[str, float]:
    """Median seconds of an answer of each subject that has a valid one."""
    seconds = {name: [t.seconds for t in summary.warm(trials, name)] for name in names}
    return {name: float(np.median(values)) for name, values in seconds.items() if values}


def claim(trials: Sequence[Trial], cached: str, uncached: str) -> Claim:
    """How much longer the same answer takes where nothing is kept."""
    slow, fast = ([t.seconds for t in summary.warm(trials, name)] for name in (uncached, cached))
    longer = Comparison(
        statistics.of_times(statistics.unpaired_ratio(slow, fast)), uncached, cached, "time of an answer"
    )
    if longer.outcome != Verdict.SLOWER:
        return longer.generic
    middle = medians(trials, (cached, uncached))
    said = "Without a KV cache, which keeps what was computed before, an answer takes {times:.1f} times as long."
    return stated(said, times=middle[uncached] / middle[cached])


def arrivals(trials: Sequence[Trial], cached: str, uncached: str) -> str:
    """The claim, and the medians behind it."""
    middle = medians(trials, (cached, uncached)).items()
    return claim(trials, cached, uncached).text(
        *(
            f"an answer takes {seconds:.2f} s under {name}, n = {len(summary.warm(trials, name))}"
            for name, seconds in middle
        )
    )
