"""The kernels' object code: compiled once, in a separate process, kept in the user's cache folder, and registered with
XLA.

The name of an entry (`plumbing.entries`) identifies its source, libraries and target. A damaged entry is made again. If
nothing can be written, or if others could have written there, no entry is read: every process compiles for itself, and
says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import jax
import llvmlite.binding as llvm

from llama_jax.kernels.isa import Target, target
from llama_jax.plumbing import entries, paths
from llama_jax.plumbing.errors import UserError

COMPILER = "llama_jax.kernels.native.compiler"
LIMIT = 300  # seconds
KEPT = 8  # entries of an instruction set
LARGEST = 64 << 20  # bytes of an entry; it has less than one million
SOURCES = Path(__file__).parent / "native"
ENTRIES = ("llama_jax_gemv", "llama_jax_fused")
MORE = "llama_jax_fused_more"  # in object code of its own, made when a model first needs it
# else two threads that trace at once would both compile, and XLA refuses a second registration
ONE_AT_A_TIME = threading.Lock()


class Library:
    """Loaded object code. It stays loaded for the life of the process, because XLA keeps the addresses."""

    loaded: ClassVar[list[Library]] = []

    def __init__(self, code: bytes, machine: llvm.TargetMachine):
        Library.loaded.append(self)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()

    def address(self, name: str) -> int:
        return self.engine.get_function_address(name)


@functools.cache
def library() -> Library:
    """The kernels, ready to call: from the cache, or compiled now (some seconds). Raises UserError if that fails."""
    return loaded(target())


@functools.cache
def library_of_more() -> Library:
    """As `library`, for the fused step of families with features beyond Llama and Qwen2."""
    return loaded(replace(target(), more=True))


def loaded(where: Target) -> Library:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=where.cpu, features=where.features, jit=True
    )
    return Library(code(where), machine)


def there() -> bool:
    """Whether the kernels are compiled already. Raises UserError as `isa.target`."""
    return bool(library.cache_info().currsize) or kept(entry(target())) is not None


def called(name: str) -> Callable:
    """An entry point to call from Python with the address of its parameters; other threads keep running. Raises
    UserError if it cannot be compiled."""
    with ONE_AT_A_TIME:
        return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library().address(name))


def registered(name: str) -> str:
    """Register an entry point of the library with XLA under its own name, once. Raises UserError if it cannot be
    compiled."""
    with ONE_AT_A_TIME:
        return register(name)


@functools.cache
def register(name: str) -> str:
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    address = (library_of_more() if name == MORE else library()).address(name)
    jax.ffi.register_ffi_target(name, capsule(address, None, None), platform="cpu", api_version=1)
    return name


def code(where: Target) -> bytes:
    """The object file for a target."""
    path = entry(where)
    try:
        paths.private(path.parent.name)
    except UserError as error:
        print(f"warning: the kernels are compiled for this process alone: {error}", file=sys.stderr)
        return compiled(where)
    if (content := kept(path)) is not None:
        return content
    made = compiled(where)
    with contextlib.suppress(UserError):
        entries.write(path, made)
        entries.tidy(path.parent, f"{where.isa}-*.o", KEPT)  # other versions' too: a checkout or two stay fast
    return made


def kept(path: Path) -> bytes | None:
    """The object file of an entry; None if it is missing or damaged."""
    return entries.read(path, LARGEST)


def entry(where: Target) -> Path:
    """The cache file for a target: each source, library and processor has its own."""
    digest = hashlib.sha256(
        repr((where, sys.version_info[:2], *map(importlib.metadata.version, ("numba", "llvmlite")))).encode()
    )
    for path in sorted(SOURCES.glob("*.py")):
        digest.update(path.read_bytes())
    return paths.cache("kernels", f"{where.isa}-{digest.hexdigest()[:32]}.o")


def compiled(where: Target) -> bytes:
    """Compile in a child process. Raises UserError with its last words."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= dict(
        NUMBA_CPU_NAME=where.cpu, NUMBA_CPU_FEATURES=where.features, LLAMA_JAX_KERNELS_FOR=where.isa, NUMBA_OPT="0"
    )
    environment["LLAMA_JAX_KERNELS_MORE"] = str(int(where.more))
    environment["PYTHONPATH"] = os.pathsep.join([str(paths.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", COMPILER]  # -P: a file numba.py in the working directory is none of ours
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"The kernels were not compiled within {LIMIT} s; is the machine overloaded?") from None
    except OSError as error:
        raise UserError(
            f"The kernels could not be compiled: cannot start {sys.executable or 'Python'}: {error.strerror}."
        ) from None
    if done.returncode or not done.stdout:
        errors = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise UserError(f"The kernels could not be compiled for {where.isa}: {errors[-1]}")
    return done.stdout
