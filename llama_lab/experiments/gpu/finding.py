"""How placements and PyTorch stand on a GPU: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench.claim import Claim, Comparison, stated
from llama_lab.bench.wording import short_model
from llama_lab.experiments.gpu import data
from llama_lab.experiments.gpu.data import GpuTrial


def compared(rows: Sequence[GpuTrial], seed: int = 0) -> dict[str, list[Comparison]]:
    """Model → its fastest subject beside each other one that has a time."""
    rates = {model: found for model in data.models(rows) if (found := data.rates(rows, model, seed))}
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
    where = "the GPU" if data.is_gpu(rows) else "the rehearsal's processor, which is no GPU,"
    last = (list(compared(rows, seed).values()) or [[]])[-1]
    if last and last[0].subject == data.BASELINE:
        return Claim(f"On {where} no median decode rate is above that of {data.BASELINE}.")
    gains = [c for c in last if c.baseline == data.BASELINE]
    if not gains:
        return Claim(f"On {where} nothing has a time that could be compared with {data.BASELINE}'s.")
    (gain,) = gains
    said = "On {where} {best} decodes {gain} times as fast as {base}."
    return stated(said, where=where, best=gain.subject, gain=gain, base=gain.baseline) or gain.generic


def gpu(rows: Sequence[GpuTrial], seed: int = 0) -> str:
    """The claim, and on each model the fastest subject beside the others."""
    comparisons = [c.words for of_model in compared(rows, seed).values() for c in of_model]
    if not rows:
        return claim(rows).text()
    rehearsal = "" if data.is_gpu(rows) else ", which is no GPU, in a rehearsal on tiny shapes"
    return claim(rows, seed).text(f"measured on {rows[0].device}{rehearsal}", *comparisons)
