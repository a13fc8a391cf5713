"""ik_llama.cpp (https://github.com/ikawrakow/ik_llama.cpp), a fork of llama.cpp with its own products, on the GGUF file
that a checkpoint came from, through ik-llama-cpp-python. `make peers` builds it for this machine: the wheels on PyPI
are compiled for AVX2, and without AVX-512 and VNNI it uses other, slower products.

ik-llamacpp       bare `llama_decode`, called as llama.cpp is (`llamacpp.py`): flash attention, an f16 cache
ik-llamacpp+q8_0  the same, on the same model in Q8_0; +q4_0: in Q4_0 (`requantised.py`)

Its package has its own name and libraries, so both can be measured in one process. At least in PyPI's release, matrices
in Q4_1 are multiplied wrongly for 32 or more tokens at once: the logits are unrelated to those of 31. Such a file is
read in pieces of 31 tokens, which costs some of its lead in prompts. Its attention kills the process for several rows,
so it gets one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from llama_jax import checkpoint, generate
from llama_lab import peers
from llama_lab.bench.workload import Subject
from llama_lab.peers import UnavailableError, llamacpp, requantised

BACKEND = "ik_llama.cpp"
PACKAGE, MODULE = "ik-llama-cpp-python", "ik_llama_cpp"
F16 = 1  # ggml's number of the type
UNSOUND, PIECE = "q4_1", 31  # whose products are wrong for more tokens than that
MODEL = peers.Latest()  # the one opened last


def missing(name: str, model: str) -> tuple[str, str] | None:
    """It runs GGUF files wherever its Python package is installed."""
    if find_spec(MODULE) is None:
        return f"{PACKAGE} is not installed.", "Run `make peers`, which builds it for this machine."
    return llamacpp.no_file(model, BACKEND)


def subject(loaded: checkpoint.Checkpoint, name: str) -> Subject:
    """ik_llama.cpp as a subject of the protocol. Raises UnavailableError if it cannot read the file."""
    return llamacpp.on_file(loaded, name, lambda path: llamacpp.Bare(opened(path), Context, BACKEND))


def logits(loaded: checkpoint.Checkpoint, name: str = "ik-llamacpp") -> Callable[[Sequence[int]], np.ndarray]:
    """ids → its logits of every position, float32 [T V], as the measured peer computes them. Raises
    UnavailableError."""
    model = opened(llamacpp.weights_of(loaded, name))
    return lambda ids: llamacpp.teacher_forced(Context(model, generate.bucket(len(ids)), every=True), ids)


@functools.cache
def library():
    """Its C interface, with its log going only to `llamacpp.heard`."""
    try:
        for needed in (Path(find_spec(MODULE).origin).parent / "lib").glob("libggml.*"):
            ctypes.CDLL(str(needed))  # built from source its libraries do not say that they lie side by side
        from ik_llama_cpp import _ctypes_api as ik
    except (ImportError, OSError, AttributeError) as error:  # no such instructions, no such library, another version
        raise UnavailableError(f"{PACKAGE} cannot be loaded: {error}", "Run `make peers` again.") from error
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(llamacpp.listen)
    llamacpp.CALLBACKS.append(callback)
    ik._lib.llama_log_set(callback, None)
    ik.llama_backend_init()
    return ik


def opened(path: Path) -> Model:
    """A file as its model; the one opened last is kept. Raises UnavailableError."""
    ik = library()
    return MODEL.get((str(path), path.stat().st_mtime_ns), lambda: Model(ik, path, ik.llama_free_model))


def instructions() -> str:
    """The features that it was compiled for, in its own words: `AVX512_VNNI = 1 | …`."""
    print_system_info = library()._lib.llama_print_system_info
    print_system_info.restype = ctypes.c_char_p
    return print_system_info().decode(errors="replace")


class Model(llamacpp.Model):
    """llama.cpp's, and how many tokens its products may be given at once."""

    reader, remedy = BACKEND, requantised.REMEDY

    def __init__(self, ik, path: Path, free: Callable):
        super().__init__(ik, path, free)
        self.piece = PIECE if UNSOUND in llamacpp.kinds(path) else llamacpp.MICRO_BATCH


class Context(llamacpp.Context):
    """llama.cpp's, with the settings and the names of the fork."""

    def attend(self, settings, every: bool, exact: bool) -> None:
        settings.flash_attn, settings.type_k, settings.type_v = True, F16, F16
        settings.n_ubatch = self.model.piece

    def clear(self) -> None:
        """Forget every token."""
        self.llama.llama_kv_cache_clear(self.pointer)
