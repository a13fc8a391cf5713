"""Kernels as XLA knows them."""

from __future__ import annotations

import ctypes
import functools
import threading

import jax

from llama_jax.kernels import build

ENTRIES = ("llama_jax_gemv", "llama_jax_fused")
# else two threads that trace at once would both compile, and XLA refuses a second registration
ONE_AT_A_TIME = threading.Lock()


def registered(name: str) -> str:
    """Register an entry point of the library with XLA under its own name, once. Raises UserError where it cannot be
    compiled."""
    with ONE_AT_A_TIME:
        return register(name)


@functools.cache
def register(name: str) -> str:
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    jax.ffi.register_ffi_target(name, capsule(build.library().address(name), None, None), platform="cpu", api_version=1)
    return name
