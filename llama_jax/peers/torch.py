"""PyTorch as subjects: one model, transformers' own modules on our weights, under every way PyTorch has of running it.

transformers, transformers+static     `generate` with its dynamic and its static cache (`torch_eager.py`)
torch, torch+static, torch+nocache    eager greedy loops (`torch_eager.py`)

All are greedy, in as many threads as the process has cores, and hand every token to the host before the next is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from llama_jax import generate
from llama_jax.bench.guard import TorchGuard
from llama_jax.bench.workload import Subject, Workload, encoder
from llama_jax.config import ModelConfig
from llama_jax.peers import UnavailableError

if TYPE_CHECKING:
    import torch

    from llama_jax.checkpoint import Checkpoint

WAYS: dict[str, tuple[str, str, dict]] = {  # peer: (module, its function, its options)
    "transformers": ("torch_eager", "generated", dict(cache="dynamic")),
    "transformers+static": ("torch_eager", "generated", dict(cache="static")),
    "torch": ("torch_eager", "growing", {}),
    "torch+static": ("torch_eager", "static", {}),
    "torch+nocache": ("torch_eager", "whole", {}),
}
KINDS = {"transformers": "growing", "torch": "growing"}  # of KV cache, where it is neither fixed nor none


def cache_kind(name: str) -> str:
    return "none" if name.endswith("+nocache") else KINDS.get(name, "fixed")


def runner(module: torch.nn.Module, config: ModelConfig, name: str) -> Callable[[Sequence[int], Workload], Iterator[np.ndarray]]:
    """run(ids, workload) → blocks [1 B] of greedy tokens as they reach the host, on a module of `torch_model`.

    A request beyond the model's context, or an id outside its vocabulary, raises UserError as for our own placements.
    """
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    home, function, options = WAYS[name]
    way = getattr(import_module(f"llama_jax.peers.{home}"), function)(module, **options)
    engine = Limits(config)

    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        generate.request(engine, [ids], work.new_tokens, length=work.length, slots=work.slots)
        return way(ids, work)

    return run


class Limits:
    """All that `generate.request` needs of an engine."""

    def __init__(self, config: ModelConfig):
        self.config = config


_shared: dict = {}  # the checkpoint converted last: subjects of one process share its module


def shared_module(loaded: Checkpoint):
    from llama_jax.peers import torch_model

    if _shared.get("params") is not loaded.params:
        _shared.update(params=loaded.params, module=torch_model.module(loaded.config, loaded.params, device()))
    return _shared["module"]


def device() -> str:
    """Where PyTorch runs: a CUDA device if it has one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def subject(loaded: Checkpoint, name: str) -> Subject:
    """A way as a subject of the protocol. Raises UnavailableError."""
    if gap := missing(name, loaded.name):
        raise UnavailableError(*gap)
    dtype = loaded.params.embedding.weight.dtype
    identity = dict(model=loaded.name, weights_hash=loaded.weights_hash, dtype=dtype.name, weight_bytes=dtype.itemsize,
                    config=loaded.config, cache=cache_kind(name))  # fmt: skip
    run = runner(shared_module(loaded), loaded.config, name)
    return Subject(name, "torch", name, run, encoder(loaded), identity, guard=TorchGuard)


def missing(name: str, model: str) -> tuple[str, str] | None:
    """PyTorch and transformers run wherever they are installed; CUDA graphs where there is a CUDA device."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"{package} is not installed.", "Run `make setup`."
    return None
