"""How placements and PyTorch stand on a GPU: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.wording import short_model
from llama_lab.experiments.gpu import data
from llama_lab.experiments.gpu.data import GpuTrial

EXPECTED = (
    "by a budget of microseconds, `step` should gain more than on a CPU: without `jit` the device waits for Python"
)


def compared(rows: Sequence[GpuTrial], seed: int = 0) -> dict[str, list[Comparison]]:
    """Model → its fastest subject beside each other one that has a time."""
    rates = {model: lines for model in data.models(rows) if (lines := data.rates(rows, model, seed))}
    return {
        model: [
            Comparison(
                data.between(best, other), best["subject"], other["subject"], f"{short_model(model)} decode rate"
            )
            for other in others
        ]
        for model, (best, *others) in rates.items()
    }


def claim(rows: Sequence[GpuTrial], seed: int = 0) -> Claim:
    """How many times as fast as the baseline the fastest subject decodes the last model."""
    if not rows:
        return Claim(data.NOT_RECORDED)
    place = "the GPU" if data.is_gpu(rows) else "the rehearsal's device"
    last = (list(compared(rows, seed).values()) or [[]])[-1]
    if last and last[0].subject == data.BASELINE:
        return Claim(f"On {place} no median decode rate is above that of {data.BASELINE}.")
    gain = next((c for c in last if c.baseline == data.BASELINE), None)
    if gain is None:
        return Claim(f"On {place} nothing has a time that could be compared with {data.BASELINE}'s.")
    sentence = "On {place} {best} decodes {gain} times as fast as {base}."
    return stated(sentence, place=place, best=gain.subject, gain=gain, base=gain.baseline) or gain.generic


def gpu(rows: Sequence[GpuTrial], seed: int = 0) -> str:
    """The claim, and on each model the fastest subject beside the others; of no rows what is expected."""
    if not rows:
        return claim(rows).text(EXPECTED)
    comparisons = [c.words for of_model in compared(rows, seed).values() for c in of_model]
    return claim(rows, seed).text(f"measured on {data.measured_on(rows)}", *comparisons)
