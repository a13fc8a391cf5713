"""The same weights in transformers' own modules: what every PyTorch subject runs.

Weights stay where JAX has them, through DLPack, wherever both keep them alike: all of Llama and Qwen2, whose fused
weights are rows one below the other. GPT-2's products are copied, since `Conv1D` has its weights [in, out] and is to
run on the layout it was made for.

`torch-int8` multiplies in int8 by PyTorch's dynamic quantisation: activations are rounded to 8 bits before each
product, everything else stays in float32. `torch.ao.quantization.quantize_dynamic` is deprecated in favour of torchao,
a package of its own that this project does not install; it is what PyTorch has by itself, and what most guides to int8
on a CPU mean. Weights have one scale per output channel: one a tensor, the default, is no faster and further from the
model. Only linear layers change, the head among them; a tied embedding stays in float32 for looking tokens up, so its
table is held twice.
"""

from __future__ import annotations

import copy
import warnings

import jax
import torch

from llama_jax.checkpoint.tensors import names, shapes
from llama_jax.config import ModelConfig, RopeScaling
from llama_jax.model import Model
from llama_lab import peers

# no token ends a text, none is left out of the table
NOBODY = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def module(config: ModelConfig, params: Model, device: str = "cpu") -> torch.nn.Module:
    """transformers' module (`LlamaForCausalLM`, `Qwen2ForCausalLM`, `GPT2LMHeadModel`) in eval mode on these weights,
    in their dtype. Raises UnavailableError for another family."""
    peers.check_twin(config, "PyTorch")
    weights = {name: tensor.to(device) for name, tensor in shared(config, params).items()}
    return assembled(described(config), weights, config.rope_scaling)


def twin(other: torch.nn.Module, attention: str) -> torch.nn.Module:
    """The same module on the same memory, with another function of transformers' attention interface."""
    description = copy.deepcopy(other.config)
    description._attn_implementation = attention
    made = assembled(description, dict(other.named_parameters()), None)
    for mine, theirs in zip(made.modules(), other.modules(), strict=True):
        if hasattr(theirs, "inv_freq"):
            mine.inv_freq = theirs.inv_freq
    return made


def quantised(module: torch.nn.Module) -> torch.nn.Module:
    """A module that multiplies in int8; the one that it is made of stays as it is, and what is not quantised is
    shared."""
    from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
    from transformers.pytorch_utils import Conv1D

    made = twin(module, module.config._attn_implementation)
    for name, part in list(made.named_modules()):
        if isinstance(part, Conv1D):  # GPT-2's linear layers, which hold their weights [in, out]
            linear = torch.nn.Linear(*part.weight.shape, device="meta")
            linear.weight = torch.nn.Parameter(part.weight.T.contiguous(), False)
            linear.bias = torch.nn.Parameter(part.bias, False)
            made.set_submodule(name, linear)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated: see above
        return quantize_dynamic(made, {torch.nn.Linear: per_channel_dynamic_qconfig}, inplace=True)


def assembled(description, weights: dict[str, torch.Tensor], scaling: RopeScaling | None) -> torch.nn.Module:
    """A module that holds these tensors themselves; only what it computes from its configuration is made again."""
    from transformers import AutoModelForCausalLM

    device, dtype = next((w.device, w.dtype) for w in weights.values())
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(description, dtype=dtype)
    made.load_state_dict(weights, strict=False, assign=True)
    made.tie_weights()
    for part in list(made.modules()):
        if hasattr(part, "rotary_emb"):
            part.rotary_emb = type(part.rotary_emb)(config=description).to(device)
            if scaling and scaling.kind == "factors":
                part.rotary_emb.inv_freq = part.rotary_emb.inv_freq / torch.tensor(scaling.factors, device=device)
    if left := [name for name, tensor in (*made.named_parameters(), *made.named_buffers()) if tensor.is_meta]:
        raise ValueError(f"no weight for {left[0]}")
    return made.requires_grad_(False).eval()


def shared(config: ModelConfig, params: Model) -> dict[str, torch.Tensor]:
    """Hugging Face name → contiguous tensor, on JAX's own memory where its layout is Hugging Face's too."""
    sizes, tensors = shapes(config), {}
    for rows, weight in zip(
        jax.tree.leaves(names(config)), jax.tree.leaves(jax.block_until_ready(params)), strict=True
    ):
        heights = [sizes[name][-1 if rows.transposed else 0] for name in rows.names]
        pieces = torch.utils.dlpack.from_dlpack(weight).split(heights)
        tensors |= {
            name: piece.T.contiguous() if rows.transposed else piece
            for name, piece in zip(rows.names, pieces, strict=True)
        }
    return tensors


def described(config: ModelConfig):
    """transformers' configuration of one of ours."""
    from transformers import GPT2Config, LlamaConfig, Qwen2Config

    tied = config.tie_word_embeddings
    common = dict(vocab_size=config.vocab_size, tie_word_embeddings=tied, attn_implementation="sdpa", **NOBODY)
    if config.model_type == "gpt2":
        return GPT2Config(
            n_embd=config.hidden_size,
            n_inner=config.intermediate_size,
            n_layer=config.num_hidden_layers,
            n_head=config.num_attention_heads,
            n_positions=config.max_position_embeddings,
            layer_norm_epsilon=config.norm_eps,
            activation_function="gelu_new",
            **common,
        )
    kind, own = (Qwen2Config, {}) if config.model_type == "qwen2" else (LlamaConfig, dict(head_dim=config.head_dim))
    made = kind(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=rope(config),
        **own,
        **common,
    )
    made.head_dim = config.head_dim  # Qwen2's modules read it as well, its configuration does not name it
    return made


def rope(config: ModelConfig) -> dict:
    """transformers' rotary parameters. Divisors as GGUF stores them (`factors`) have no name there: `assembled` puts
    them in."""
    scaling, parameters = config.rope_scaling, dict(rope_type="default", rope_theta=config.rope_theta)
    if scaling is None or scaling.kind == "factors":
        return parameters
    parameters |= dict(rope_type=scaling.kind, factor=scaling.factor)
    if scaling.kind == "linear":
        return parameters
    bounds = "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"
    return parameters | {name: getattr(scaling, name) for name in bounds}
