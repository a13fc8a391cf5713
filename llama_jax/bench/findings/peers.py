"""How the placements were found to stand beside other implementations: a sentence for each notebook."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import gpudata, standings, ttft_table, wording
from llama_jax.bench.cold import Start
from llama_jax.bench.gpudata import GpuTrial
from llama_jax.bench.wording import with_n


def first_token(trials: Sequence[Start], missing: Sequence[str] = (), seed: int = 0) -> str:
    """At which lengths the best placement's first token is ahead of every peer's, where it is not, and what is undecided.

    missing: peers that were not measured. The placement is the one with the least median at that length.
    """
    ratios = ttft_table.ratios(trials, seed)
    if not ratios:
        return "No placement and no peer have valid first tokens at the same length, so there is nothing to compare."
    at: dict[int, list[dict]] = {}
    for r in ratios:
        at.setdefault(r["tokens"], []).append(r)
    ahead = [n for n, here in at.items() if all(r["ratio"].verdict == "faster" for r in here)]
    behind = [n for n, here in at.items() if any(r["ratio"].verdict == "slower" for r in here)]
    unclear = [n for n in at if n not in ahead + behind]
    peers = ", ".join(dict.fromkeys(r["peer"] for r in ratios))
    kinds = " or ".join(sorted({t.dtype for t in trials if t.backend == standings.JAX}))
    sentence = f"The best {kinds} placement's first token comes before that of every peer measured ({peers})"
    sentence += f" at {tokens(ahead) or 'no length'}"
    if behind:
        quicker = {n: ", ".join(r["peer"] for r in at[n] if r["ratio"].verdict == "slower") for n in behind}
        sentence += "; later than that of " + " and ".join(f"{names} at {n}" for n, names in quicker.items())
    if unclear:
        sentence += f"; these trials do not decide it at {tokens(unclear)}"
    for n in [n for n in (10, 400) if n in at] or sorted({min(at), max(at)}):
        nearest = min(at[n], key=lambda r: r["ratio"].value)
        sentence += f"; at {n} the quickest peer, {nearest['peer']}, takes {with_n(nearest['ratio'])} as long as {nearest['best']}"
    return sentence + (f"; not measured: {ttft_table.shortened(missing)}." if missing else ".")


def tokens(counts: Sequence[int]) -> str:
    """`10, 50 and 100 tokens`; "" for none."""
    words = [str(n) for n in counts]
    return f"{' and '.join(filter(None, [', '.join(words[:-1]), words[-1]]))} tokens" if words else ""


def gpu(rows: Sequence[GpuTrial], seed: int = 0) -> str:
    """On each model: the fastest placement, its share of the memory's limit, what the ladder gained, and how far PyTorch's best is."""
    if not rows:
        return gpudata.NOT_RECORDED
    parts = [one_on_gpu(gpudata.rates(rows, model, seed), wording.short_model(model)) for model in gpudata.models(rows)]
    where = rows[0].device if gpudata.is_gpu(rows) else f"{rows[0].device}, which is no GPU, in a rehearsal on tiny shapes"
    return f"On {where}, {'; '.join(filter(None, parts))}." if any(parts) else f"On {where} no placement has a valid trial."


def one_on_gpu(rates: Sequence[dict], model: str) -> str:
    """The part about one model; "" where no placement has a rate. rates: `gpudata.rates`, fastest first."""
    ours = [r for r in rates if not r["subject"].startswith("torch")]
    theirs = [r for r in rates if r["subject"].startswith("torch")]
    if not ours:
        return ""
    best, base = ours[0], next((r for r in ours if r["subject"] == gpudata.BASELINE), None)

    def words(other: dict) -> str:
        ratio = gpudata.between(best, other)
        return f"{ratio.words} of {other['subject']}" + ("" if ratio.excludes_one else ", too close for these data")

    rate = best["rate"].median
    said = f"{model}: {best['subject']} decodes {rate:.{0 if rate >= 10 else 1}f} tokens/s, {best['mbu']:.0%} of the memory-bandwidth limit"
    slowest = next((r for r in ours if r["subject"] == "eager"), None)
    against = [r for r in (base, slowest) if r and r is not best]
    gains = [words(r) for r in against] + [f"{words(theirs[0])}, PyTorch's fastest" for _ in theirs[:1]]
    return said + (f" and {', '.join(gains)}" if gains else "")
