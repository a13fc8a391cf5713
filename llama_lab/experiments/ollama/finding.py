"""How the placements were found to stand beside llama.cpp, Ollama and PyTorch: the notebook's sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_lab.bench import standings
from llama_lab.bench.claim import Claim, Comparison, fastest_beside
from llama_lab.bench.record import Trial
from llama_lab.bench.wording import weights
from llama_lab.experiments.ollama import table

NATIVE = {standings.OLLAMA: "Ollama", standings.LLAMACPP: "llama.cpp, which Ollama runs"}


def transformers(entry: dict) -> bool:
    return entry["name"].startswith("transformers")


RIVALS: dict[str, Callable[[dict], bool]] = {  # words → the entries among which the best is the rival
    "llama.cpp's strongest mode": lambda e: e["backend"] == standings.LLAMACPP,
    "ik_llama.cpp": lambda e: e["backend"] == standings.IK,
    "Ollama": lambda e: e["backend"] == standings.OLLAMA,
    "transformers' `generate`": transformers,
    "torch's best mode": lambda e: e["backend"] == standings.TORCH and not transformers(e),
}


def claim(trials: Sequence[Trial], entries: Sequence[dict], seed: int = 0) -> Claim:
    """The fastest placement beside Ollama, or beside llama.cpp where Ollama was not measured. entries:
    `standings.ladder`."""
    mine = standings.fastest(entries)
    theirs = {backend: standings.best(entries, lambda e, b=backend: e["backend"] == b) for backend in NATIVE}
    backend = next((b for b in NATIVE if theirs[b]), None)
    if mine is None or backend is None:
        return Claim(f"Neither Ollama nor llama.cpp was measured beside {mine['name'] if mine else 'a placement'}.")
    ratio = standings.ratio(trials, mine["name"], theirs[backend]["name"], seed)
    return fastest_beside(Comparison(ratio, mine["name"], NATIVE[backend]))


def versus(trials: Sequence[Trial], entries: Sequence[dict], seed: int = 0) -> str:
    """The claim; the fastest placement, and the fastest in float32, beside the native engines and PyTorch."""
    mine = {e["name"]: e for e in (standings.fastest(entries), table.ours(entries)) if e}
    best = {words: standings.best(entries, wanted) for words, wanted in RIVALS.items()}
    return claim(trials, entries, seed).text(
        *(
            Comparison(
                standings.ratio(trials, name, other["name"], seed),
                f"{name} on {weights(e['dtype'])}",
                f"{words} ({other['name']} on {weights(other['dtype'])})",
            ).words
            for name, e in mine.items()
            for words, other in best.items()
            if other
        )
    )
