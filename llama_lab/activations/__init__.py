"""Activations of chosen sites for a whole corpus: compiled once, resumable, and with any number of processes.

    spec = ActivationSpec(sites=(("resid_post", (3, 7)), ("mlp_out", "all")), dtype="bfloat16")
    extractor = Extractor(ll.load(), spec, batch=(8, 256))         # compiles, once
    report = extract(extractor, "texts.jsonl", "activations")      # resumes what is there
    store = ActivationStore.open("activations")

An engine that runs a corpus on many machines needs `units`, `pending`, `extract(…, units=…)` and `finish`.

spec (what to extract) and sources (from which texts) → plan (their units) → batches (fixed shapes) → program (the
model, cut and tapped) → extraction (the pipeline) → store (shards and commits on disk). generation: the same for tokens
that the model makes.
"""

import importlib

NAMES = {  # name here: the module it comes from
    "ActivationSpec": "spec",
    "ActivationStore": "reading",
    "Extractor": "program",
    "Generator": "generation",
    "RunReport": "run",
    "answer": "generation",
    "extract": "extraction",
    "finish": "plan",
    "pending": "plan",
    "units": "plan",
    "verify": "verification",
}

__all__ = list(NAMES)


def __getattr__(name: str):
    if name in NAMES:
        return getattr(importlib.import_module(f"{__name__}.{NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
