"""XLA's typed foreign function interface from the callee's side: the call frame, its buffers and its thread pool.

Offsets in bytes follow `xla/ffi/api/c_api.h` (in `jax.ffi.include_dir()`; a test reads that file and compares).
"""

from __future__ import annotations

from llama_jax.kernels.native.machine import call, function, load_f32, load_i32, load_i64, stack, store_i32, store_i64

API_MAJOR, API_MINOR = 0, 3
U8, F16, F32, S32, S64 = 6, 10, 11, 4, 5  # XLA_FFI_DataType
# XLA_FFI_ExecutionStage, _Extension_Type, _AttrType, _Error_Code
EXECUTE, METADATA, SCALAR, INVALID_ARGUMENT = (3, 1, 3, 3)
FRAME = dict(extension_start=8, api=16, ctx=24, stage=32, args=40, rets=80, attrs=120)
TABLE = dict(size=16, types=24, args=32)  # fields of XLA_FFI_Args and XLA_FFI_Rets
ATTRS = dict(size=16, types=24, names=32, attrs=40)
BUFFER = dict(dtype=16, data=24, rank=32, dims=40)
API = dict(
    XLA_FFI_Error_Create=48,
    XLA_FFI_Error_Destroy=64,
    XLA_FFI_ThreadPool_Schedule=136,
    XLA_FFI_ThreadPool_NumThreads=144,
)
EXTENSION = dict(type=8, next=16, metadata=24)
VERSION = dict(major_version=16, minor_version=20)  # fields of XLA_FFI_Api_Version, at 8 in XLA_FFI_Metadata

_API, _CTX, _STAGE, _EXTENSION = FRAME["api"], FRAME["ctx"], FRAME["stage"], FRAME["extension_start"]
_ARGS, _RETS, _ATTRS = FRAME["args"] + TABLE["args"], FRAME["rets"] + TABLE["args"], FRAME["attrs"] + ATTRS["attrs"]
_ARG_COUNT, _RET_COUNT, _ATTR_COUNT = (
    FRAME["args"] + TABLE["size"],
    FRAME["rets"] + TABLE["size"],
    FRAME["attrs"] + ATTRS["size"],
)
_ATTR_TYPES = FRAME["attrs"] + ATTRS["types"]
_DTYPE, _DATA, _RANK, _DIMS = (BUFFER[name] for name in ("dtype", "data", "rank", "dims"))
DESCRIPTION = _DIMS + 8 + 3 * 8  # bytes
_CREATE, _DESTROY = API["XLA_FFI_Error_Create"], API["XLA_FFI_Error_Destroy"]
_SCHEDULE, _THREADS = API["XLA_FFI_ThreadPool_Schedule"], API["XLA_FFI_ThreadPool_NumThreads"]
_TYPE, _NEXT, _METADATA = EXTENSION["type"], EXTENSION["next"], EXTENSION["metadata"]
_MAJOR, _MINOR = 8 + VERSION["major_version"], 8 + VERSION["minor_version"]
_room32, _room40, _room8 = stack(32), stack(40), stack(8)


@function
def executes(frame):
    """Whether this call is to compute. Otherwise it only asks for our version of the interface, and is answered
    here."""
    extension = load_i64(frame + _EXTENSION)
    while extension != 0:
        if load_i32(extension + _TYPE) == METADATA:
            metadata = load_i64(extension + _METADATA)
            store_i32(metadata + _MAJOR, API_MAJOR)
            store_i32(metadata + _MINOR, API_MINOR)
            return False
        extension = load_i64(extension + _NEXT)
    return load_i32(frame + _STAGE) == EXECUTE


@function
def failure(frame, message):
    """An error for XLA to raise as an exception; message: address of a C string, which is copied."""
    request = _room32()
    store_i64(request, 32)
    store_i64(request + 8, 0)
    store_i64(request + 16, message)
    store_i64(request + 24, INVALID_ARGUMENT)
    return call(load_i64(load_i64(frame + _API) + _CREATE), request)


@function
def counts(frame, arguments, results, attributes):
    """Whether the call has as many of each."""
    return (
        load_i64(frame + _ARG_COUNT) == arguments
        and load_i64(frame + _RET_COUNT) == results
        and load_i64(frame + _ATTR_COUNT) == attributes
    )


@function
def argument_count(frame):
    return load_i64(frame + _ARG_COUNT)


@function
def argument(frame, i):
    """XLA_FFI_Buffer of the i-th operand."""
    return load_i64(load_i64(frame + _ARGS) + 8 * i)


@function
def result(frame, i):
    """XLA_FFI_Buffer of the i-th result."""
    return load_i64(load_i64(frame + _RETS) + 8 * i)


@function
def is_scalar(frame, i, dtype):
    """Whether the i-th attribute, in order of their names, is a number of this type. XLA_FFI_Scalar is {dtype,
    value}."""
    kind = load_i32(load_i64(frame + _ATTR_TYPES) + 4 * i)
    return kind == SCALAR and load_i32(load_i64(load_i64(frame + _ATTRS) + 8 * i)) == dtype


@function
def integer(frame, i):
    """The i-th attribute as int64."""
    return load_i64(load_i64(load_i64(load_i64(frame + _ATTRS) + 8 * i) + 8))


@function
def number(frame, i):
    """The i-th attribute as float32."""
    return load_f32(load_i64(load_i64(load_i64(frame + _ATTRS) + 8 * i) + 8))


@function
def data(buffer):
    return load_i64(buffer + _DATA)


@function
def size(buffer, axis):
    return load_i64(load_i64(buffer + _DIMS) + 8 * axis)


@function
def describe(at, address, groups, blocks, kind):
    """Write at `at` what `data` and `size` read of a buffer: for a weight that is a part of one. Needs DESCRIPTION
    bytes."""
    store_i64(at + _DATA, address)
    store_i64(at + _DIMS, at + _DIMS + 8)
    store_i64(at + _DIMS + 8, groups)
    store_i64(at + _DIMS + 16, blocks)
    store_i64(at + _DIMS + 24, kind)


@function
def fits(buffer, dtype, rank, alignment):
    """Whether a buffer has this type and rank, and stands at an address that loads of this type may use."""
    return (
        load_i32(buffer + _DTYPE) == dtype
        and load_i64(buffer + _RANK) == rank
        and load_i64(buffer + _DATA) % alignment == 0
    )


@function
def pool_threads(frame):
    """Threads of XLA's own intra-op pool; 1 where it has none for us."""
    request, threads = _room32(), _room8()
    store_i64(threads, 0)
    store_i64(request, 32)
    store_i64(request + 8, 0)
    store_i64(request + 16, load_i64(frame + _CTX))
    store_i64(request + 24, threads)
    if dropped(frame, call(load_i64(load_i64(frame + _API) + _THREADS), request)):
        return 1
    return max(load_i64(threads), 1)


@function
def scheduled(frame, task, state):
    """Ask the pool to run task(state) later; whether it will."""
    request = _room40()
    store_i64(request, 40)
    store_i64(request + 8, 0)
    store_i64(request + 16, load_i64(frame + _CTX))
    store_i64(request + 24, task)
    store_i64(request + 32, state)
    return not dropped(frame, call(load_i64(load_i64(frame + _API) + _SCHEDULE), request))


@function
def dropped(frame, error):
    """Whether there was an error, which is then freed; the caller continues alone."""
    if error == 0:
        return False
    request = _room32()
    store_i64(request, 24)
    store_i64(request + 8, 0)
    store_i64(request + 16, error)
    call(load_i64(load_i64(frame + _API) + _DESTROY), request)
    return True
