"""Seeded random weights at real shapes: right for speed, never for text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.checkpoint.source import Source, Tensor
from llama_jax.checkpoint.tensors import names, shapes
from llama_jax.config import PRESETS, ModelConfig
from llama_jax.model import Model
from llama_jax.plumbing.errors import UserError, near

WHOLE = re.compile(r"[0-9]{1,18}")
SCALE = 0.02  # standard deviation, as transformers initialises Llama


def open_preset(name: str) -> Source:
    """`random:PRESET`, `random:PRESET:SEED`, or with changed fields `random:PRESET,num_hidden_layers=4:SEED`."""
    _, shape, *rest = name.split(":")
    preset, *changes = shape.split(",")
    if preset not in PRESETS:
        raise UserError(f"No such preset: {preset[:60]!r}.{near(preset[:60], PRESETS)}")
    if len(rest) > 1 or (rest and not WHOLE.fullmatch(rest[0])):
        raise UserError(f"{name[:120]!r}: write random:PRESET or random:PRESET:SEED, the seed a whole number.")
    return open_random(changed(PRESETS[preset], changes), int(rest[0]) if rest else 0, name)


def changed(config: ModelConfig, changes: Sequence[str]) -> ModelConfig:
    """The configuration with whole-number fields replaced, each change written FIELD=NUMBER. Raises UserError."""
    if not changes:
        return config
    from llama_jax.checkpoint import features  # here: a machine that only measures may lack pydantic
    from llama_jax.plumbing import boundary

    sizes = [f.name for f in fields(ModelConfig) if f.type == "int"]
    sizes_given = {}
    for change in changes:
        field, _, value = change.partition("=")
        if field not in sizes:
            raise UserError(f"{change[:60]!r}: no such size of a model.{near(field[:60], sizes)}")
        if not WHOLE.fullmatch(value) or not int(value):
            raise UserError(f"{change[:60]!r}: write {field}=NUMBER, a whole number above 0.")
        sizes_given[field] = int(value)
    config = replace(config, **sizes_given)
    boundary.read(features.shape(config.model_type), config.shape(), f"random:{','.join(changes)}"[:120])
    return config


def open_random(config: ModelConfig, seed: int, name: str = "random:") -> Source:
    """Normal weights and biases of standard deviation 0.02, norms of one; each tensor from its own stream of the
    seed."""
    tensors = {
        key: Tensor(shape, partial(draw, key, shape, seed, i)) for i, (key, shape) in enumerate(shapes(config).items())
    }
    digest = hashlib.sha256(f"normal {SCALE} {seed} {config}".encode()).hexdigest()
    return Source(name, config, tensors, lambda: None, lambda: digest)


def draw(name: str, shape: tuple[int, ...], seed: int, index: int) -> np.ndarray:
    if len(shape) == 1 and name.endswith("weight"):  # a norm's; every other vector is a bias
        return np.ones(shape, np.float32)
    values = np.random.default_rng([seed, index]).standard_normal(shape, np.float32)
    return np.multiply(values, np.float32(SCALE), out=values)


def on_device(config: ModelConfig, seed: int, dtype=jnp.bfloat16) -> Model:
    """Weights as `open_random` describes them, drawn by JAX where they will be used: nothing as large as the model
    passes the host.

    Other numbers than the host's generator makes of the same seed.
    """
    leaves, tree = jax.tree.flatten(names(config))
    sizes, keys = shapes(config), jax.random.split(jax.random.key(seed), len(leaves))

    def drawn(rows, key) -> jax.Array:
        shapes_of_rows = [sizes[name][::-1] if rows.transposed else sizes[name] for name in rows.names]
        shape = (sum(height for height, *_ in shapes_of_rows), *shapes_of_rows[0][1:])
        if len(shape) == 1 and rows.names[0].endswith("weight"):  # a norm's
            return jnp.ones(shape, dtype)
        return jax.random.normal(key, shape, dtype) * jnp.asarray(SCALE, dtype)

    return jax.tree.unflatten(tree, [drawn(rows, key) for rows, key in zip(leaves, keys, strict=True)])


def hash_on_device(config: ModelConfig, seed: int, dtype: str) -> str:
    """What stands for the SHA-256 of such weights: that of the recipe they are drawn by."""
    return hashlib.sha256(f"jax.random normal {SCALE} {seed} {dtype} {config}".encode()).hexdigest()
