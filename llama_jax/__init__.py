# ruff: noqa: F401 (what tools follow)
"""llama-jax: the same language model under every placement of `jax.jit`.

Axes, used in shapes everywhere: B batch, T tokens of this call, S cache slots, L layers, D model width, H query heads,
K key-value heads, h head size, F feed-forward width, V vocabulary.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from llama_jax.plumbing import xla_flags

xla_flags.prepare()

if TYPE_CHECKING:  # what is imported when it is first asked for
    from llama_jax import (
        attention,
        chat,
        checkpoint,
        config,
        embeddings,
        ffn,
        generate,
        grammars,
        head,
        kernels,
        kvc,
        layer,
        linear,
        model,
        norm,
        placement,
        prompts,
        quantise,
        render,
        rope,
        sampling,
        scoring,
        text,
        tokenizer,
        tools,
        transforms,
    )
    from llama_jax.checkpoint import Checkpoint, load
    from llama_jax.config import PRESETS, ModelConfig
    from llama_jax.generate import Answer, Engine, answer, bind, build, logits, stream
    from llama_jax.placement import LADDER, Placement, parse
    from llama_jax.plumbing.errors import UserError
    from llama_jax.sampling import Sampler
    from llama_jax.scoring import Likelihood, score
    from llama_jax.text import generate_text, grammar
    from llama_jax.tokenizer import Tokenizer

MODULES = {module.name for module in pkgutil.iter_modules(__path__)} - {"__main__"}
OFFERED = {  # module: what the package itself offers of it
    "checkpoint": ("Checkpoint", "load"),
    "config": ("PRESETS", "ModelConfig"),
    "generate": ("Answer", "Engine", "answer", "bind", "build", "logits", "stream"),
    "placement": ("LADDER", "Placement", "parse"),
    "plumbing.errors": ("UserError",),
    "sampling": ("Sampler",),
    "scoring": ("Likelihood", "score"),
    "text": ("generate_text", "grammar"),
    "tokenizer": ("Tokenizer",),
}
HOME = {name: module for module, names in OFFERED.items() for name in names}
__all__ = sorted((*MODULES, *HOME))


def __getattr__(name: str):
    """Imported when first asked for: neither `--help` nor a measured process waits for what it does not use."""
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in HOME:
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{HOME[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
