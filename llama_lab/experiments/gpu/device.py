"""The device that the GPU suite runs on: what it is, how fast it reads, and how much memory a subject takes of it."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import memory
from llama_lab.bench.environment import GPU_PLATFORMS

PROBE_BYTES = 1 << 30  # far beyond any cache of a GPU
IN_FLIGHT = 8  # reads started before the clock is looked at again, so that starting them is not what is timed
READS = 5  # of each reader, of which the best counts
WHOLE = ("prefill", "extend", "step", "decode")  # programs that hold the whole model
NO_GPU = "There is no GPU here"
# The same bits in every run, for the price of autotuning and of faster scatters; on a CPU it changes nothing
DETERMINISTIC = "--xla_gpu_deterministic_ops"

Before = tuple[frozenset[int], int | None]  # JAX's executables, bytes that PyTorch's allocator held (None without CUDA)


def prepare(deterministic: bool = False) -> None:
    """Before JAX touches the device: leave memory for PyTorch, and no network; `DETERMINISTIC` where that is asked for.
    What is set is inherited by children, and recorded in the environment.

    Raises UserError if XLA_FLAGS say the opposite.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if deterministic and not is_deterministic(flags):
        if f"{DETERMINISTIC}=" in flags:
            raise UserError(f"--deterministic contradicts XLA_FLAGS={flags}; leave out one of them.")
        os.environ["XLA_FLAGS"] = f"{flags} {DETERMINISTIC}=true".strip()


def is_deterministic(flags: str) -> bool:
    """Whether these XLA_FLAGS ask for it; of several the last counts."""
    given = [flag.partition("=")[2] for flag in flags.split() if flag.partition("=")[0] == DETERMINISTIC]
    return bool(given) and given[-1].lower() in ("", "true", "1")


def describe(any_device: bool) -> dict:
    """{platform, kind, memory_bytes} of the first device. Raises UserError if that is no GPU and a GPU is asked
    for."""
    device = jax.devices()[0]
    is_gpu = device.platform in GPU_PLATFORMS
    if not is_gpu and not any_device:
        raise UserError(
            f"{NO_GPU}: JAX sees {device.platform} only. `--any-device` rehearses the suite on tiny shapes."
        )
    return dict(
        platform="gpu" if is_gpu else device.platform,
        kind=device.device_kind,
        memory_bytes=(device.memory_stats() or {}).get("bytes_limit"),
    )


def torch_device(platform: str) -> str | None:
    """The name PyTorch has for the device that JAX runs on; None if PyTorch is missing or does not see it."""
    try:
        import torch
    except ImportError:
        return None
    return "cpu" if platform == "cpu" else "cuda" if torch.cuda.is_available() else None


def free_bytes() -> int | None:
    """Device memory that JAX may still take; None if the device does not say."""
    stats = jax.devices()[0].memory_stats() or {}
    known = {"bytes_limit", "bytes_in_use"} <= set(stats)
    return stats["bytes_limit"] - stats["bytes_in_use"] if known else None


class Probe:
    """Read bandwidth of the device, GB/s (10^9 bytes), by the fastest of several readers of one large array."""

    def __init__(self, size: int = PROBE_BYTES, torch_on: str | None = None):
        self.matrix = jnp.ones((size // 4 // 4096, 4096), jnp.float32)
        vector = jnp.ones(4096, jnp.float32)
        self.readers: list[tuple[Callable, Callable]] = [  # (start a read, wait for it)
            (lambda: jax.lax.dot(self.matrix, vector), jax.block_until_ready),
            (lambda: jnp.max(self.matrix), jax.block_until_ready),
        ]
        if torch_on == "cuda":
            import torch

            same = torch.utils.dlpack.from_dlpack(jax.block_until_ready(self.matrix))
            self.readers.append((same.sum, lambda _: torch.cuda.synchronize()))

    def bandwidth(self) -> float:
        return max(self.read(*reader) for reader in self.readers)

    def read(self, start: Callable, wait: Callable) -> float:
        """The best of READS of a reader's rate. Its reads queue up on the device, one after the other."""
        wait(start())
        taken = []
        for _ in range(READS):
            began = time.perf_counter()
            wait([start() for _ in range(IN_FLIGHT)][-1])
            taken.append(time.perf_counter() - began)
        return IN_FLIGHT * self.matrix.nbytes / min(taken) / 1e9


def mark() -> Before:
    """What is there before a subject is built; PyTorch's count of its peak starts again."""
    cuda = torch_cuda()
    if cuda:
        cuda.reset_peak_memory_stats()
    return frozenset(map(id, memory.executables())), cuda.memory_allocated() if cuda else None


def taken_since(before: Before, backend: str, weights_bytes: int) -> dict:
    """What a subject took, as fields of a record; extra_bytes: beside the model's weights, which all subjects share.

    A JAX subject: its largest whole-model program, as XLA tells. A PyTorch subject: the most its allocator held at
    once.
    """
    executables, torch_bytes = before
    if backend != "jax":
        cuda = torch_cuda()
        return dict(extra_bytes=cuda.max_memory_allocated() - torch_bytes) if cuda else {}
    new = [e for e in memory.executables() if id(e) not in executables and memory.name_of(e) in WHOLE]
    largest = max(filter(None, map(memory.analyse, new)), key=lambda p: p.need_bytes, default=None)
    if largest is None:
        return {}
    sizes = {f"{kind}_bytes": getattr(largest, f"{kind}_bytes") for kind in ("argument", "output", "temp", "alias")}
    return {**sizes, "extra_bytes": largest.need_bytes - weights_bytes}


def torch_cuda():
    """`torch.cuda` where it can be used, else None."""
    with contextlib.suppress(ImportError):
        import torch

        return torch.cuda if torch.cuda.is_available() else None
    return None


def forget() -> None:
    """Give back what a model left: programs, graphs, and memory kept for reuse."""
    gc.collect()
    jax.clear_caches()
    with contextlib.suppress(ImportError):
        import torch

        torch.compiler.reset()
    if cuda := torch_cuda():
        cuda.empty_cache()
    gc.collect()
