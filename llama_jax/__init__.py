"""llama-jax: the same language model under every placement of `jax.jit`.

Axes, used in shapes everywhere: B batch, T tokens of this call, S cache slots, L layers, D model width, H query heads,
K key-value heads, h head size, F feed-forward width, V vocabulary.
"""

import importlib

from llama_jax import bench, chat, checkpoint, generate, kvc, paths, pipeline, prompts, render, serialised, transforms
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


def __getattr__(name: str):
    """`ll.figures` when it is first asked for: matplotlib takes longer to import than a measured process should wait."""
    if name == "figures":
        return importlib.import_module("llama_jax.figures")
    raise AttributeError(f"module 'llama_jax' has no attribute {name!r}")
