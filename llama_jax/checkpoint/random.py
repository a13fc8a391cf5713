"""Seeded random weights at real shapes: right for speed, never for text."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from llama_jax.checkpoint.tensors import Source, Tensor, shapes
from llama_jax.config import PRESETS, ModelConfig
from llama_jax.errors import UserError, near

SCALE = 0.02  # standard deviation, as transformers initialises Llama


def open_preset(name: str) -> Source:
    """`random:PRESET` or `random:PRESET:SEED`."""
    _, preset, *rest = name.split(":")
    if preset not in PRESETS:
        raise UserError(f"No such preset: {preset!r}.{near(preset, PRESETS)}")
    if len(rest) > 1 or (rest and not rest[0].isdigit()):
        raise UserError(f"{name!r}: write random:PRESET or random:PRESET:SEED, the seed a whole number.")
    return open_random(PRESETS[preset], int(rest[0]) if rest else 0, name)


def open_random(config: ModelConfig, seed: int, name: str = "random:") -> Source:
    """Normal weights of standard deviation 0.02, norms of one; each tensor from its own stream of the seed."""
    tensors = {key: Tensor(shape, partial(draw, shape, seed, i)) for i, (key, shape) in enumerate(shapes(config).items())}
    digest = hashlib.sha256(f"normal {SCALE} {seed} {config}".encode()).hexdigest()
    return Source(name, config, tensors, lambda: None, lambda: digest)


def draw(shape: tuple[int, ...], seed: int, index: int) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    values = np.random.default_rng([seed, index]).standard_normal(shape, np.float32)
    return np.multiply(values, np.float32(SCALE), out=values)
