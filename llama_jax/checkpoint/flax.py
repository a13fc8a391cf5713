"""Flax and back: a nested dict of parameters under Hugging Face's module names, with the leaf names of Flax's own
layers.

`kernel` is [in, out] as in `nn.Dense`, for GPT-2 too; tables have `embedding`, norms `scale`, and biases `bias`:
params["model"]["layers"]["0"]["self_attn"]["q_proj"]["kernel"], params["transformer"]["wte"]["embedding"].
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from llama_jax.checkpoint.source import Source, Tensor
from llama_jax.checkpoint.tensors import assemble, named, names
from llama_jax.config import ModelConfig
from llama_jax.model import Model
from llama_jax.plumbing.errors import UserError

TABLES = ("embed_tokens", "wte", "wpe")


def to_flax(config: ModelConfig, params: Model) -> dict:
    """The model's weights as the nested dict of a Flax module's `params`. A tied head is not repeated."""
    turned, tree = stored_transposed(config), {}
    for name, values in named(config, params).items():
        *path, leaf = flax_path(name)
        inner = tree
        for part in path:
            inner = inner.setdefault(part, {})
        kernel_stays = name in turned  # Conv1D is [in, out] already
        inner[leaf] = jax.numpy.asarray(values.T if leaf == "kernel" and not kernel_stays else values)
    return tree


def from_flax(config: ModelConfig, tree: Mapping, dtype: str = "float32") -> Model:
    """A Model from such a nested dict of plain arrays, or of boxes with a `.value`.

    Raises UserError for a missing, misshapen or extra parameter.
    """
    given, turned = flatten(tree.get("params", tree)), stored_transposed(config)
    tensors = {}
    for name in (name for rows in jax.tree.leaves(names(config)) for name in rows.names):
        path = flax_path(name)
        if path not in given:
            raise UserError(
                f"The Flax tree has no {'/'.join(path)}; it is not a {config.model_type} model of this configuration."
            )
        values = given.pop(path)
        if path[-1] == "kernel" and name not in turned:
            values = values.T
        tensors[name] = Tensor(values.shape, lambda values=values: values)
    if given:
        raise UserError(
            f"The Flax tree has {'/'.join(next(iter(given)))}, which a {config.model_type} model does not have."
        )
    return assemble(Source("the Flax tree", config, tensors, lambda: None, lambda: ""), dtype)


def flax_path(name: str) -> tuple[str, ...]:
    """`model.layers.3.mlp.up_proj.weight` → ("model", "layers", "3", "mlp", "up_proj", "kernel")."""
    *path, kind = name.split(".")
    if kind == "weight":
        is_norm = "norm" in path[-1] or path[-1].startswith("ln_")
        kind = "embedding" if path[-1] in TABLES else "scale" if is_norm else "kernel"
    return (*path, kind)


def stored_transposed(config: ModelConfig) -> set[str]:
    """Names of the tensors that Hugging Face stores [in, out]."""
    return {name for rows in jax.tree.leaves(names(config)) if rows.transposed for name in rows.names}


def flatten(tree: Mapping, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], np.ndarray]:
    """Path → array."""
    leaves = {}
    for key, value in tree.items():
        path = (*before, str(key))
        inner = isinstance(value, Mapping)
        leaves |= flatten(value, path) if inner else {path: np.asarray(getattr(value, "value", value))}
    return leaves
