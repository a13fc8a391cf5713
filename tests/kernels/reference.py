"""What the fused kernel computes, in NumPy with float64: one decoded token of a Llama or Qwen2 model on quantised
weights.

Activations are rounded to int8 before every product, keys and values to float16 as they are stored. Where a number
stands almost on the edge between two roundings, float32 and float64 may round it differently, and both are right. So
the reference keeps its `margin`, the smallest distance of any number that it rounded to int8 from such an edge, in
units of int8: where it is well above the error of float32 (`CLEAR`) the two must agree closely. Keys and values it
takes from the kernel, as they were stored, after it has compared them with its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from llama_jax import rope
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


def rotated(x, cos, sin):
    """Heads [H, h] turned by the position's angles."""
    left, right = np.split(x, 2, axis=-1)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def attention(q, keys, values):
    """Query heads [H, h] over keys and values [K, T, h], H/K query heads a key head, one after the other."""
    share = len(q) // len(keys)
    mixed = []
    for i, query in enumerate(q):
        scores = wide(keys[i // share]) @ query / np.sqrt(len(query))
        weights = np.exp(scores - scores.max())
        mixed.append(weights @ wide(values[i // share]) / weights.sum())
    return np.stack(mixed)


def step(model, config, token, slot, pad, keys, values, *, position=None, eps=None, order=None):
    """(logits float64 [V], Rounding) of a token written to `slot`; keys and values float16 [L, K, S, h] as the kernel
    left them.

    position, eps, order (of the query heads): what they are unless a test wants them wrong.
    """
    rounding, heads, dim = Rounding(), config.num_attention_heads, config.head_dim
    eps = config.norm_eps if eps is None else eps
    cos, sin = rope.angles(
        np.array([[slot - pad if position is None else position]], np.int32), rope.frequencies(config)
    )
    cos, sin = wide(cos)[0, 0, 0], wide(sin)[0, 0, 0]
    x = wide(model.embeddings.weight[np.array([token])])[0]
    for layer, layer_keys, layer_values in zip(model.layers, keys, values, strict=True):
        mine = layer.attention
        qkv = rounding.product(normalised(x, layer.attention_norm.weight, eps), mine.qkv)
        qkv = (qkv + (0 if mine.qkv_bias is None else wide(mine.qkv_bias))).reshape(-1, dim)
        q, k, v = np.split(qkv, [heads, heads + len(layer_keys)])
        rounding.stored += [(rotated(k, cos, sin), layer_keys[:, slot]), (v, layer_values[:, slot])]
        q = rotated(q, cos, sin) if order is None else rotated(q, cos, sin)[order]
        seen = slice(pad, slot + 1)
        x = x + rounding.product(attention(q, layer_keys[:, seen], layer_values[:, seen]).reshape(-1), mine.o)
        gate, up = np.split(rounding.product(normalised(x, layer.ffn_norm.weight, eps), layer.ffn.gate_up), 2)
        x = x + rounding.product(gate / (1 + np.exp(-gate)) * up, layer.ffn.down)
    head = model.embeddings.weight if model.head.weight is None else model.head.weight
    return rounding.product(normalised(x, model.head.norm.weight, eps), head), rounding
