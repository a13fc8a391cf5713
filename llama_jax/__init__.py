"""llama-jax: the same language model under every placement of `jax.jit`.

Axes, used in shapes everywhere: B batch, T tokens of this call, S cache slots, L layers, D model width, H query heads,
K key-value heads, h head size, F feed-forward width, V vocabulary.
"""

import importlib

from llama_jax import bench, checkpoint, generate, kvc, paths, serialised, transforms
from llama_jax.checkpoint import Checkpoint, load
from llama_jax.config import PRESETS, ModelConfig
from llama_jax.errors import UserError
from llama_jax.generate import Answer, Engine, answer, bind, build, logits, stream
from llama_jax.placement import LADDER, Placement, parse
from llama_jax.sampling import Sampler
from llama_jax.tokenizer import Tokenizer

__all__ = [
    "LADDER",
    "PRESETS",
    "Answer",
    "Checkpoint",
    "Engine",
    "ModelConfig",
    "Placement",
    "Sampler",
    "Tokenizer",
    "UserError",
    "answer",
    "bench",
    "bind",
    "build",
    "chat",
    "checkpoint",
    "figures",
    "generate",
    "kvc",
    "load",
    "logits",
    "parse",
    "paths",
    "pipeline",
    "prompts",
    "render",
    "serialised",
    "stream",
    "transforms",
]


LATE = ("chat", "figures", "pipeline", "prompts", "render")  # imported when first asked for: a measured process need not wait for them


def __getattr__(name: str):
    if name in LATE:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
