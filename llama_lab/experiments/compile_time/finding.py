"""What compiling costs and what is left of it: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import within
from llama_lab.experiments.compile_time import table


def claim(trials: Sequence[Start], placement: str = "step", seed: int = 0) -> Claim:
    """What programs kept on disk leave of a start, from the beginning of the process to its first token."""
    cold, compared = (placement, "cold"), []
    for way in ("serialised", "cached"):
        ratio = table.start_ratio(trials, (placement, way), cold, lambda t: t.to_first_ns, seed)
        compared.append(Comparison(ratio, f"a {way} start", "a cold one", "time to the first token"))
    least, most = sorted(compared, key=lambda c: c.ratio.value)
    words = "With compiled programs on disk the first token takes {least:share} to {most:share} of a cold start's time."
    return stated(words, least=least, most=most) or most.generic


def when(even: table.BreakEven) -> str:
    """From which token on the way of starting that saves on each token is ahead."""
    return {0: "from the first token on", table.NEVER: "never"}.get(even.tokens, f"after {even.tokens:.0f} tokens")


def share(ratio: Ratio) -> str:
    return f"{ratio.value:.0%}{within(ratio, '.0%')}"
