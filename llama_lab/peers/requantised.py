"""A GGUF file's model with its matrices in another type, made by llama.cpp's quantiser and kept in the user's cache.

The quantiser runs in its own process: ggml ends the process where it meets what it did not expect, and the memory
it takes is free again before anything is measured. Its result depends on the file, the type and its version alone, so
two processes that make the same file at once do no harm. A file in the cache is used only with the SHA-256 it was made
with; a damaged one is made again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from llama_jax.checkpoint.source import hash_files
from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab.peers import UnavailableError

TYPES = ("q8_0", "q4_0")  # Q4_0 is what ggml repacks for its fastest products when it loads a file
FILE_TYPES = {  # type of block: what llama.cpp calls a file whose matrices have it
    "f32": "ALL_F32", "q3_k": "MOSTLY_Q3_K_S", "q4_k": "MOSTLY_Q4_K_S", "q5_k": "MOSTLY_Q5_K_S",
    "mxfp4": "MOSTLY_MXFP4_MOE",
} | {
    kind: f"MOSTLY_{kind.upper()}"
    for kind in ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q6_k", "iq4_nl", "iq4_xs")
}  # fmt: skip
LIMIT_S = 3600
REMEDY = "Leave the peer out, or convert the model with llama.cpp's own tools."


def obtain(path: Path, digest: str, kind: str, threads: int, every: bool = False) -> Path:
    """The file whose SHA-256 is `digest`, in `kind` (of FILE_TYPES), from the cache or made now.

    every: all matrices in that type; by default the quantiser keeps some in more bits, above all the vocabulary's.
    Matrices that are already quantised are quantised again: what the file has lost stays lost, and a coarser type loses
    more.
    Raises UnavailableError if the quantiser fails, with its last words, or the cache cannot be written.
    """
    version = metadata.version("llama-cpp-python")
    made = paths.cache("requantised", f"{digest[:16]}-{kind}{'-every' * every}-{version}.gguf")
    known = made.with_suffix(".sha256")
    with contextlib.suppress(OSError, UnicodeDecodeError):  # it is there, and what it was when it was made
        if known.read_text() == hash_files([made]):
            return made
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            fresh = Path(folder) / made.name
            quantise(path, fresh, kind, threads, every)
            made_hash = hash_files([fresh])
            os.replace(fresh, made)
        files.write(known, made_hash)  # last: it says that the file beside it is whole
    except (OSError, UserError) as error:
        raise UnavailableError(
            f"{made.parent} cannot be written: {error}", "Set LLAMA_JAX_CACHE to a folder that can."
        ) from error
    return made


def quantise(source: Path, target: Path, kind: str, threads: int, every: bool = False) -> None:
    """The quantiser in its own process. Raises UnavailableError with its last lines."""
    command = [sys.executable, "-c", CHILD, str(source), str(target), FILE_TYPES[kind], str(threads), str(int(every))]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"llama.cpp's quantiser took more than {LIMIT_S} s.", REMEDY) from None
    if ended.returncode or not target.is_file():
        lines = [line.strip() for line in (ended.stderr + ended.stdout).splitlines() if line.strip()]
        reason = f"llama.cpp's quantiser made no {kind} of {source}: {'; '.join(lines[-2:]) or 'it does not say why'}"
        raise UnavailableError(reason, REMEDY)


# llama_cpp is all that it imports: this package would bring JAX along
CHILD = """import ctypes, sys
import llama_cpp
source, target, kind, threads, every = sys.argv[1:]
settings = llama_cpp.llama_model_quantize_default_params()
settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{kind}")
settings.allow_requantize, settings.nthread, settings.pure = True, int(threads), bool(int(every))
sys.exit(bool(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(settings))))"""
