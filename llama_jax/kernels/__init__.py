"""Compiled CPU kernels, which XLA calls from inside a jitted program like its own operations.

isa      which instruction set
build    compile on first use, keep the object code
gemv     products with quantised weights
fused    tokens through the whole model as one operation
grouping a file's blocks into groups of 16 rows
packed   the weights of all layers in a few arrays, as fused takes them
native   what is compiled

They are typed FFI handlers (https://openxla.org/xla/custom_call) written in Python, compiled by Numba: no C++ compiler,
nothing to build at install time.
"""

from __future__ import annotations

import importlib.util
import os
import sys

import jax

from llama_jax.plumbing.errors import UserError

LIBRARIES = ("numba", "llvmlite")


def missing() -> str | None:
    """Why there are no kernels here, one sentence and what to do about it; None if there are."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed, which compiles them; run `make setup`."
    if not hasattr(os, "sched_yield") or sys.byteorder != "little" or sys.maxsize < 2**32:
        return "They need a 64-bit, little-endian Unix; use a placement without kernels."
    if jax.default_backend() != "cpu":
        return f"They are for CPUs, and JAX computes on {jax.default_backend()} here; set JAX_PLATFORMS=cpu."
    return None


def check() -> None:
    """Raises UserError, one line, if there are no kernels, or if this processor lacks the instruction set that
    `LLAMA_JAX_ISA` names."""
    if why := missing():
        raise UserError(f"There are no compiled kernels here. {why}")
    from llama_jax.kernels import isa  # here: it needs what may be missing

    isa.target()


def status() -> dict:
    """What multiplies quantised blocks here, as plain values: {isa, description, cpu, compiled, reason}.

    compiled: whether its object code is in the cache. reason: why there are no kernels and only XLA's own operations
    remain, otherwise None.
    """
    try:
        check()
    except UserError as error:
        return dict(isa=None, description="XLA's own operations", cpu=None, compiled=False, reason=str(error))
    from llama_jax.kernels import build, isa

    where = isa.target()
    return dict(
        isa=where.isa,
        description=isa.DESCRIPTIONS[where.isa],
        cpu=where.cpu,
        compiled=build.kept(build.entry(where)) is not None,
        reason=None,
    )
