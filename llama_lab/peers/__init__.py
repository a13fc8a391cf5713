"""Peers: other implementations of the same model, measured as subjects beside the placements. A leaf: nothing here is
imported before a peer is asked for.

A peer is a module of this package with two functions, however it runs:

    missing(name, model) → None if the peer can run `model` here, else (reason, remedy): a sentence each. Cheap,
        loads nothing.
    subject(loaded, name) → the peer on a loaded checkpoint as a `workload.Subject`. Raises UnavailableError if it
        turns out only then that it cannot run.

and a line in `PEERS`. A peer that cannot run is a labelled gap in the results, never a failure of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from llama_jax.plumbing.errors import UserError, near

if TYPE_CHECKING:
    from llama_jax.checkpoint import Checkpoint
    from llama_jax.config import ModelConfig
    from llama_jax.sampling import Sampler
    from llama_lab.bench.workload import Subject, Workload


@dataclass(frozen=True)
class Peer:
    """module: of this package. backend: as its trials name it. jax: its programs are JAX's, so that they can be cached
    on disk. samples: it obeys the workload's sampler; one that does not makes only greedy tokens."""

    module: str
    backend: str
    description: str
    jax: bool = False
    samples: bool = False


GREEDY_TORCH, LLAMA_CPP = partial(Peer, "torch", "torch"), partial(Peer, "llamacpp", "llama.cpp")
TORCH, FLAX = partial(GREEDY_TORCH, samples=True), partial(Peer, "flax", "flax", jax=True)
IK_LLAMA_CPP, OPENVINO = partial(Peer, "ik_llamacpp", "ik_llama.cpp"), partial(Peer, "openvino", "openvino")
PEERS: dict[str, Peer] = {
    "transformers": TORCH("transformers' `generate`, its dynamic cache"),
    "transformers+static": TORCH("transformers' `generate`, its static cache"),
    "torch": TORCH("PyTorch eager, a loop around transformers' module, dynamic cache"),
    "torch+static": TORCH("as torch, static cache"),
    "torch+nocache": TORCH("as torch, the whole text again for every token"),
    "torch-int8": TORCH("as torch, the linear layers in int8 by dynamic quantisation"),
    "torch-script": TORCH("TorchScript before and after an eager forward (historical; `torch.jit` is deprecated)"),
    "torch-script+frozen": TORCH("as torch-script, the sampler's settings frozen into its program as constants"),
    "torch-script+nocache": TORCH("as torch-script, no KV cache: the published case"),
    "torch-compile": GREEDY_TORCH("`torch.compile`, static cache"),
    "torch-compile+nocache": GREEDY_TORCH("`torch.compile`, the whole text again for every token"),
    "torch-compile+reduce-overhead": GREEDY_TORCH("`torch.compile(mode='reduce-overhead')`: CUDA graphs by Inductor"),
    "torch-compile+max-autotune": GREEDY_TORCH("`torch.compile(mode='max-autotune')`"),
    "torch-cudagraph": GREEDY_TORCH("CUDA graphs, one a prompt-length bucket, static cache"),
    "torch-cudagraph+nocache": GREEDY_TORCH("CUDA graphs over the whole text again: the published case"),
    "torch-hybrid": TORCH("a CUDA graph for the static part, TorchScript for both ends, static cache"),
    "torch-hybrid+nocache": TORCH("as torch-hybrid, no KV cache: the published case"),
    "llamacpp": LLAMA_CPP("llama.cpp, bare `llama_decode` as llama-bench measures it"),
    "llamacpp+generate": LLAMA_CPP("llama.cpp through llama-cpp-python's own generator"),
    "llamacpp+q8_0": LLAMA_CPP("as llamacpp, the same model in Q8_0, by llama.cpp's own quantiser"),
    "llamacpp+q4_0": LLAMA_CPP("as llamacpp, the same model in Q4_0: its fastest products"),
    "llamacpp+lookup": Peer("llamacpp_lookup", "llama.cpp", "as llamacpp, with drafts by prompt lookup"),
    "llamacpp+draft": Peer("llamacpp_draft", "llama.cpp", "as llamacpp, with drafts by a smaller model"),
    "ik-llamacpp": IK_LLAMA_CPP("ik_llama.cpp, bare `llama_decode` as llamacpp"),
    "ik-llamacpp+q8_0": IK_LLAMA_CPP("as ik-llamacpp, the same model in Q8_0"),
    "ik-llamacpp+q4_0": IK_LLAMA_CPP("as ik-llamacpp, the same model in Q4_0"),
    "openvino": OPENVINO("OpenVINO GenAI's `LLMPipeline` on the same GGUF file"),
    "openvino+q8_0": OPENVINO("as openvino, the same model in Q8_0"),
    "openvino+q4_0": OPENVINO("as openvino, the same model in Q4_0"),
    "ollama": Peer("ollama", "ollama", "an Ollama server, through its official client"),
    "flax-linen": FLAX("Flax Linen, `apply` not jitted: op by op"),
    "flax-linen+jit": FLAX("Flax Linen, `jax.jit` around `apply` and the greedy choice"),
    "flax-nnx": FLAX("Flax NNX, the module called un-jitted: op by op"),
    "flax-nnx+jit": FLAX("Flax NNX, `nnx.jit`"),
    "flax-nnx+split": FLAX("Flax NNX, split once, then plain `jax.jit`"),
}


