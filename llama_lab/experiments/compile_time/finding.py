"""What compiling costs and what is left of it: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.cold import Start
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import listed, span, within
from llama_lab.experiments.compile_time import table
from llama_lab.experiments.compile_time.starts import WAYS

OTHERS = ("eager", "step+scan")  # cold starts that one of `step` is compared with


def claim(trials: Sequence[Start], placement: str = "step", seed: int = 0) -> Claim:
    """What compiling takes of a cold start, before its first token and after it, and when it has paid; and what
    programs kept on disk leave of that start, up to its first token, if weights load equally fast."""
    cold, alike, compared = (placement, "cold"), loaded_alike(trials, placement), []
    for way in ("serialised", "cached"):
        ratio = table.start_ratio(trials, (placement, way), cold, alike, seed)
        compared.append(Comparison(ratio, f"a {way} start", "a cold one", "time to the first token at equal loading"))
    least, most = sorted(compared, key=lambda c: c.ratio.value)
    ways = [f"{within(c.ratio, '.0%')} ({c.subject.split()[1]})" for c in (least, most)]
    words = "At equal loading the first token takes {least:share}{first} and {most:share}{second} of a cold start's."
    kept = stated(words, least=least, most=most, first=ways[0], second=ways[1])
    said = " ".join(filter(None, [cost(trials, placement, seed), (kept or most.generic).sentence]))
    return Claim(said)  # with its intervals


def cost(trials: Sequence[Start], placement: str, seed: int = 0) -> str:
    """Seconds that a cold start compiles before its first token and after it, and from when on it is ahead of other
    cold starts; "" if not measured."""
    starts = table.of_start(trials, placement, "cold").values()
    if not starts:
        return ""
    spent, after = around_first_token(starts)
    whole = np.mean([start.to_first_ns / 1e9 for start in starts])
    evens = {other: table.break_even(trials, (placement, "cold"), (other, "cold"), seed) for other in OTHERS}
    ahead = listed([f"`{other}` {when(even)}" for other, even in evens.items() if even.pairs and even.n])
    said = f"Compiling the prompt's program takes {spent:.1f} of the {whole:.1f} s to the first token"
    said += f"; the decode program, {after:.1f} s afterwards."
    return said + (f" A cold start of `{placement}` overtakes {ahead}." if ahead else "")


def around_first_token(starts: Collection[Start]) -> tuple[float, float]:
    """Mean seconds that starts compile before their first token, and after it."""
    before = np.mean([sum(table.parts(start)[part] for part in table.COMPILING) for start in starts])
    return before, np.mean([start.compile_seconds for start in starts]) - before


def loads(trials: Sequence[Start], placement: str, way: str) -> list[float]:
    """Seconds that starts loaded the weights, which no program on disk shortens."""
    return [table.parts(start)["load weights"] for start in table.of_start(trials, placement, way).values()]


def usual_load(trials: Sequence[Start], placement: str) -> float:
    """Mean seconds that cold starts loaded the weights."""
    return float(np.mean(loads(trials, placement, "cold") or 0))


def loaded_alike(trials: Sequence[Start], placement: str) -> Callable[[Start], float]:
    """What gives a start's seconds to its first token, had it loaded the weights in the mean time of cold starts."""
    usual = usual_load(trials, placement)
    return lambda start: start.to_first_ns / 1e9 - table.parts(start)["load weights"] + usual


def loading(trials: Sequence[Start], placement: str) -> str:
    """What loading the weights took under each way to start; "" where one is missing."""
    took = {way: loads(trials, placement, way) for way in WAYS}
    if not all(took.values()):
        return ""
    each = listed([f"{np.mean(seconds):.2f} s {way}" for way, seconds in took.items()])
    return f"loading the weights is the same work in every start and took {each}"


def as_measured(trials: Sequence[Start], placement: str, seed: int = 0) -> str:
    """What the other ways to start left of a cold start's time to its first token, however long the weights took to
    load; "" where one is missing."""
    cold = (placement, "cold")
    left = {way: table.start_ratio(trials, (placement, way), cold, lambda t: t.to_first_ns, seed) for way in WAYS[1:]}
    if not all(ratio.n for ratio in left.values()):
        return ""
    each = ", ".join(f"{share(ratio)} {way}" for way, ratio in left.items())
    return f"as measured, with unequal loading times: {each}, n = {span((r.n for r in left.values()), '.0f')}"


def when(even: table.BreakEven) -> str:
    """When the way of starting that saves on each token gets ahead: `at the first token`, `after 126 tokens [67, 531]`,
    `never`."""
    words = {0: "at the first token", table.NEVER: "never"}.get(even.tokens, f"after {even.tokens:.0f} tokens")
    return words + even.interval


def share(ratio: Ratio) -> str:
    return f"{ratio.value:.0%}{within(ratio, '.0%')}"
