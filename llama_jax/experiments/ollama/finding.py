"""How the placements were found to stand beside llama.cpp, Ollama and PyTorch: the notebook's sentence."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import quality, standings
from llama_jax.bench.record import Trial
from llama_jax.bench.wording import standing, within
from llama_jax.experiments.ollama import table


def versus(
    trials: Sequence[Trial], entries: Sequence[dict], distances: Sequence[dict], missing: Sequence[dict], seed: int = 0
) -> str:
    """Where the fastest placement, and the fastest in float32, stand against llama.cpp, Ollama and PyTorch, and what
    fewer bits cost.

    entries: `standings.ladder`. distances: `quality.table`. missing: peers that did not run, each with a reason.
    """
    fastest, exact = standings.fastest(entries), table.ours(entries)
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
        parts += [f"the fastest in float32, {against(trials, entries, exact, native | torch, seed)}"] if exact else []
    known = {e["subject"]: e for e in distances if e["valid"] and e["kl"] is not None}
    computed = {fastest["arithmetic"]: f"{fastest['name']}'s"} if fastest is not exact else {}
    for arithmetic, whose in (computed | {"llamacpp": "llama.cpp's"}).items():
        if found := known.get(arithmetic):
            parts.append(
                f"{whose} distribution is {found['kl']:.2g} nats{within(found, '.2g', 'kl_')} a token from the float32"
                " model's"
                f" and its best token the same at {found['top1']:.1%} of {found['tokens']:,} tokens"
            )
    if others := [name for name in absent if not (unmet and name == standings.OLLAMA)]:
        parts.append(f"{', '.join(others)} {'was' if len(others) == 1 else 'were'} not measured here")
    wrong = [e["name"] for e in entries if not e["decode"].n and e["wrong"]]
    parts += [f"{', '.join(wrong)} made other tokens and has no time"] if wrong else []
    return "; ".join(parts) + "."


def against(trials: Sequence[Trial], entries: Sequence[dict], mine: dict, groups: dict, seed: int) -> str:
    """`loop decodes 35 tokens/s [..]: 0.30x [..] of …, 2.5x [..] of …`: one entry's rate over the best of each group
    that has one.

    groups: words → whether an entry belongs to them.
    """
    kind = "" if mine["arithmetic"] == quality.REFERENCE else f" on {mine['dtype']} weights"
    best = {label: standings.best(entries, wanted) for label, wanted in groups.items()}
    ratios = [
        standing(standings.ratio(trials, mine["name"], e["name"], seed), label, e) for label, e in best.items() if e
    ]
    said = f"{mine['name']}{kind}, decodes {mine['decode'].median:.1f} tokens/s{within(mine['decode'], '.1f')}"
    return said + ": " * bool(ratios) + ", ".join(ratios)