TWINS = ("llama", "qwen2", "gpt2")  # families that the twins in PyTorch and Flax are written for


class UnavailableError(Exception):
    """A peer cannot run. reason and remedy: a sentence each; the remedy is a command if there is one."""

    def __init__(self, reason: str, remedy: str = ""):
        super().__init__(reason)
        self.reason, self.remedy = " ".join(reason.split()), " ".join(remedy.split())


def check_twin(config: ModelConfig, library: str) -> None:
    """Raises UnavailableError for a model without a twin."""
    if config.model_type not in TWINS or config.features:
        what = config.model_type + (f" with {', '.join(config.features)}" if config.features else "")
        raise UnavailableError(f"There is no twin of a {what} in {library}.", "Compare with llamacpp.")


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
    """The module a peer lives in. Raises UnavailableError if it cannot be imported."""
    try:
        return import_module(f"{__name__}.{get(name).module}")
    except ImportError as error:
        raise UnavailableError(
            f"{error.name or get(name).module} cannot be imported: {error}", "Run `make setup`."
        ) from error


def require(name: str, model: str) -> None:
    """Raises UnavailableError for a peer that cannot run a model here."""
    if gap := module(name).missing(name, model):
        raise UnavailableError(*gap)


def missing(names: Sequence[str], model: str, sampler: Sampler | None = None) -> list[dict]:
    """Those that cannot run a model here, or not under a sampler: {name, reason, remedy} each."""
    gaps = []
    for name in names:
        try:
            if sampler and sampler.temperature and not get(name).samples:
                raise UnavailableError(
                    "It always takes the best token and does not sample.",
                    "Measure it with greedy tokens: temperature 0.",
                )
            if sampler and sampler.repetition_penalty != 1:
                raise UnavailableError("Peers do not support a repetition penalty.", "Leave it at 1 to measure them.")
            require(name, model)
        except UnavailableError as error:
            gaps.append(dict(name=name, reason=error.reason, remedy=error.remedy))
    return gaps


def subject(loaded: Checkpoint, name: str) -> Subject:
    """A peer on a loaded checkpoint. Raises UnavailableError."""
    return module(name).subject(loaded, name)


def identity(loaded: Checkpoint, cache: str) -> dict:
    """What a trial says of a peer that runs on the checkpoint's own weights. cache: the kind of its KV cache."""
    dtype, known = loaded.params.embeddings.weight.dtype, dict(model=loaded.name, weights_hash=loaded.weights_hash)
    return known | dict(dtype=dtype.name, weight_bytes=dtype.itemsize, config=loaded.config, cache=cache)


def check_one_row(work: Workload, maker: str) -> None:
    """Raises RuntimeError for more than one row."""
    if work.batch != 1:
        raise RuntimeError(f"{maker} makes one row, {work.batch} were asked for; llamacpp takes several")


class Latest:
    """Keeps the last value, which the subjects of one process share, and its source."""

    def __init__(self):
        self.clear()

    def clear(self) -> None:
        self.source: Any = None
        self.value: Any = None

    def get(self, source: Any, make: Callable[[], Any]) -> Any:
        """The value made of this source: tuples are compared, other objects must be the same one. The old value is let
        go before a new one takes its memory."""
        same = self.source == source if isinstance(source, tuple) else self.source is source
        if self.value is None or not same:
            self.clear()
            self.value, self.source = make(), source
        return self.value
