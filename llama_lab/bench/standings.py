"""Trials of placements and peers summarised: their rates and ratios side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_jax.quantise import FORMS
from llama_lab.bench import quality, summary
from llama_lab.bench.arithmetic import Arithmetic
from llama_lab.bench.record import Trial
from llama_lab.bench.statistics import Ratio
from llama_lab.bench.wording import round_ratio

MAIN = "main"

JAX, TORCH, LLAMACPP, OLLAMA = "jax", "torch", "llama.cpp", "ollama"
IK, OPENVINO = "ik_llama.cpp", "openvino"
SAME_FILE = ("llamacpp", "llamacpp+generate")  # llama.cpp's modes that read the very file


def of_run(trials: Sequence[Trial], run: str = MAIN) -> list[Trial]:
    """The trials of one measurement, or of one of its subjects."""
    return [t for t in trials if t.run == run or t.run.startswith(f"{run} ")]


RATES = dict(decode="tg", prefill="pp", ttft=lambda trial: trial.ttft * 1e3)


def ladder(trials: Sequence[Trial], names: Sequence[str], seed: int = 0, run: str = MAIN) -> list[dict]:
    """One entry per subject, in the order given, of `summary.tally`: {name, decode, prefill (tokens/s), ttft (ms), …},
    and {backend, dtype (as `weights` says it), arithmetic, limit: tokens/s that the bandwidth allows for its bytes};
    None if nothing is known."""
    main = [t for t in of_run(trials, run) if t.phase == "warm"]
    frame = summary.tally(main, dict(name="subject"), RATES, seed=seed, order=[(name,) for name in names])
    entries = frame.to_dict("records")
    for e in entries:
        e |= dict(backend=None, dtype=None, arithmetic=None, limit=None)
        if t := e["first"]:
            arithmetic = quality.arithmetic(t.backend, t.dtype, t.quantisation, e["name"])
            e |= dict(backend=t.backend, dtype=weights(t), arithmetic=arithmetic)
        if any(t.bandwidth_gbps and t.bytes_per_token for t in e["rows"]):
            e["limit"] = summary.limit(main, e["name"])
    return entries


def weights(trial: Trial) -> str:
    """What a subject's weights are kept as: the quantised form of its arithmetic (`gguf+fused`), else its dtype."""
    form = Arithmetic.read(trial.quantisation).form
    return form if form in FORMS else trial.dtype


def best(entries: Sequence[dict], wanted: Callable[[dict], bool] = lambda entry: True) -> dict | None:
    """The entry with the highest median decode rate among those that are wanted; None if none has a valid trial."""
    return max((e for e in entries if e["decode"].n and wanted(e)), key=lambda e: e["decode"].median, default=None)


def of_each_arithmetic(entries: Sequence[dict], baseline: str = "") -> list[dict]:
    """The fastest of each arithmetic on each kind of weights, in the order given, and those without a valid trial: the
    rows of a figure, whose table has all. The run's baseline stands for the fastest where their intervals overlap."""
    leaders = {}
    for e in sorted((e for e in entries if e["decode"].n), key=lambda e: e["decode"].median):
        leaders[e["arithmetic"], e["dtype"]] = e
    for e in (e for e in entries if e["name"] == baseline and e["decode"].n):
        if e["decode"].high >= leaders[e["arithmetic"], e["dtype"]]["decode"].low:
            leaders[e["arithmetic"], e["dtype"]] = e
    kept = [e["name"] for e in leaders.values()]
    return [e for e in entries if not e["decode"].n or e["name"] in kept]


def fastest(entries: Sequence[dict]) -> dict | None:
    """The fastest placement on whatever weights."""
    return best(entries, lambda entry: entry["backend"] == JAX)


def disturbed(trials: Sequence[Trial], baseline: str, seed: int = 0, run: str = MAIN) -> str:
    """A short phrase for a figure where the run's own A/A control says that it was not quiet."""
    return summary.disturbed(summary.table(of_run(trials, run), baseline, [baseline], seed))


def ratio(trials: Sequence[Trial], above: str, below: str, seed: int = 0, run: str = MAIN) -> Ratio:
    """Decode rate of one subject over another's, paired by block, judged against the run's A/A control."""
    return summary.paired_ratio(of_run(trials, run), above, below, seed)


def by_medians(trials: Sequence[Trial], above: str, below: str, seed: int = 0) -> float | None:
    """The quotient of the medians of one run's rates, where it lies outside the interval of the pairs and reads
    otherwise than their mean; None elsewhere, and without an interval."""
    pairs = summary.paired_ratio(trials, above, below, seed)
    rates = [summary.median([t.tg for t in summary.warm(trials, name)]) for name in (above, below)]
    if None in rates or not (rates[0] / rates[1] < pairs.low or rates[0] / rates[1] > pairs.high):
        return None
    return None if round_ratio(rates[0] / rates[1]) == round_ratio(pairs.value) else rates[0] / rates[1]
