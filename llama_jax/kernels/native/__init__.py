"""The code that is compiled: Numba code on raw memory and vectors. Imported only by the process that compiles it
(`compiler`).

machine    single values in memory, atomics, calls through pointers, text constants
vectors    16 floats, 16 integers or 64 bytes as one value, for the instruction set of the compiling process; lanes,
           octets and halves, operations on floats and integers, on bytes and on half floats; sums, a block of float
           sums in registers
ffi        XLA's call frame: buffers, their checks, errors, its thread pool
team       threads that share the parts of a piece of work
products   activations rounded to int8; quantised matrices times one row of them or several
attention  attention of new tokens over cached keys and values
pack       a file's blocks into groups of 16 rows, on their way into memory
gemv       the handler of `kernels.gemv`
fused      the handler of `kernels.fused`; operands, what it is given; layout, what it keeps; step, its phases; heads,
           those of attention; vocabulary, that of the head; rows, what several of them do; more, what it is given
           of families that have more than Llama and Qwen2, features, what it does with that

The code has no exceptions and no Python objects; addresses are int64, and none of this process is in it. The result is
plain object code that any later process can load.
"""
