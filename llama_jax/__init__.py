"""llama-jax: the same language model under every placement of `jax.jit`.

Axes, used in shapes everywhere: B batch, T tokens of this call, S cache slots, L layers, D model width, H query heads,
K key-value heads, h head size, F feed-forward width, V vocabulary.
"""

import importlib

from llama_jax import xla_flags

xla_flags.prepare()

ROOMS = {  # name here: where that module lies
    "chat": "text.chat",
    "kvc": "model.kvc",
    "prompts": "text.prompts",
    "render": "playground.render",
    **{
        name: name
        for name in (
            "activations",
            "bench",
            "checkpoint",
            "experiments",
            "figures",
            "generate",
            "machine",
            "model",
            "paths",
            "pipeline",
            "playground",
            "runtime",
            "serialised",
            "transforms",
        )
    },
}
HOME = {
    name: module
    for module, names in {
        "checkpoint": ("Checkpoint", "load"),
        "config": ("PRESETS", "ModelConfig"),
        "errors": ("UserError",),
        "generate": ("Answer", "Engine", "answer", "bind", "build", "logits", "stream"),
        "placement": ("LADDER", "Placement", "parse"),
        "model.sampling": ("Sampler",),
        "text.tokenizer": ("Tokenizer",),
    }.items()
    for name in names
}
__all__ = sorted((*ROOMS, *HOME))


def __getattr__(name: str):
    """Imported when first asked for: neither `--help` nor a measured process waits for what it does not use."""
    if name in ROOMS:
        return importlib.import_module(f"{__name__}.{ROOMS[name]}")
    if name in HOME:
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOME[name]}"), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
