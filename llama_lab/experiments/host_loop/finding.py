"""What the host costs, and what Flax does: the sentences of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import AGAIN
from llama_lab.bench.experiment import whole
from llama_lab.bench.numbers import within
from llama_lab.bench.statistics import DIFFERENT, Verdict
from llama_lab.bench.wording import times
from llama_lab.experiments.host_loop import flax_twin as flaxtwin
from llama_lab.experiments.host_loop import measure
from llama_lab.experiments.host_loop.flax_twin import CallRow


def host_loop(points: Sequence[dict], tables: dict[str, list[dict]], served: Sequence[dict]) -> str:
    """Up to what size of model the host is what one waits for, what the best strategy gains there and on the largest
    model measured.

    points: `measure.by_size`. tables: `measure.table` by model, smallest first. served: `measure.served`.
    """
    if not points:
        return "No model has valid trials both token by token and as one loop, so there is nothing to compare."
    cross, at = measure.crossover(points), [f"{p['weights'] / 1e6:.3g} M" for p in points]
    shares = [p["dispatch"].median / (p["dispatch"].median + p["wait"].median) for p in points]
    sentence = claim(points) + (
        f" Token by token, the host spends {shares[0]:.0%} of its time starting programs, not waiting for them, at"
        f" {at[0]} weights a token"
    )
    if len(points) > 1:
        sentence += f" and {shares[-1]:.0%} at {at[-1]}"
        if cross:
            sentence += f", and waiting overtakes starting at about {cross / 1e6:.2g} M"
        elif shares[0] < 0.5:
            sentence += ", waiting being the longer from the smallest on"
    names = [p["model"] for p in points]
    for model in dict.fromkeys([names[0], *(name for name in names if not name.startswith("random:")), names[-1]]):
        sentence += f"; {gain(tables[model], measure.short(model))}"
    decided = [s for s in served if s["ratio"].verdict in DIFFERENT]
    words = [f"{s['ratio'].words} on {measure.short(s['model'])}" for s in decided]
    if served:
        sentence += (
            f"; text work in threads of its own serves {' and '.join(words)}"
            if words
            else "; whether threads for the text work help, these trials do not tell"
        )
    return sentence + "."


def claim(points: Sequence[dict]) -> str:
    """What starting programs one by one takes, of that and the waiting for them, in the smallest model and in the
    largest."""
    shares = [p["dispatch"].median / (p["dispatch"].median + p["wait"].median) for p in points]
    said = f"Starting programs takes {shares[0]:.0%} of starting and waiting for them in a tiny model"
    return said + (f", {shares[-1]:.0%} in the largest." if len(points) > 1 else ".")


def gain(table: Sequence[dict], model: str) -> str:
    """The fastest strategy of one model that is told apart from the synchronous host, or that there is none."""
    ratios = {r["name"]: r["ratio_to_baseline"] for r in table if r["valid_trials"] and not r["name"].endswith(AGAIN)}
    faster = {name: ratio for name, ratio in ratios.items() if ratio["verdict"] == Verdict.FASTER}
    if not faster:
        return f"on {model} no strategy is told apart as faster than token by token"
    name, ratio = max(faster.items(), key=lambda item: item[1]["value"])
    return f"on {model} the fastest of those measured is {name} with {times(ratio)} of token by token"


def flax_twin(rows: Sequence[CallRow], seed: int = 0) -> str:
    """What Flax costs a decode call at the largest model measured, un-jitted, jitted, and by `nnx.jit`; and where it
    costs most."""
    table = flaxtwin.table(rows, seed)
    rows = whole(rows)
    largest, smallest = table[-1]["model"], table[0]["model"]
    at = {e["subject"]: e for e in table if e["model"] == largest and e["complete_us"].n}

    def words(said: str, found, decided: bool, of: str) -> str:
        return f"{said} (n = {found.n}){of}" + ("" if decided else ", too close for these data")

    def over(subject: str, other: str, of: str, model: str = largest) -> str:
        ratio = flaxtwin.times_as_long(rows, model, subject, other, seed)
        return words(ratio.words, ratio, ratio.excludes_one, f" of {of}")

    parts = []
    if {flaxtwin.UNJITTED, flaxtwin.JITTED} <= set(at):
        parts.append(
            f"Flax jits nothing by itself: un-jitted `apply` hands {at[flaxtwin.UNJITTED]['dispatches']}"
            " operations to the device"
            f" for a token and takes {over(flaxtwin.UNJITTED, flaxtwin.JITTED, 'jitted `apply`')}"
        )
    if {flaxtwin.JITTED, flaxtwin.STEP} <= set(at):
        parts.append(f"jitted, the Flax twin takes {over(flaxtwin.JITTED, flaxtwin.STEP, 'step')}")
    if {flaxtwin.NNX_JITTED, flaxtwin.SPLIT} <= set(at):
        more = flaxtwin.dispatch_difference(rows, largest, flaxtwin.NNX_JITTED, flaxtwin.SPLIT, seed)
        unit, by, digits = ("ms", 1e3, 2) if abs(more.value) >= 1e3 else ("us", 1, 0)

        def short(us: float) -> str:
            return f"{us / by:.{digits}f}"

        said = f"{short(more.value)} {unit}{within(more, short)}"
        later = words(said, more, more.excludes_zero, " later than the same module split once")
        share = f", {more.value / at[flaxtwin.NNX_JITTED]['complete_us'].median:.0%} of its token" * more.excludes_zero
        given = [at[way]["output_bytes"] for way in (flaxtwin.NNX_JITTED, flaxtwin.SPLIT)]
        back = (
            f", and its program hands back {given[0] / 1e6:.3g} MB a token, not {given[1] / 1e6:.3g}"
            if all(given)
            else ""
        )
        parts.append(f"nnx.jit returns {later}{share}{back}")
        if smallest != largest and flaxtwin.pairs(rows, smallest, flaxtwin.NNX_JITTED, flaxtwin.SPLIT):
            parts.append(
                "at the smallest model its call takes"
                f" {over(flaxtwin.NNX_JITTED, flaxtwin.SPLIT, 'the split one', smallest)}"
            )
    return "; ".join(parts) + "." if parts else "No two ways of calling have valid bursts at the largest model."
