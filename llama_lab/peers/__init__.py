"""Peers: other implementations of the same model, measured as subjects beside the placements. A leaf: nothing here is
imported before a peer is asked for.

A peer lives in a module of this package with two functions, whatever it takes to run it:

    missing(name, model) → None where the peer can run `model` here, else (reason, remedy): a sentence each. Cheap,
        loads nothing.
    subject(loaded, name) → the peer on a loaded checkpoint as a `workload.Subject`. Raises UnavailableError where it
        turns out only then that it cannot run.

and a line in `PEERS`. One that cannot run is a labelled gap in the results, never a failure of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from llama_jax.plumbing.errors import UserError, near

if TYPE_CHECKING:
    from llama_jax.checkpoint import Checkpoint
    from llama_jax.sampling import Sampler
    from llama_lab.bench.workload import Subject


@dataclass(frozen=True)
class Peer:
    """module: of this package. backend: as its trials name it. jax: its programs are JAX's, so that they can be cached
    on disk. samples: it heeds the workload's sampler; one that does not makes greedy tokens alone."""

    module: str
    backend: str
    description: str
    jax: bool = False
    samples: bool = False


PEERS: dict[str, Peer] = {
    "transformers": Peer("torch", "torch", "transformers' `generate`, its dynamic cache", samples=True),
    "transformers+static": Peer("torch", "torch", "transformers' `generate`, its static cache", samples=True),
    "torch": Peer("torch", "torch", "PyTorch eager, a loop around transformers' module, dynamic cache", samples=True),
    "torch+static": Peer("torch", "torch", "as torch, static cache", samples=True),
    "torch+nocache": Peer("torch", "torch", "as torch, the whole text again for every token", samples=True),
    "torch-int8": Peer("torch", "torch", "as torch, the linear layers in int8 by dynamic quantisation", samples=True),
    "torch-script": Peer(
        "torch",
        "torch",
        "TorchScript before and after an eager forward (historical; `torch.jit` is deprecated)",
        samples=True,
    ),
    "torch-script+nocache": Peer("torch", "torch", "as torch-script, no KV cache: the published case", samples=True),
    "torch-compile": Peer("torch", "torch", "`torch.compile`, static cache"),
    "torch-compile+nocache": Peer("torch", "torch", "`torch.compile`, the whole text again for every token"),
    "torch-compile+reduce-overhead": Peer(
        "torch", "torch", "`torch.compile(mode='reduce-overhead')`: CUDA graphs by Inductor"
    ),
    "torch-compile+max-autotune": Peer("torch", "torch", "`torch.compile(mode='max-autotune')`"),
    "torch-cudagraph": Peer("torch", "torch", "CUDA graphs, one a prompt-length bucket, static cache"),
    "torch-cudagraph+nocache": Peer("torch", "torch", "CUDA graphs over the whole text again: the published case"),
    "torch-hybrid": Peer(
        "torch", "torch", "a CUDA graph for the static part, TorchScript for both ends, static cache", samples=True
    ),
    "torch-hybrid+nocache": Peer("torch", "torch", "as torch-hybrid, no KV cache: the published case", samples=True),
    "llamacpp": Peer("llamacpp", "llama.cpp", "llama.cpp, bare `llama_decode` as llama-bench measures it"),
    "llamacpp+generate": Peer("llamacpp", "llama.cpp", "llama.cpp through llama-cpp-python's own generator"),
    "llamacpp+q8_0": Peer("llamacpp", "llama.cpp", "as llamacpp, the same model in Q8_0, by llama.cpp's own quantiser"),
    "llamacpp+q4_0": Peer("llamacpp", "llama.cpp", "as llamacpp, the same model in Q4_0: its fastest products"),
    "llamacpp+lookup": Peer("llamacpp_lookup", "llama.cpp", "as llamacpp, with drafts by prompt lookup"),
    "ik-llamacpp": Peer("ik_llamacpp", "ik_llama.cpp", "ik_llama.cpp, bare `llama_decode` as llamacpp"),
    "ik-llamacpp+q8_0": Peer("ik_llamacpp", "ik_llama.cpp", "as ik-llamacpp, the same model in Q8_0"),
    "ik-llamacpp+q4_0": Peer("ik_llamacpp", "ik_llama.cpp", "as ik-llamacpp, the same model in Q4_0"),
    "openvino": Peer("openvino", "openvino", "OpenVINO GenAI's `LLMPipeline` on the same GGUF file"),
    "openvino+q8_0": Peer("openvino", "openvino", "as openvino, the same model in Q8_0"),
    "openvino+q4_0": Peer("openvino", "openvino", "as openvino, the same model in Q4_0"),
    "ollama": Peer("ollama", "ollama", "an Ollama server, through its official client"),
    "flax-linen": Peer("flax", "flax", "Flax Linen, `apply` not jitted: op by op", jax=True),
    "flax-linen+jit": Peer("flax", "flax", "Flax Linen, `jax.jit` around `apply` and the greedy choice", jax=True),
    "flax-nnx": Peer("flax", "flax", "Flax NNX, the module called un-jitted: op by op", jax=True),
    "flax-nnx+jit": Peer("flax", "flax", "Flax NNX, `nnx.jit`", jax=True),
    "flax-nnx+split": Peer("flax", "flax", "Flax NNX, split once, then plain `jax.jit`", jax=True),
}


GREEDILY = "Measure it with greedy tokens: temperature 0."


class UnavailableError(Exception):
    """A peer cannot run. reason and remedy: a sentence each; the remedy is a command wherever there is one."""

    def __init__(self, reason: str, remedy: str = ""):
        super().__init__(reason)
        self.reason, self.remedy = " ".join(reason.split()), " ".join(remedy.split())


def get(name: str) -> Peer:
    """A peer by its name. Raises UserError for an unknown one."""
    if name not in PEERS:
        raise UserError(f"No such peer: {name!r}.{near(name, PEERS)} `llama-jax doctor` says which run here.")
    return PEERS[name]


def check(names: Sequence[str]) -> None:
    """Raises UserError for a peer that does not exist or is named twice."""
    for name in names:
        get(name)
    if len(set(names)) != len(names):
        raise UserError(f"A peer is named twice: {', '.join(names)}.")


def module(name: str) -> ModuleType:
    """The module a peer lives in. Raises UnavailableError where it cannot be imported."""
    try:
        return import_module(f"{__name__}.{get(name).module}")
    except ImportError as error:
        raise UnavailableError(
            f"{error.name or get(name).module} cannot be imported: {error}", "Run `make setup`."
        ) from error


def missing(names: Sequence[str], model: str, sampler: Sampler | None = None) -> list[dict]:
    """Those that cannot run a model here, or not under a sampler: {name, reason, remedy} each."""
    gaps = []
    for name in names:
        try:
            if sampler and sampler.temperature and not get(name).samples:
                raise UnavailableError("It chooses the best token and knows no sampler.", GREEDILY)
            if sampler and sampler.repetition_penalty != 1:
                raise UnavailableError("Peers know no repetition penalty.", "Leave it at 1 to measure them.")
            if gap := module(name).missing(name, model):
                raise UnavailableError(*gap)
        except UnavailableError as error:
            gaps.append(dict(name=name, reason=error.reason, remedy=error.remedy))
    return gaps


def subject(loaded: Checkpoint, name: str) -> Subject:
    """A peer on a loaded checkpoint. Raises UnavailableError."""
    return module(name).subject(loaded, name)
