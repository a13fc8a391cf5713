"""Small random models of every family, as transformers makes them and as GGUF files."""

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llama_jax.checkpoint.gguf import rotated_heads
from llama_jax.checkpoint.writer import rotated
from tests.checkpoint.test_gguf import add_vocabulary, begun, finish
from tests.conftest import LLAMA_SHAPE, SHAPE


def random_model(kind, fields, **options):
    """By transformers' name of its family."""
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields), **options)


def gpt2(**changes):
    return random_model("gpt2", SHAPE | changes)


def qwen2(**changes):
    return random_model("qwen2", LLAMA_SHAPE | changes)


# Odd sizes: heads that do not make up the width, an odd number of layers.
ODD = LLAMA_SHAPE | dict(hidden_size=36, intermediate_size=50, num_hidden_layers=3, head_dim=10, pad_token_id=None)
UNTIED = dict(tie_word_embeddings=False)
LONG = dict(rope_type="longrope", short_factor=[1.0, 1.5, 4.0], long_factor=[9.0] * 3, rope_theta=1e4)


def newer(kind, **changes):
    """Of another family; eager attention is transformers' reference."""
    return random_model(kind, ODD | changes, attn_implementation="eager")


def phi3(**changes):
    """Its heads make up the width."""
    return newer("phi3", hidden_size=32, head_dim=8, **dict(sliding_window=None) | changes)


def longrope(**changes):
    """Of a context that training's, which is the model's here, is half of."""
    long = LONG | dict(original_max_position_embeddings=256, partial_rotary_factor=0.75)
    context = dict(original_max_position_embeddings=256, max_position_embeddings=512)
    return phi3(rope_parameters=long, **context | changes)


MODELS = {
    "gpt2": gpt2,
    "gpt2, wide feed-forward": lambda: gpt2(n_inner=80),
    "gpt2, untied": lambda: gpt2(tie_word_embeddings=False),
    "qwen2": qwen2,
    "qwen2, untied": lambda: qwen2(tie_word_embeddings=False),
    "llama": lambda: newer("llama"),
    "llama, biases": lambda: newer("llama", attention_bias=True),
    "qwen3": lambda: newer("qwen3", **UNTIED),
    "qwen3, biases": lambda: newer("qwen3", attention_bias=True),
    "mistral": lambda: newer("mistral", sliding_window=7),
    "mistral, whole": lambda: newer("mistral", sliding_window=None, **UNTIED),
    "smollm3": lambda: newer("smollm3", num_hidden_layers=5, hidden_size=32),
    "smollm3, listed": lambda: newer("smollm3", no_rope_layers=[0, 1, 0], hidden_size=32, **UNTIED),
    "phi3": lambda: phi3(rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.75)),
    "phi3, window": lambda: phi3(sliding_window=7, **UNTIED),
    "phi3, longrope": longrope,
    "gemma3": lambda: newer("gemma3_text", num_hidden_layers=7, sliding_window=7, query_pre_attn_scalar=10),
    "gemma3, untied": lambda: newer(
        "gemma3_text",
        layer_types=["full_attention", "sliding_attention"],
        num_hidden_layers=2,
        sliding_window=3,
        query_pre_attn_scalar=12,
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=1e4),
        ),
        **UNTIED,
    ),
}
# what a GGUF file cannot say; one of Mistral's is of Llama's architecture
NOT_IN_GGUF = ("gpt2, wide feed-forward", "smollm3, listed", "gemma3, untied", "qwen3, biases")
IN_GGUF = [name for name in MODELS if name not in NOT_IN_GGUF and not name.startswith("mistral")]


def made(name):
    """A small random model whose biases and norms are random too: transformers sets them to 0 and 1, which would hide
    mistakes."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def write_gguf(path, cfg, tensors):
    """A GGUF file as llama.cpp's converter lays these architectures out: all products [out, in]."""
    w, pre = begun(path, cfg, cfg.model_type), "gpt-2" if cfg.model_type == "gpt2" else "qwen2"
    describe(w, cfg)
    tokens = [*(chr(256 + i) for i in range(cfg.vocab_size - 1)), "Āā"]
    add_vocabulary(w, pre, tokens, [1] * cfg.vocab_size, ["Ā ā"])  # llama.cpp wants a merge
    # the converter's own table of names
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[cfg.model_type.upper()], cfg.num_hidden_layers)
    for name, values in tensors.items():
        conv = cfg.model_type == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        values = values.T if conv else values
        short = table.get_name(name, try_suffixes=(".weight", ".bias"))
        w.add_tensor(short, np.ascontiguousarray(rotated(values, rotated_heads(short, cfg))))
    finish(w)


def describe(w, cfg):
    """What the converter says of the newer families."""
    if cfg.model_type in ("gpt2", "qwen2"):
        return
    w.add_key_length(cfg.head_dim)
    w.add_value_length(cfg.head_dim)
    w.add_rope_dimension_count(cfg.rotary_dim or cfg.head_dim)
    if cfg.window:
        w.add_sliding_window(cfg.window)
    if cfg.rotary_scale != 1:
        w.add_rope_scaling_attn_factors(cfg.rotary_scale)
        w.add_rope_scaling_orig_ctx_len(cfg.max_position_embeddings)
        short = np.asarray(cfg.rope_scaling.factors, np.float32)
        w.add_tensor("rope_factors_long.weight", 2 * short)
        w.add_tensor("rope_factors_short.weight", short)
