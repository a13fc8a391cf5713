"""What the host costs, and what Flax does: the sentences of the notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_lab.bench import AGAIN
from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.experiment import whole
from llama_lab.bench.statistics import DIFFERENT, Verdict
from llama_lab.bench.wording import short_model, times, within
from llama_lab.experiments.host_loop import flax_twin as flax
from llama_lab.experiments.host_loop.flax_twin import CallRow
from llama_lab.experiments.host_loop.measure import BASELINE


def claim(points: Sequence[dict]) -> Claim:
    """The share of starting programs, in that and the waiting for them, by size. points: `measure.by_size`."""
    if not points:
        return Claim("No model has valid trials both token by token and as one loop.")
    shares = [share(p) for p in points]
    gains, sizes = ([of(points[i]) for i in (0, -1)] for of in (best, millions))
    last = f"{gains[1]:.2f} times" if gains[1] > 1 else "no gain shown"
    numbers = dict(small=shares[0], large=shares[-1], gain=gains[0], last=last, least=sizes[0], most=sizes[1])
    said = "Starting programs takes {small:.0%} of a token's time in the smallest model"
    compared = said + " and {large:.0%} in the largest"
    where = f"up to {{gain:.2f}} times the rate of {BASELINE} at {{least}} weights, {{last}} at {{most}}."
    reason = ", so how often the host is asked matters most in small models: " + where
    less = shares[0] > shares[-1]
    return (
        stated(compared + reason, when=less and gains[0] > gains[1], **numbers)
        or stated(compared + ".", when=less, **numbers)
        or Claim(said.format(**numbers) + ".")
    )


def share(point: dict) -> float:
    """Of starting a program, in that and the waiting for it."""
    return point["dispatch"].median / (point["dispatch"].median + point["wait"].median)


def best(point: dict) -> float:
    """The largest ratio to the synchronous host among the strategies that are faster; 1 if none is."""
    return max((r.value for r in point["ratios"].values() if r.verdict == Verdict.FASTER), default=1.0)


def millions(point: dict) -> str:
    """Weights that a token reads, `0.107 M`."""
    return f"{point['weights'] / 1e6:.3g} M"


def starting(points: Sequence[dict]) -> str:
    """`Under step, starting the program takes 49% of a token's time at 0.107 M weights, 3% at 362 M`."""
    if not points:
        return "No model has valid trials both token by token and as one loop"
    small, large = points[0], points[-1]
    words = f"Under {BASELINE}, starting the program takes {share(small):.0%} of a token's time at {millions(small)}"
    return f"{words} weights" + f", {share(large):.0%} at {millions(large)}" * (large is not small)


def fastest(table: Sequence[dict]) -> tuple[str, dict] | None:
    """The strategy with the largest ratio to the synchronous host among those that are faster, or None."""
    ratios = {r["name"]: r["ratio_to_baseline"] for r in table if r["valid_trials"] and not r["name"].endswith(AGAIN)}
    faster = {name: ratio for name, ratio in ratios.items() if ratio["verdict"] == Verdict.FASTER}
    return max(faster.items(), key=lambda item: item[1]["value"], default=None)


def gain(table: Sequence[dict], model: str, words: Callable[[dict], str] = times) -> str:
    """The fastest strategy of one model, or that there is none. words: of its ratio."""
    if best := fastest(table):
        return f"on {model} {best[0]} is fastest, at {words(best[1])} the rate of {BASELINE}"
    return f"on {model} no strategy is shown to be faster than {BASELINE}"


def title(tables: Sequence[tuple[str, Sequence[dict]]]) -> str:
    """The same of several models, (name, table) each, without intervals."""
    words = "; ".join(dict.fromkeys(gain(table, model, lambda r: f"{r['value']:.2f} times") for model, table in tables))
    return words[0].upper() + words[1:]


def spread(table: Sequence[dict], model: str) -> str:
    """How far a model's strategies lie from the synchronous host, and the control, which is the same program again."""
    ratios = {r["name"]: r["ratio_to_baseline"] for r in table if r["valid_trials"] and r["name"] != BASELINE}
    values = [ratio["value"] for name, ratio in ratios.items() if not name.endswith(AGAIN)]
    if not values:
        return f"{model}: no strategy has valid answers"
    words = f"{model}: the strategies range from {min(values):.2f} to {max(values):.2f} times the rate of {BASELINE}"
    control = ratios.get(BASELINE + AGAIN)
    if control is None:
        return words
    failed = " (the control failed: only larger effects count)" * (control["verdict"] in DIFFERENT)
    return f"{words}; the control is {times(control)}{failed}"


def flax_twin(rows: Sequence[CallRow], seed: int = 0) -> str:
    """What Flax costs a decode call at the largest model measured, and `nnx.jit` at the smallest as well."""
    rows = sorted(whole(rows), key=lambda r: (r.parameters, r.layers, r.model))
    smallest, largest = rows[0].model, rows[-1].model
    compared = [
        Comparison(flax.times_as_long(rows, model, *pair, seed), *pair, f"time of a call of {short_model(model)}")
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
