"""Vectors as values: 16 floats, 16 integers, 64 bytes or 32 short integers (four or two for each of 16 lanes), and how
an operation on them is made.

Vectors are logical ones of 16 lanes, which LLVM splits where registers are narrower. `lanes`, `octets` and `halves`
have the operations.
"""

from __future__ import annotations

import os

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from llama_jax.kernels.native.machine import F16, F32, I8, I16, I32, declared, pointer

# which instruction set the code is for; `llama_jax.kernels.build` sets it together with Numba's own target
ISA = os.environ.get("LLAMA_JAX_KERNELS_FOR", "portable")
# whether it is for families that have more than Llama and Qwen2 (`features`), whose own code has nothing of that
MORE = os.environ.get("LLAMA_JAX_KERNELS_MORE") == "1"
LANES = 16
F, I, B, H, S, P = (  # noqa: E741
    ir.VectorType(kind, n) for kind, n in ((F32, 16), (I32, 16), (I8, 64), (F16, 16), (I16, 16), (I16, 32))
)


class Vector(types.Type):
    def __init__(self, name, llvm):
        self.llvm = llvm
        super().__init__(name=name)


@register_model(Vector)
class VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.llvm)


FLOATS, INTEGERS, BYTES = Vector("floats16", F), Vector("integers16", I), Vector("bytes64", B)
PAIRS = Vector("pairs32", P)  # two 16-bit integers for each of 16 lanes


def operation(result, *arguments):
    """Make an intrinsic of a function (builder, *LLVM values) → LLVM value, None for a store."""

    def make(emit):
        def generate(context, builder, signature, given):
            value = emit(builder, *given)
            return context.get_dummy_value() if value is None else value

        return fixed(result(*arguments), generate)

    return make


def fixed(signature, generate):
    """An intrinsic of this one signature; Numba wants its arity spelled out."""
    makers = (
        lambda: intrinsic(lambda typing: (signature, generate)),
        lambda: intrinsic(lambda typing, a: (signature, generate)),
        lambda: intrinsic(lambda typing, a, b: (signature, generate)),
        lambda: intrinsic(lambda typing, a, b, c: (signature, generate)),
    )
    return makers[len(signature.args)]()


def spread(builder, value, kind):
    """One value in every lane."""
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count))


def every(kind, value):
    return ir.Constant(kind, [value] * kind.count)


def vector_load(builder, address, kind, align):
    return builder.load(pointer(builder, address, kind), align=align)


def llvm(builder, name, result, *values):
    return builder.call(declared(builder, name, result, [v.type for v in values]), values)
