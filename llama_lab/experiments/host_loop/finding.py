"""What the host costs, and what Flax does: the sentences of the notebook."""

from __future__ import annotations

from collections.abc import Container, Sequence

from llama_lab.bench import AGAIN
from llama_lab.bench.claim import Claim, Comparison
from llama_lab.bench.experiment import whole
from llama_lab.bench.statistics import DIFFERENT, Verdict
from llama_lab.bench.wording import interval, listed, span, times, within
from llama_lab.experiments.host_loop import flax_twin as flax
from llama_lab.experiments.host_loop.flax_twin import CallRow
from llama_lab.experiments.host_loop.measure import BASELINE, STRATEGIES, short

FEW = 3  # strategies that a leader may be level with and still lead


def claim(points: Sequence[dict]) -> Claim:
    """The share of launching programs, in that and the waiting for them, in the smallest model, the largest, and those
    between whose weights are not random. points: `measure.by_size`."""
    if not points:
        return Claim("No model has valid trials both token by token and as one loop.")
    named = [p for p in points if p in (points[0], points[-1]) or not p["model"].startswith("random:")]
    (first, size), *others = [(f"{share(p):.0%}", f"at {parameters(p)}") for p in named]
    rest = "".join(f", {part} {at}" for part, at in others)
    return Claim(f"The host spends {first} of launch-plus-wait time launching {size} parameters{rest}.")


def answer(points: Sequence[dict], tables: Sequence[tuple[str, Sequence[dict]]]) -> str:
    """The claim, where the host matters, and the strategy that leads in each of some models. points: of
    `measure.by_size`. tables: (name, `measure.table`) of each of these models."""
    gains = [best(p) for p in points]
    where = "how often the host is asked matters most in small models"
    details = [where] * bool(points and share(points[0]) > share(points[-1]) and gains[0] > gains[-1])
    return claim(points).text(*details, *(gain(table, model) for model, table in tables))


def share(point: dict) -> float:
    """Of starting a program, in that and the waiting for it."""
    return point["dispatch"].median / (point["dispatch"].median + point["wait"].median)


def best(point: dict) -> float:
    """The largest ratio to the synchronous host among the strategies that are faster; 1 if none is."""
    return max((r.value for r in point["ratios"].values() if r.verdict == Verdict.FASTER), default=1.0)


def parameters(point: dict) -> str:
    """Weights that a token reads, for a sentence: `0.1M`, `135M`."""
    count = point["weights"] / 1e6
    return f"{count:.0f}M" if count >= 1 else f"{count:.1g}M"


def millions(point: dict) -> str:
    """Weights that a token reads, `0.107 M`."""
    return f"{point['weights'] / 1e6:.3g} M"


def starting(points: Sequence[dict]) -> str:
    """`Launching step's program is 49% of a token's launch-plus-wait time with 0.107 M weights, 3% with 362 M`."""
    if not points:
        return "No model has valid trials both token by token and as one loop"
    small, large = points[0], points[-1]
    words = f"Launching {BASELINE}'s program is {share(small):.0%} of a token's launch-plus-wait time with"
    return f"{words} {millions(small)} weights" + f", {share(large):.0%} with {millions(large)}" * (large is not small)


def fastest(table: Sequence[dict]) -> tuple[str, dict] | None:
    """The strategy with the largest ratio to the synchronous host among those that are faster, or None."""
    ratios = {r["name"]: r["ratio_to_baseline"] for r in table if r["valid_trials"] and not r["name"].endswith(AGAIN)}
    faster = {name: ratio for name, ratio in ratios.items() if ratio["verdict"] == Verdict.FASTER}
    return max(faster.items(), key=lambda item: item[1]["value"], default=None)


def gain(table: Sequence[dict], model: str) -> str:
    """The strategy that leads on one model, all but those few whose intervals overlap with its own, and of how many it
    is the best where not all were measured; or that none is faster, or none shown to lead."""
    best = fastest(table)
    if not best:
        return f"on {model} no strategy is shown to be faster than {BASELINE}"
    name, ratio = best
    measured = {r["name"]: r["ratio_to_baseline"] for r in table if r["valid_trials"] and r["name"] in STRATEGIES[1:]}
    few = f" among the {len(measured)} of {len(STRATEGIES) - 1} strategies measured"
    near = [other for other, r in measured.items() if other != name and r["high"] >= ratio["low"]]
    if len(near) > FEW or (near and len(near) == len(measured) - 1):
        return (
            f"on {model} {name} has {unrounded(ratio)} the rate of {BASELINE}, and none of the {len(measured)}"
            " strategies is shown to lead"
        )
    leads = f"{name} leads{f' all but {listed(near)}' * bool(near)}{few * (len(measured) < len(STRATEGIES) - 1)}"
    return f"on {model} {leads}, at {unrounded(ratio)} the rate of {BASELINE}"


def unrounded(ratio: dict) -> str:
    """`1.10x [1.05, 1.16]`; with a digit more where rounding would make an end of the interval 1."""
    ends = (ratio["low"], ratio["high"])
    if any(f"{end:.2f}" == "1.00" for end in ends):
        return f"{ratio['value']:.3f}x {interval(ratio, '.3f')}"
    return times(ratio)


