"""Single values in memory, atomics, calls through pointers and text constants, as Numba intrinsics."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.cpu import CPUContext
from numba.extending import intrinsic

# No function is called in this process, so none of them needs machine code of its own here: any other C function stands
# for it.
CPUContext.get_executable = lambda context, library, *_: library._ensure_finalized() or [].append
JITCodeLibrary._finalize_specific = lambda library: None
# x / 0 gives what the processor gives
compiled = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)


def function(body):
    """Compile a function once for each choice of types. Numba would do so again for every constant among the
    arguments."""
    dispatcher = compiled(body)
    template = dispatcher.get_call_template
    dispatcher.get_call_template = lambda arguments, named: template(tuple(map(types.unliteral, arguments)), named)
    return dispatcher


# called from outside
entry = njit(types.int64(types.int64), error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F32, F16 = ir.FloatType(), ir.HalfType()


def pointer(builder, address, kind):
    return builder.inttoptr(address, kind.as_pointer())


def declared(builder, name, result, arguments):
    """A function that LLVM, the C library or another part of the same object file defines."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def loader(kind, result):
    @intrinsic
    def load(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.load(pointer(builder, arguments[0], kind))

        return result(types.int64), generate

    return load


def storer(kind, given):
    @intrinsic
    def store(typing, address, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], pointer(builder, arguments[0], kind))
            return context.get_dummy_value()

        return types.void(types.int64, given), generate

    return store


load_i64, load_i32, load_i8 = loader(I64, types.int64), loader(I32, types.int32), loader(I8, types.int8)
load_f32 = loader(F32, types.float32)
store_i64, store_i32, store_f32 = storer(I64, types.int64), storer(I32, types.int32), storer(F32, types.float32)


@intrinsic
def copy_i16(typing, address, source):
    """Copy two bytes from `source`."""

    def generate(context, builder, signature, arguments):
        builder.store(builder.load(pointer(builder, arguments[1], I16)), pointer(builder, arguments[0], I16))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def load_shared(typing, address):
    """An int64 that another thread may have written, and with it all that was written before.

    In one order with every `fetch_add`, which acquiring alone would not promise: see `team.enter` and `team.dismiss`.
    """

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(pointer(builder, arguments[0], I64), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def fetch_add(typing, address, value):
    """Add to an int64 that threads share; returns what it was."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", pointer(builder, arguments[0], I64), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def fetch_or(typing, address, bits):
    """Set bits of an int64 that threads share; returns what it was."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("or", pointer(builder, arguments[0], I64), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def square_root(typing, value):
    """The square root of a float32, as one instruction."""

    def generate(context, builder, signature, arguments):
        return builder.call(declared(builder, "llvm.sqrt.f32", F32, [F32]), arguments)

    return types.float32(types.float32), generate


@intrinsic
def pause(typing):
    """Tell the core that this thread spins; nothing where the architecture has no such hint that we know."""

    def generate(context, builder, signature, arguments):
        if builder.module.triple.startswith(("x86_64", "i686")):
            builder.call(declared(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        return context.get_dummy_value()

    return types.void(), generate


def c_function(name, result, *arguments):
    """A function of the C library, all of whose arguments are int64 or pointers; result int64, int32 or None."""
    kinds = {types.int64: I64, types.int32: I32, types.void: ir.VoidType()}

    def body(context, builder, signature, given):
        value = builder.call(declared(builder, name, kinds[result], [I64] * len(arguments)), given)
        return context.get_dummy_value() if result is types.void else value

    if arguments:

        @intrinsic
        def call(typing, argument):
            return result(types.int64), body
    else:

        @intrinsic
        def call(typing):
            return result(), body

    return call


malloc = c_function("malloc", types.int64, "bytes")
free = c_function("free", types.void, "address")
sched_yield = c_function("sched_yield", types.int32)


@intrinsic
def call(typing, function, argument):
    """int64 function(int64) through its address."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(I64, [I64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])

    return types.int64(types.int64, types.int64), generate


def address_of(name):
    """An intrinsic that gives the address of `name`, an entry point of this very object file."""

    @intrinsic
    def address(typing):
        def generate(context, builder, signature, arguments):
            return builder.ptrtoint(declared(builder, name, I64, [I64]), I64)

        return types.int64(), generate

    return address


def text(words):
    """An intrinsic that gives the address of a constant C string."""

    @intrinsic
    def constant(typing):
        def generate(context, builder, signature, arguments):
            return builder.ptrtoint(context.insert_const_string(builder.module, words), I64)

        return types.int64(), generate

    return constant


def stack(size):
    """An intrinsic that gives the address of `size` bytes on the stack, aligned to 64, the same ones in every turn of a
    loop."""

    @intrinsic
    def room(typing):
        def generate(context, builder, signature, arguments):
            slot = cgutils.alloca_once(builder, ir.ArrayType(I8, size))
            slot.align = 64
            return builder.ptrtoint(slot, I64)

        return types.int64(), generate

    return room
