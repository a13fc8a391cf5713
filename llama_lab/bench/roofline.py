"""The physical limit: bytes a token must read, and how fast this machine reads bytes.

Decoding one sequence is bound by memory: every weight is read once per token and used once. So the limit in tokens/s is
bandwidth / bytes per token, and MBU (memory-bandwidth utilisation) is the share of it that a run reaches.

A limit is an upper bound, and a disturbed probe can only read too little. So the bandwidth of a run is the largest of
its probes (`of_runs`), whatever is recorded with single trials.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from llama_jax.config import ModelConfig

# What a probe reads: as much as the packaged model's file. A server's last-level cache of hundreds of megabytes holds a
# part of that, so that it is read faster than memory can be: a limit by more bytes would be one that a run can exceed.
PROBE_BYTES, MOST = 96 << 20, 256 << 20
ROW_BYTES = 4 * 4096  # of a probe's matrix
REPEATS = 7
SIDE = 2048  # rows of the matrices that `flops` multiplies: 17 GFLOP, too large for any cache to matter


def bytes_per_token(
    config: ModelConfig, context: float, weight_bytes: float = 4, cache_bytes: float = 4, batch: int = 1
) -> float:
    """Bytes one decode step must read: all layers, head and norms once, and each row's cached keys and values.

    context: mean number of cached positions a token attends over.
    """
    return config.weights_read_per_token * weight_bytes + batch * context * config.kv_bytes_per_position(cache_bytes)


def flops_per_token(config: ModelConfig, context: float) -> float:
    """Multiply-adds counted as two: the weights', and attention's scores and mix over `context` positions."""
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * context
    return 2 * (config.weights_read_per_token + attention)


def prefill_flops(config: ModelConfig, tokens: int) -> float:
    """Operations that a prompt needs until its next token: all layers for each token, causal attention, one head."""
    layers = config.num_hidden_layers * config.parameters_per_layer * tokens
    attention = config.num_hidden_layers * config.num_attention_heads * config.head_dim * tokens * (tokens + 1)
    return 2 * (layers + attention + config.vocab_size * config.hidden_size)


def mbu(tokens_per_second: float, bytes_read: float, gigabytes_per_second: float) -> float:
    """Memory-bandwidth utilisation, 0 to 1."""
    return tokens_per_second * bytes_read / (gigabytes_per_second * 1e9)


class Probe:
    """A probe of this machine's read bandwidth that keeps its two arrays, so that it can run between blocks.

    bytes_read: that a token of the smallest subject reads; the arrays have as many, from PROBE_BYTES to MOST.
    Two readers, because either may be the weaker on a given machine: an XLA matrix-vector product, which is what
    decoding does, and NumPy dot products in one thread for each core that this process may use.
    """

    def __init__(self, bytes_read: float = 0):
        size = int(min(max(bytes_read, PROBE_BYTES), MOST))
        host = np.ones(size // ROW_BYTES * ROW_BYTES // 4, np.float32)
        self.matrix, self.vector = jnp.asarray(host.reshape(-1, ROW_BYTES // 4)), jnp.ones(ROW_BYTES // 4, jnp.float32)
        self.parts = np.array_split(host, threads())
        self.pool = ThreadPoolExecutor(len(self.parts))
        self.xla_reader().block_until_ready()  # compiled here, never within a measurement

    def xla_reader(self) -> jax.Array:
        return jax.lax.dot(self.matrix, self.vector)

    def numpy_reader(self) -> list:
        return list(self.pool.map(lambda part: part.dot(part), self.parts))

    def bandwidth(self, repeats: int = 3) -> float:
        """GB/s (10^9 bytes): the fastest of `repeats` reads by each reader, all cores; some 0.1 s at 3 repeats."""
        taken = (times(reader, repeats) for reader in (self.xla_reader, self.numpy_reader))
        return self.matrix.nbytes / min(map(min, taken)) / 1e9


def threads() -> int:
    """Cores that this process may use: the threads its subjects have."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bandwidth() -> float:
    """Read bandwidth of this machine in GB/s (10^9 bytes), by a probe of its own."""
    return Probe().bandwidth(REPEATS)


def spread(rows: Iterable) -> dict[str, dict]:
    """Run → {max, median, min, n} of what its probes read, GB/s: how steady the machine was meanwhile. Each probe
    counts once: the trials of a block in a process share one."""
    reads: dict[str, set] = {}
    for row in rows:
        if row.bandwidth_gbps:
            reads.setdefault(row.run, set()).add((row.process, row.block, row.bandwidth_gbps))
    known = {run: [gbps for *_, gbps in probes] for run, probes in reads.items()}
    return {run: dict(max=max(v), median=float(np.median(v)), min=min(v), n=len(v)) for run, v in known.items()}


def of_runs(rows: Sequence) -> list:
    """The rows, each with the bandwidth of its run: the most that any probe of the run read. Rows without stay so."""
    most = {run: reads["max"] for run, reads in spread(rows).items()}
    return [r.model_copy(update=dict(bandwidth_gbps=most[r.run])) if r.bandwidth_gbps else r for r in rows]


def flops() -> float:
    """GFLOP/s (10^9 operations, a multiply-add is two): the median of products of two float32 matrices of SIDE x SIDE.

    XLA's own product on JAX's default device at its default precision, which on CPU is float32 throughout and on many
    GPUs TF32. What prefill could reach at best on this software; not the processor's peak.
    """
    matrix = jnp.ones((SIDE, SIDE), jnp.float32)
    return 2 * SIDE**3 / float(np.median(times(lambda: jax.lax.dot(matrix, matrix), 5))) / 1e9


def times(reader, repeats: int) -> list[float]:
    """Seconds of each repeat until its result is there, one unmeasured run first."""
    jax.block_until_ready(reader())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(reader())
        seconds.append(time.perf_counter() - start)
    return seconds
