"""PyTorch as subjects: one model, transformers' own modules on our weights, under every way that PyTorch can run it.

transformers, transformers+static   `generate` with its dynamic and its static cache (`torch_eager.py`)
torch, torch+static, torch+nocache  eager loops (`torch_eager.py`)
torch-int8                          the eager loop on int8 weights, by dynamic quantisation (`torch_model.py`)
torch-script…                       TorchScript before and after an eager forward (`torch_eager.py`)
torch-compile…                      `torch.compile` (`torch_compiled.py`)
torch-cudagraph…, torch-hybrid…     CUDA graphs by hand, and with TorchScript at both ends (`torch_graphs.py`)

All use as many threads as the process has cores, and hand every token to the host before the next is computed. Those
that choose tokens outside a compiled program can also sample (`torch_script.py`); the others are greedy.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from llama_jax import generate
from llama_jax.config import ModelConfig
from llama_lab import peers
from llama_lab.bench.guard import TorchCounter, TorchGuard
from llama_lab.bench.workload import Subject, Workload, encoder

if TYPE_CHECKING:
    import torch

    from llama_jax.checkpoint import Checkpoint

WAYS: dict[str, tuple[str, str, dict]] = {  # peer: (module, its function, its options)
    "transformers": ("torch_eager", "generated", dict(cache="dynamic")),
    "transformers+static": ("torch_eager", "generated", dict(cache="static")),
    "torch": ("torch_eager", "growing", {}),
    "torch+static": ("torch_eager", "static", {}),
    "torch+nocache": ("torch_eager", "whole", {}),
    "torch-int8": ("torch_eager", "growing", dict(quantised=True)),
    "torch-script": ("torch_eager", "scripted_static", {}),
    "torch-script+frozen": ("torch_eager", "scripted_static", dict(frozen=True)),
    "torch-script+nocache": ("torch_eager", "scripted_whole", {}),
    "torch-compile": ("torch_compiled", "cached", {}),
    "torch-compile+nocache": ("torch_compiled", "whole", {}),
    "torch-compile+reduce-overhead": ("torch_compiled", "cached", dict(mode="reduce-overhead")),
    "torch-compile+max-autotune": ("torch_compiled", "cached", dict(mode="max-autotune")),
    "torch-cudagraph": ("torch_graphs", "Cached", {}),
    "torch-cudagraph+nocache": ("torch_graphs", "Whole", {}),
    "torch-hybrid": ("torch_graphs", "Cached", dict(scripted=True)),
    "torch-hybrid+nocache": ("torch_graphs", "Whole", dict(scripted=True)),
}
QUANTISED = {"torch-int8": "int8-dynamic"}  # peers that multiply in fewer bits: how
GPU = "Run it on a machine with a CUDA device: `make gpu`."
GRAPHS = "CUDA graphs need a CUDA device."
NEEDS_CUDA = {  # peer: why it is nothing of its own without a CUDA device
    "torch-compile+reduce-overhead": "Without a CUDA device the mode is the default one: what it adds are CUDA graphs.",
    "torch-compile+max-autotune": "Without a CUDA device the mode is the default one: Inductor tunes a CPU's products"
    " only for weights frozen into the program, a second copy of them all.",
    **{name: GRAPHS for name, (home, *_) in WAYS.items() if home == "torch_graphs"},
}
# the KV cache's kind, where it is neither fixed nor none
KINDS = {"transformers": "growing", "torch": "growing", "torch-int8": "growing"}
MODULE = peers.Latest()  # of the checkpoint converted last


def cache_kind(name: str) -> str:
    return "none" if name.endswith("+nocache") else KINDS.get(name, "fixed")


def runner(
    module: torch.nn.Module, config: ModelConfig, name: str
) -> Callable[[Sequence[int], Workload], Iterator[np.ndarray]]:
    """run(ids, workload) → blocks [1 B] of tokens as they reach the host, on a module of `torch_model`.

    A request beyond the model's context, or an id outside its vocabulary, raises UserError as for our own placements.
    """
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    home, function, options = WAYS[name]
    way = getattr(import_module(f"llama_lab.peers.{home}"), function)(module, **options)

    def run(ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        generate.request(config, [ids], work.new_tokens, length=work.length, slots=work.slots)
        return way(ids, work)

    return run


def shared_module(loaded: Checkpoint):
    """The checkpoint as transformers' module, one for all subjects."""
    from llama_lab.peers import torch_model

    return MODULE.get(loaded.params, lambda: torch_model.module(loaded.config, loaded.params, device()))


def device() -> str:
    """Where PyTorch runs: a CUDA device if it has one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_peak() -> dict:
    """Most memory that PyTorch held on a CUDA device so far, as a field of a Trial."""
    import torch

    return dict(device_peak_bytes=torch.cuda.max_memory_allocated()) if device() == "cuda" else {}


def subject(loaded: Checkpoint, name: str) -> Subject:
    """A way as a subject of the protocol. Raises UnavailableError."""
    peers.require(name, loaded.source)
    known = peers.identity(loaded, cache_kind(name))
    if name in QUANTISED:
        known |= dict(dtype="int8", quantisation=QUANTISED[name], cache_bytes=known["weight_bytes"], weight_bytes=1)
    run = runner(shared_module(loaded), loaded.config, name)
    return Subject(name, "torch", name, run, encoder(loaded), known, TorchGuard, TorchCounter, device_peak)


def missing(name: str, model: str) -> tuple[str, str] | None:
    """PyTorch runs wherever it is installed; CUDA graphs where it has a CUDA device; `torch.compile` where Inductor
    finds a compiler; dynamic quantisation on a processor for which this build of PyTorch has integer products."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"{package} is not installed.", "Run `make setup`."
    if name in NEEDS_CUDA and device() == "cpu":
        return NEEDS_CUDA[name], GPU
    if name in QUANTISED and device() != "cpu":
        reason = "PyTorch's dynamic quantisation multiplies on a processor, and this PyTorch uses a GPU."
        return reason, "Hide it: CUDA_VISIBLE_DEVICES=''."
    if name in QUANTISED and not engines():
        reason = "This build of PyTorch has no integer products for this processor."
        return reason, "Install PyTorch's own build for it."
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if compiles(name) and shutil.which(compiler) is None:
        reason = f"torch.compile needs a C++ compiler, and there is no {compiler}."
        return reason, "Install one, e.g. `apt install g++`."
    return None


def compiles(name: str) -> bool:
    """Whether Inductor compiles what this peer runs."""
    return name in WAYS and WAYS[name][0] == "torch_compiled"


def engines() -> set[str]:
    """The libraries of integer products that this build of PyTorch has for this processor."""
    import torch

    return set(torch.backends.quantized.supported_engines) - {"none"}


def logits(loaded: Checkpoint, name: str) -> Callable[[Sequence[int]], np.ndarray]:
    """ids → logits of every position, float32 [T V], of the module that `torch` or `torch-int8` runs. Raises
    UnavailableError."""
    import torch

    peers.require(name, loaded.source)
    from llama_lab.peers import torch_model

    module = torch_model.quantised(shared_module(loaded)) if name in QUANTISED else shared_module(loaded)

    def read(ids: Sequence[int]) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.tensor([list(ids)], device=module.device)).logits[0].float().cpu().numpy()

    return read
