"""PyTorch and back: a `state_dict` with Hugging Face's names in, the model's pytree out, and the other way, bit for
bit."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from llama_jax.checkpoint import huggingface
from llama_jax.checkpoint.source import HEAD, TABLES, Source, Tensor, with_head
from llama_jax.checkpoint.tensors import assemble, named
from llama_jax.config import ModelConfig
from llama_jax.model import Model
from llama_jax.plumbing.errors import UserError


def from_torch(source, config: ModelConfig | None = None, dtype: str = "float32") -> tuple[ModelConfig, Model]:
    """(configuration, weights) of a transformers model (`GPT2LMHeadModel`, `LlamaForCausalLM`, `Qwen2ForCausalLM`) or a
    `state_dict`.

    config: needed for a bare state_dict. bfloat16 and float16 widen exactly.
    Raises UserError for another kind of model, and for a missing or misshapen tensor.
    """
    if not isinstance(source, Mapping):
        config = config or huggingface.read_config("the PyTorch model", source.config.to_dict())
        source = source.state_dict()
    if config is None:
        raise UserError("A bare state_dict does not say its configuration; give from_torch(state_dict, config).")

    def lazy(tensor) -> Tensor:
        return Tensor(tuple(tensor.shape), lambda: tensor.detach().cpu().float().numpy())

    tensors = huggingface.canonical(config, {name: lazy(tensor) for name, tensor in source.items()})
    config, tensors = with_head(config, tensors)
    return config, assemble(Source("the PyTorch model", config, tensors, lambda: None, lambda: ""), dtype)


def to_torch(config: ModelConfig, params: Model) -> dict:
    """A `state_dict` for `load_state_dict` of the transformers model; a tied head shares the table's memory."""
    less = 1 if config.model_type == "gemma3" else 0  # as Gemma's norms are stored
    state = {name: tensor(values - less * ("norm" in name)) for name, values in named(config, params).items()}
    if config.tie_word_embeddings:
        state[HEAD] = state[TABLES[config.model_type]]
    return state


def tensor(values: np.ndarray | jax.Array):
    """A PyTorch tensor with its own memory and the same bits; bfloat16, which NumPy cannot hand over, passes as
    integers."""
    import torch

    values = np.array(values)  # a copy, contiguous
    narrow = values.dtype.name == "bfloat16"
    return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16) if narrow else torch.from_numpy(values)
