"""How the placements were found to stand beside other implementations: a sentence for each notebook."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llama_jax.bench import gpudata, hostloop, quality, standings, ttft_table
from llama_jax.bench.findings.jit import with_n
from llama_jax.bench.gpudata import GpuTrial
from llama_jax.bench.record import Trial
from llama_jax.bench.starts import Start
from llama_jax.bench.statistics import Ratio


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
    parts = [one_on_gpu(gpudata.rates(rows, model, seed), hostloop.short(model)) for model in gpudata.models(rows)]
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


def versus(trials: Sequence[Trial], entries: Sequence[dict], distances: Sequence[dict], missing: Sequence[dict], seed: int = 0) -> str:
    """Where the fastest placement, and the fastest in float32, stand against llama.cpp, Ollama and PyTorch, and what fewer bits cost.

    entries: `standings.ladder`. distances: `quality.table`. missing: peers that did not run, each with a reason.
    """
    fastest, exact = standings.fastest(entries), standings.ours(entries)
    if fastest is None:
        return "No placement has a valid trial, so there is nothing to compare."
    native = {
        "llama.cpp's strongest mode": lambda e: e["backend"] == standings.LLAMACPP,
        "Ollama": lambda e: e["backend"] == standings.OLLAMA,
    }
    torch = {
        "transformers' `generate`": lambda e: e["name"].startswith("transformers"),
        "torch's best mode": lambda e: e["backend"] == standings.TORCH and not e["name"].startswith("transformers"),
    }
    absent = [gap["name"] for gap in missing]
    unmet = standings.OLLAMA in absent and standings.best(entries, native["llama.cpp's strongest mode"])
    lead = "Ollama was not measured here, llama.cpp, which it runs, was: the" if unmet else "The"
    if fastest is exact:
        parts = [f"{lead} fastest float32 placement, {against(trials, entries, exact, native | torch, seed)}"]
    else:
        parts = [f"{lead} fastest placement, {against(trials, entries, fastest, native, seed)}"]
        parts += [f"in float32, {against(trials, entries, exact, native | torch, seed)}"] if exact else []
    known = {e["subject"]: e for e in distances if e["valid"] and e["kl"] is not None}
    computed = {fastest["arithmetic"]: f"{fastest['name']}'s"} if fastest is not exact else {}
    for arithmetic, whose in (computed | {"llamacpp": "llama.cpp's"}).items():
        if found := known.get(arithmetic):
            parts.append(f"{whose} distribution is {found['kl']:.2g} nats{within(found, 2, 'kl', 'g')} a token from the float32 model's"
                         f" and its best token the same at {found['top1']:.1%} of {found['tokens']:,} tokens")  # fmt: skip
    if others := [name for name in absent if not (unmet and name == standings.OLLAMA)]:
        parts.append(f"{', '.join(others)} {'was' if len(others) == 1 else 'were'} not measured here")
    wrong = [e["name"] for e in entries if not e["decode"].n and any("wrong: " in reason for reason in e["reasons"])]
    parts += [f"{', '.join(wrong)} made other tokens and has no time"] if wrong else []
    return "; ".join(parts) + "."


def against(trials: Sequence[Trial], entries: Sequence[dict], mine: dict, groups: dict, seed: int) -> str:
    """`loop decodes 35 tokens/s [..]: 0.30x [..] of …, 2.5x [..] of …`: one entry's rate over the best of each group that has one.

    groups: words → whether an entry belongs to them.
    """
    kind = "" if mine["arithmetic"] == quality.REFERENCE else f" on {mine['dtype']} weights"
    best = {label: standings.best(entries, wanted) for label, wanted in groups.items()}
    ratios = [standing(standings.ratio(trials, mine["name"], e["name"], seed), label, e) for label, e in best.items() if e]
    said = f"{mine['name']}{kind}, decodes {mine['decode'].median:.1f} tokens/s{within(mine['decode'], 1)}"
    return said + ": " * bool(ratios) + ", ".join(ratios)


def standing(found: Ratio, label: str, other: dict) -> str:
    """One ratio in words; one that these trials do not decide is said to be so."""
    kind = "" if other["dtype"] == "float32" else f" on {other['dtype']} weights"
    words = f"{found.words} of {label} ({other['name']}{kind})"
    undecided = found.verdict in ("inconclusive", "unstable")
    return words + (f", which n = {found.n} {'blocks do' if found.n > 1 else 'block does'} not decide" if undecided else "")


def within(found, digits: int, name: str = "", form: str = "f") -> str:
    """` [low, high]` of a summary, a ratio or an entry; "" where there is no interval."""
    low, high = (found[f"{name}_{end}"] if name else getattr(found, end) for end in ("low", "high"))
    return f" [{low:.{digits}{form}}, {high:.{digits}{form}}]" if np.isfinite(low) else ""
