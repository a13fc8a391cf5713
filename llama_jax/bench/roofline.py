"""The physical limit: bytes a token must read, and how fast this machine reads bytes.

Decoding one sequence is bound by memory: every weight is read once a token and used once. So the limit in tokens/s is
bandwidth / bytes per token, and MBU (memory-bandwidth utilisation) is the share of it that a run reaches.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.config import ModelConfig

PROBE_BYTES = 1 << 28  # 256 MiB: beyond the last-level cache of common machines
REPEATS = 7


def bytes_per_token(config: ModelConfig, context: float, weight_bytes: int = 4, cache_bytes: int = 4, batch: int = 1) -> float:
    """Bytes one decode step must read: all layers, head and norms once, and each row's cached keys and values.

    context: mean number of cached positions a token attends over.
    """
    return config.weights_read_per_token * weight_bytes + batch * context * config.kv_bytes_per_position(cache_bytes)


def flops_per_token(config: ModelConfig, context: float) -> float:
    """Multiply-adds counted as two: the weights', and attention's scores and mix over `context` positions."""
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * context
    return 2 * (config.weights_read_per_token + attention)


def mbu(tokens_per_second: float, bytes_read: float, gigabytes_per_second: float) -> float:
    """Memory-bandwidth utilisation, 0 to 1."""
    return tokens_per_second * bytes_read / (gigabytes_per_second * 1e9)


def bandwidth() -> float:
    """Read bandwidth of this machine in GB/s (10^9 bytes): the best reader's median, all cores.

    Two readers, because either may be the weaker on a given machine: an XLA matrix-vector product, which is what decoding
    does, and NumPy dot products in one thread a core.
    """
    host = np.ones(PROBE_BYTES // 4, np.float32)
    matrix = jnp.asarray(host.reshape(-1, 4096))
    vector = jnp.ones(4096, jnp.float32)
    parts = np.array_split(host, os.cpu_count() or 1)
    with ThreadPoolExecutor(len(parts)) as pool:
        readers = (lambda: jax.lax.dot(matrix, vector).block_until_ready(), lambda: list(pool.map(lambda p: p.dot(p), parts)))
        return max(PROBE_BYTES / np.median(times(reader)) / 1e9 for reader in readers)


def times(reader) -> list[float]:
    """Seconds of each repeat, one unmeasured run first."""
    reader()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        reader()
        taken.append(time.perf_counter() - start)
    return taken
