"""A Llama decoder in NumPy with float64: what every release must agree with, and shares no line of code with JAX.

Weights under Hugging Face's names, [out, in].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llama_jax.config import ModelConfig


def logits(weights: Mapping[str, np.ndarray], config: ModelConfig, ids: Sequence[int]) -> np.ndarray:
    """Float64 [T V] at every position of one sequence."""
    wide = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    x = wide["model.embed_tokens.weight"][np.asarray(ids)]
    half = config.head_dim // 2
    theta = np.arange(len(ids))[:, None] / config.rope_theta ** (np.arange(half) / half)
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]  # [T 1 h/2]

    def normalised(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * wide[name]

    def heads(x: np.ndarray, name: str, rotated: bool) -> np.ndarray:
        y = (x @ wide[name].T).reshape(len(ids), -1, config.head_dim)  # [T N h]
        if not rotated:
            return y
        left, right = y[..., :half], y[..., half:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    for i in range(config.num_hidden_layers):
        at = f"model.layers.{i}."
        seen = normalised(x, at + "input_layernorm.weight")
        q, k, v = (heads(seen, f"{at}self_attn.{kind}_proj.weight", kind != "v") for kind in "qkv")
        k, v = (np.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))
        scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(config.head_dim)
        scores[:, np.triu_indices(len(ids), 1)[0], np.triu_indices(len(ids), 1)[1]] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("nts,snh->tnh", shares / shares.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(len(ids), -1) @ wide[at + "self_attn.o_proj.weight"].T
        seen = normalised(x, at + "post_attention_layernorm.weight")
        gate = seen @ wide[at + "mlp.gate_proj.weight"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (seen @ wide[at + "mlp.up_proj.weight"].T))
            @ wide[at + "mlp.down_proj.weight"].T
        )
    x = normalised(x, "model.norm.weight")
    return x @ wide["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"].T
