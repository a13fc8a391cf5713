"""What the host costs, and what Flax does: the sentences of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import AGAIN
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.experiment import whole
from llama_lab.bench.statistics import Verdict
from llama_lab.bench.wording import times, within
from llama_lab.experiments.host_loop import flax_twin as flax
from llama_lab.experiments.host_loop.flax_twin import CallRow


def claim(points: Sequence[dict]) -> Claim:
    """The share of starting programs, in that and the waiting for them, by size. points: `measure.by_size`."""
    if not points:
        return Claim("No model has valid trials both token by token and as one loop.")
    shares = [p["dispatch"].median / (p["dispatch"].median + p["wait"].median) for p in points]
    small, large = shares[0], shares[-1]
    words = "Starting programs takes {small:.0%} of a token's time in"
    compared = words + " a tiny model and {large:.0%} in the largest: the host matters only where the device is quick."
    alone = Claim(f"{words.format(small=small)} {points[0]['model']}.")
    return stated(compared, when=small > large, small=small, large=large) or alone


def gain(table: Sequence[dict], model: str) -> str:
    """The fastest strategy of one model that is told apart from the synchronous host, or that there is none."""
    ratios = {r["name"]: r["ratio_to_baseline"] for r in table if r["valid_trials"] and not r["name"].endswith(AGAIN)}
    faster = {name: ratio for name, ratio in ratios.items() if ratio["verdict"] == Verdict.FASTER}
    if not faster:
        return f"on {model} no strategy is told apart as faster than token by token"
    name, ratio = max(faster.items(), key=lambda item: item[1]["value"])
    return f"on {model} the fastest of those measured is {name} with {times(ratio)} of token by token"


def flax_twin(rows: Sequence[CallRow], seed: int = 0) -> str:
    """What Flax costs a decode call at the largest model measured, and `nnx.jit` at the smallest as well."""
    rows = sorted(whole(rows), key=lambda r: (r.parameters, r.layers, r.model))
    smallest, largest = rows[0].model, rows[-1].model
    compared = [
        Comparison(flax.times_as_long(rows, model, *pair, seed), *pair, f"time of a call of {model}")
        for model, *pair in (
            (largest, flax.UNJITTED, flax.JITTED),
            (largest, flax.JITTED, flax.STEP),
            (smallest, flax.NNX_JITTED, flax.SPLIT),
        )
    ]
    later = flax.dispatch_difference(rows, largest, flax.NNX_JITTED, flax.SPLIT, seed)
    words = [c.words for c in compared if c.ratio.n]
    if later.n:
        more = f"{later.value / 1e3:.2f} ms{within(later, lambda us: f'{us / 1e3:.2f}')}"
        words.append(f"{flax.NNX_JITTED} returns {more} later than {flax.SPLIT}, n = {later.n}")
    return "; ".join(words) or "no two ways of calling have valid bursts"
