"""A block of sums: n numbers times m vectors of half floats, n m vectors held in registers."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llama_jax.kernels.native.halves import floats_of_halves
from llama_jax.kernels.native.machine import F32, pointer
from llama_jax.kernels.native.vectors import FLOATS, F, every, llvm, spread


def sums(n, m):
    """(zeros() → sums; add(sums, vectors, step, numbers, stride) → sums; write(sums, to, row, column)) of n rows and m
    columns.

    add: sum i, j grows by the float32 at numbers + i stride times the 16 half floats at vectors + j step, in one
    rounding where the processor has such an instruction. write: sum i, j goes to `to` + i row + j column. Addresses and
    strides in bytes.
    """
    kind, array, i8 = types.UniTuple(FLOATS, n * m), ir.ArrayType(F, n * m), types.int64
    places = [(i, j) for i in range(n) for j in range(m)]

    def zeros(context, b, signature, given):
        return ir.Constant(array, [every(F, 0.0)] * (n * m))

    def add(context, b, signature, given):
        running, vectors, step, numbers, stride = given
        far = [b.mul(step, ir.Constant(step.type, j)) for j in range(m)]
        columns = [floats_of_halves(b, b.add(vectors, at)) for at in far]
        for i in range(n):
            at = b.add(numbers, b.mul(stride, ir.Constant(stride.type, i)))
            number = spread(b, b.load(pointer(b, at, F32), align=4), F)
            for j in range(m):
                old = b.extract_value(running, m * i + j)
                new = llvm(b, "llvm.fmuladd.v16f32", F, columns[j], number, old)
                running = b.insert_value(running, new, m * i + j)
        return running

    def write(context, b, signature, given):
        running, to, row, column = given
        for i, j in places:
            far = (b.mul(stride, ir.Constant(stride.type, k)) for stride, k in ((row, i), (column, j)))
            at = b.add(to, b.add(*far))
            b.store(b.extract_value(running, m * i + j), pointer(b, at, F), align=4)
        return context.get_dummy_value()

    return (
        intrinsic(lambda typing: (kind(), zeros)),
        intrinsic(lambda typing, running, vectors, step, numbers, stride: (kind(kind, i8, i8, i8, i8), add)),
        intrinsic(lambda typing, running, to, row, column: (types.void(kind, i8, i8, i8), write)),
    )
