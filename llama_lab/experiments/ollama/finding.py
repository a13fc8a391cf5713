"""How the placements were found to stand beside llama.cpp, Ollama and PyTorch: the notebook's sentence."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.bench import quality, standings
from llama_lab.bench.numbers import within
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import fastest_beside, standing, weights
from llama_lab.experiments.ollama import table
from llama_lab.experiments.ollama.kept import KEPT, OLLAMA

IK = "ik_llama.cpp"
NATIVE = {standings.OLLAMA: "Ollama", standings.LLAMACPP: "llama.cpp, which Ollama runs"}


def versus(
    trials: Sequence[Trial],
    entries: Sequence[dict],
    distances: Sequence[dict],
    missing: Sequence[dict],
    seed: int = 0,
    served: Sequence[str] = (),
) -> str:
    """Where the fastest placement, and the fastest in float32, stand against the native engines and PyTorch, what
    fewer bits cost, and how long a conversation takes with servers that keep it.

    entries: `standings.ladder`. distances: `quality.table`. missing: peers that did not run, each with a reason.
    """
    fastest, exact = standings.fastest(entries), table.ours(entries)
    if fastest is None:
        return "No placement has a valid trial, so there is nothing to compare."
    native = {
        "llama.cpp's strongest mode": lambda e: e["backend"] == standings.LLAMACPP,
        IK: lambda e: e["backend"] == IK,
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
    lead, rest = claim(trials, entries, seed), kept(trials, served, seed)
    return " ".join(filter(None, (lead, "; ".join(parts) + ".", rest)))


def claim(trials: Sequence[Trial], entries: Sequence[dict], seed: int = 0) -> str:
    """The fastest placement beside Ollama, or beside llama.cpp where Ollama was not measured."""
    mine = standings.fastest(entries)
    theirs = {backend: standings.best(entries, lambda e, b=backend: e["backend"] == b) for backend in NATIVE}
    backend = next((b for b in NATIVE if theirs[b]), None)
    if mine is None or backend is None:
        return (
            f"Neither Ollama nor llama.cpp was measured; {mine['name']} is fastest."
            if mine
            else "Nothing was measured."
        )
    ratio = standings.ratio(trials, mine["name"], theirs[backend]["name"], seed)
    return fastest_beside(mine["name"], ratio, NATIVE[backend])


def kept(trials: Sequence[Trial], served: Sequence[str], seed: int = 0) -> str:
    """How long a conversation takes with each server that keeps what was said, ours first."""
    found = table.talks(trials, served, served[0], seed, KEPT) if served else {}
    words = [
        f"{f['total'].median:.2f} s{within(f['total'], '.2f')} from "
        + ("Ollama" if name == OLLAMA else f"`llama-jax serve` under {name}")
        for name, f in found.items()
        if f["total"].n
    ]
    if not words:
        return ""
    turns = len(found[served[0]]["turns"]) if served[0] in found else max(len(f["turns"]) for f in found.values())
    return f"With the history kept between its {turns} turns, a conversation takes {', '.join(words)}."


def against(trials: Sequence[Trial], entries: Sequence[dict], mine: dict, groups: dict, seed: int) -> str:
    """`loop decodes 35 tokens/s [..]: 0.30x [..] of …, 2.5x [..] of …`: one entry's rate over the best of each group
    that has one.

    groups: words → whether an entry belongs to them.
    """
    kind = "" if mine["arithmetic"] == quality.REFERENCE else f" on {weights(mine['dtype'])}"
    best = {label: standings.best(entries, wanted) for label, wanted in groups.items()}
    ratios = [
        standing(standings.ratio(trials, mine["name"], e["name"], seed), label, e) for label, e in best.items() if e
    ]
    said = f"{mine['name']}{kind}, decodes {mine['decode'].median:.1f} tokens/s{within(mine['decode'], '.1f')}"
    return said + ": " * bool(ratios) + ", ".join(ratios)