def title(tables: Sequence[tuple[str, Sequence[dict]]]) -> str:
    """The rate of the fastest strategy on each of several models, (name, table) each, without intervals."""
    known = dict(tables)
    best = {model: fastest(table) for model, table in known.items()}
    words = [
        f"on {model} {best[model][0]} reaches {best[model][1]['value']:.2f} times the rate of {BASELINE}"
        if best[model] else gain(table, model)
        for model, table in known.items()
    ]  # fmt: skip
    text = "; ".join(words)
    return text[0].upper() + text[1:]


def waiting(table: Sequence[dict], model: str) -> str:
    """`random 0.1M: a token waits 54 µs under step and 22 µs under loop`: what of the waiting is left where the host is
    asked once."""
    times_us = {r["name"]: r["fetch_us"] for r in table if r["valid_trials"]}
    if not {BASELINE, "loop"} <= times_us.keys():
        return f"{model}: no valid answers under both {BASELINE} and loop"
    return (
        f"{model}: a token waits {times_us[BASELINE]:,.0f} µs under {BASELINE}, {times_us['loop']:,.0f} µs under loop"
    )


def cores(table: Sequence[dict], model: str) -> str:
    """How many cores the strategies keep busy that start a program for each token, and how many the others."""
    busy = {r["name"]: r["cores"] for r in table if r["valid_trials"]}
    each = [found for name, found in busy.items() if name.startswith(BASELINE)]
    fewer = [found for name, found in busy.items() if not name.startswith(BASELINE)]
    said = [
        f"{min(found):.2f} to {max(found):.2f} cores busy under {what}"
        for what, found in (("step and its variants", each), ("chunk8, loop and their callbacks", fewer))
        if found
    ]
    return f"{model}: {', '.join(said) or 'no strategy has valid answers'}"


def named(model: str) -> str:
    """A model's name in a figure, where a random one is not known yet: `0.1M random weights`."""
    kind, _, size = short(model).partition(" ")
    return f"{size} random weights" if kind == "random" else short(model)


def load(
    panels: Sequence[tuple[str, object, Sequence[dict]]], drawn: Container[str], cores: int, blocks: Sequence[str]
) -> str:
    """How many cores the strategies of a figure keep busy in each of its models, and which of them deliver tokens in
    blocks. panels: (name, trials, `measure.table`) of each model."""
    busy = {
        model: [r["cores"] for r in table if r["valid_trials"] and r["name"] in drawn] for model, _, table in panels
    }
    said = [(span(used, ".1f"), model) for model, used in busy.items() if used]
    if not said:
        return "No strategy has valid answers"
    (first, small), *others = said
    words = f"{first} of {cores} cores are busy with {small}"
    words += "".join(f", {used} with {model}" for used, model in others)
    return words + f"; tokens arrive in blocks under {listed(blocks)}" * bool(blocks)


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
    return f"{words}; the control is {unrounded(control)}{failed}"


def flax_twin(rows: Sequence[CallRow], seed: int = 0) -> str:
    """What Flax costs a decode call at the largest model measured, and `nnx.jit` at the smallest as well."""
    rows = sorted(whole(rows), key=lambda r: (r.parameters, r.layers, r.model))
    smallest, largest = rows[0], rows[-1]
    compared = [
        Comparison(flax.times_as_long(rows, row.model, *pair, seed), *pair, f"time of a call of {sized(row)}")
        for row, *pair in (
            (largest, flax.UNJITTED, flax.JITTED),
            (largest, flax.JITTED, flax.STEP),
            (largest, flax.SPLIT, flax.STEP),
            (smallest, flax.NNX_JITTED, flax.SPLIT),
        )
    ]
    later = flax.dispatch_difference(rows, largest.model, flax.NNX_JITTED, flax.SPLIT, seed)
    words = [c.words for c in compared if c.ratio.n]
    if later.n:
        more = f"{later.value / 1e3:.2f} ms{within(later, lambda us: f'{us / 1e3:.2f}')}"
        words.append(f"{flax.NNX_JITTED} on {sized(largest)} returns {more} later than {flax.SPLIT}, n = {later.n}")
    return "; ".join(words) or "no two ways of calling have valid bursts"


def jitted(rows: Sequence[CallRow], seed: int = 0) -> str:
    """`a call of flax-linen+jit takes 0.81 to 1.25 times as long as step's, 1.11 on smollm2-135m-instruct`: on all
    models and on the largest; "" without both."""
    rows = sorted(whole(rows), key=lambda r: (r.parameters, r.layers, r.model))
    models = {row.model: row for row in rows}
    ratios = {model: flax.times_as_long(rows, model, flax.JITTED, flax.STEP, seed) for model in models}
    known = {model: ratio.value for model, ratio in ratios.items() if ratio.n}
    if not known:
        return ""
    largest = [*known][-1]
    there = f", {known[largest]:.2f} on {sized(models[largest])}" * (len(known) > 1)
    return f"a call of {flax.JITTED} takes {span(known.values())} times as long as {flax.STEP}'s{there}"


def sized(row: CallRow) -> str:
    """A model's name; of one that differs in its sizes from the preset that it is called after, those sizes."""
    changed = "," in row.model
    return f"the {row.layers}-layer model of width {row.width}" if changed else row.model
