"""How placements and PyTorch stand on a GPU: the sentence of the notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import wording
from llama_lab.bench.numbers import round_ratio
from llama_lab.experiments.gpu import data
from llama_lab.experiments.gpu.data import GpuTrial


def gpu(rows: Sequence[GpuTrial], seed: int = 0) -> str:
    """On each model: the fastest placement, its share of the memory's limit, what the ladder gained, and how far
    PyTorch's best is."""
    if not rows:
        return data.NOT_RECORDED
    parts = [one_on_gpu(data.rates(rows, model, seed), wording.short_model(model)) for model in data.models(rows)]
    where = rows[0].device if data.is_gpu(rows) else f"{rows[0].device}, which is no GPU, in a rehearsal on tiny shapes"
    if not any(parts):
        return f"On {where} no placement has a valid trial."
    return f"{claim(rows, seed)} On {where}, {'; '.join(filter(None, parts))}."


def claim(rows: Sequence[GpuTrial], seed: int = 0) -> str:
    """Who decodes the last model fastest, and how many times as fast as the baseline."""
    model = [m for m in data.models(rows) if one_on_gpu(data.rates(rows, m, seed), m)][-1]
    rates = data.rates(rows, model, seed)
    best, base = rates[0], next((r for r in rates if r["subject"] == data.BASELINE), None)
    where = "the GPU" if data.is_gpu(rows) else "the rehearsal's processor"
    if base is None or base is best:
        return f"On {where} {best['subject']} decodes fastest."
    ratio = data.between(best, base)
    if not ratio.excludes_one:
        return f"Whether anything decodes faster than {base['subject']} on {where}, these trials do not decide."
    return f"On {where} {best['subject']} decodes {round_ratio(ratio.value)} times as fast as {base['subject']}."


def one_on_gpu(rates: Sequence[dict], model: str) -> str:
    """The part about one model; "" where no placement has a rate. rates: `data.rates`, fastest first."""
    ours = [r for r in rates if r["backend"] == "jax"]
    theirs = [r for r in rates if r["backend"] == "torch"]
    if not ours:
        return ""
    best, base = ours[0], next((r for r in ours if r["subject"] == data.BASELINE), None)

    def words(other: dict) -> str:
        ratio = data.between(best, other)
        return f"{ratio.words} of {other['subject']}" + ("" if ratio.excludes_one else ", too close for these data")

    rate = best["rate"].median
    said = (
        f"{model}: {best['subject']} decodes {rate:.{0 if rate >= 10 else 1}f} tokens/s, {best['mbu']:.0%} of"
        " the memory-bandwidth limit"
    )
    slowest = next((r for r in ours if r["subject"] == "eager"), None)
    against = [r for r in (base, slowest) if r and r is not best]
    gains = [words(r) for r in against] + [f"{words(theirs[0])}, PyTorch's fastest" for _ in theirs[:1]]
    return said + (f" and {', '.join(gains)}" if gains else "")
