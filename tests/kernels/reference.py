"""What the fused kernel computes, in NumPy with float64: one decoded token of a model on quantised weights.

Activations are rounded to int8 before every product, keys and values to float16 as they are stored. Where a number
stands almost on the edge between two roundings, float32 and float64 may round it differently, and both are right. So
the reference keeps its `margin`, the smallest distance of any number that it rounded to int8 from such an edge, in
units of int8: where it is well above the error of float32 (`CLEAR`) the two must agree closely. Keys and values it
takes from the kernel, as they were stored, after it has compared them with its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from llama_jax.rope import create, turned
from tests.kernels.products import reference_product

CLEAR = 2e-4  # of a unit of int8: many times float32's error after the sums of a small model


@dataclass
class Rounding:
    """Products on quantised weights, and how near to an edge their activations were."""

    margin: float = 0.5
    stored: list = field(default_factory=list)  # (mine, the kernel's) keys and values of each layer

    def product(self, x, weight):
        """x @ weight.T of float64 [K], x rounded to int8 a block."""
        x = x.astype(np.float32)
        wide = np.pad(x, (0, -len(x) % 32)).reshape(-1, 32).astype(np.float64)
        scaled = wide * 127 / np.maximum(np.abs(wide).max(axis=1, keepdims=True), 1e-30)
        self.margin = min(self.margin, float(np.min(0.5 - np.abs(scaled - np.rint(scaled)))))
        return reference_product(x, weight)


def wide(array):
    return np.asarray(array, np.float64)


def normalised(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * wide(weight)


def rotated(x, rope, position):
    """Heads [H, h], their first numbers turned by the position's angles."""
    if rope.inverse is None:
        return x
    cos, sin = (wide(part)[0, 0, 0] for part in turned(rope, np.array([[position]], np.int32)))
    left, right, rest = np.split(x, [len(cos), 2 * len(cos)], axis=-1)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin, rest], axis=-1)


def attention(q, keys, values, scale):
    """Query heads [H, h] over keys and values [K, T, h], H/K query heads a key head, one after the other."""
    share = len(q) // len(keys)
    mixed = []
    for i, query in enumerate(q):
        scores = wide(keys[i // share]) @ query * scale
        weights = np.exp(scores - scores.max())
        mixed.append(weights @ wide(values[i // share]) / weights.sum())
    return np.stack(mixed)


ACTS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def step(model, config, token, slot, pad, keys, values, *, position=None, eps=None, order=None):
    """(logits float64 [V], Rounding) of a token written to `slot`; keys and values float16 [L, K, S, h] as the kernel
    left them.

    position, eps, order (of the query heads): what they are unless a test wants them wrong.
    """
    rounding, heads, dim = Rounding(), config.num_attention_heads, config.head_dim
    eps, position = config.norm_eps if eps is None else eps, slot - pad if position is None else position
    scale = dim**-0.5 if config.attention_scale is None else config.attention_scale

    def norm(x, weights):
        return x if weights is None else normalised(x, weights.weight, eps)

    x = wide(model.embeddings.weight[np.array([token])])[0] * config.embedding_scale
    for i, (layer, layer_keys, layer_values) in enumerate(zip(model.layers, keys, values, strict=True)):
        mine, rope = layer.attention, create(config, i)
        qkv = rounding.product(norm(x, layer.attention_norm), mine.qkv)
        qkv = (qkv + (0 if mine.qkv_bias is None else wide(mine.qkv_bias))).reshape(-1, dim)
        q, k, v = np.split(qkv, [heads, heads + len(layer_keys)])
        q, k = (
            rotated(np.array([norm(head, weights) for head in part]), rope, position)
            for part, weights in ((q, mine.q_norm), (k, mine.k_norm))
        )
        rounding.stored += [(k, layer_keys[:, slot]), (v, layer_values[:, slot])]
        q = q if order is None else q[order]
        seen = slice(pad if rope.window is None else max(pad, slot + 1 - rope.window), slot + 1)
        mixed = rounding.product(attention(q, layer_keys[:, seen], layer_values[:, seen], scale).reshape(-1), mine.o)
        x = x + norm(mixed + (0 if mine.o_bias is None else wide(mine.o_bias)), layer.attention_post_norm)
        gate, up = np.split(rounding.product(norm(x, layer.ffn_norm), layer.ffn.gate_up), 2)
        x = x + norm(rounding.product(ACTS[config.hidden_act](gate) * up, layer.ffn.down), layer.ffn_post_norm)
    head = model.embeddings.weight if model.head.weight is None else model.head.weight
    return rounding.product(normalised(x, model.head.norm.weight, eps), head), rounding
