"""The call frame as XLA's own header describes it, and frames that no XLA would send: misaligned, of another stage,
without a pool."""

import ctypes
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from llama_jax.kernels import build
from llama_jax.kernels.native import ffi
from tests.kernels.products import reference_product
from tests.kernels.test_gemv import weight

HEADER = "\n".join(
    line.split("//")[0] for line in (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text().splitlines()
)


def enumerations():
    return {name: int(value) for name, value in re.findall(r"(XLA_FFI_\w+) = (\d+)", HEADER)}


def structures():
    """Structure: [(type, field)], from the header's text."""
    fields = {}
    for name, body in re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\n\}", HEADER, re.DOTALL):
        body = re.sub(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", r"\1* \1", body)
        body = re.sub(r"void \(\*(\w+)\)\(.*?\)", r"void* \1", body)
        stripped = filter(None, map(str.strip, body.split(";")))
        fields[name] = [re.match(r"(.*?)\s*(\w+)$", field).groups() for field in stripped]
    return fields


def layout(name, known):
    """{field: offset} and the size of a structure, as C lays it out on a 64-bit machine."""
    offsets, at, widest = {}, 0, 1
    for kind, field in known[name]:
        size, align = extent(kind, known)
        at = -(-at // align) * align
        offsets[field], at, widest = at, at + size, max(widest, align)
    return offsets, -(-at // widest) * widest, widest


def extent(kind, known):
    """(bytes, alignment) of a type."""
    kind = kind.replace("const ", "").replace("struct ", "").strip()
    if "*" in kind or kind in ("size_t", "int64_t"):
        return 8, 8
    if kind in known:
        return layout(kind, known)[1:]
    # else an enumeration
    assert kind in ("int", "int32_t", "uint32_t") or re.search(rf"\}} {kind};", HEADER) or "Traits" in kind, kind
    return 4, 4


@pytest.mark.parametrize(
    ("name", "offsets"),
    [
        ("XLA_FFI_CallFrame", ffi.FRAME),
        ("XLA_FFI_Args", ffi.TABLE),
        ("XLA_FFI_Rets", {**ffi.TABLE, "rets": ffi.TABLE["args"]}),
        ("XLA_FFI_Attrs", ffi.ATTRS),
        ("XLA_FFI_Buffer", ffi.BUFFER),
        ("XLA_FFI_Api", ffi.API),
        ("XLA_FFI_Extension_Base", {k: v for k, v in ffi.EXTENSION.items() if k != "metadata"}),
        ("XLA_FFI_Metadata_Extension", {"metadata": ffi.EXTENSION["metadata"]}),
        ("XLA_FFI_Metadata", {"api_version": 8}),
        ("XLA_FFI_Api_Version", ffi.VERSION),
        ("XLA_FFI_Scalar", {"dtype": 0, "value": 8}),
        ("XLA_FFI_Error_Create_Args", {"message": 16, "errc": 24}),
        ("XLA_FFI_Error_Destroy_Args", {"error": 16}),
        ("XLA_FFI_ThreadPool_Schedule_Args", {"ctx": 16, "task": 24, "data": 32}),
        ("XLA_FFI_ThreadPool_NumThreads_Args", {"ctx": 16, "num_threads": 24}),
    ],
)
def test_offsets_are_those_of_the_header(name, offsets):
    known = layout(name, structures())[0]
    if name == "XLA_FFI_Rets":
        offsets = {k: v for k, v in offsets.items() if k != "args"}
    assert {field: known.get(field) for field in offsets} == offsets


def test_sizes_that_are_passed_are_those_of_the_header():
    """`struct_size` of the requests that the kernels make, without a last padding."""
    known = structures()
    sizes = {name: layout(name, known)[0] for name in known}
    assert max(sizes["XLA_FFI_ThreadPool_Schedule_Args"].values()) + 8 == 40
    assert max(sizes["XLA_FFI_ThreadPool_NumThreads_Args"].values()) + 8 == 32
    assert max(sizes["XLA_FFI_Error_Destroy_Args"].values()) + 8 == 24
    assert layout("XLA_FFI_Error_Create_Args", known)[1] == 32


def test_enumerations_and_version_are_those_of_the_header():
    known = enumerations()
    for name in ("U8", "F16", "F32", "S32", "S64"):
        assert getattr(ffi, name) == known[f"XLA_FFI_DataType_{name}"]
    assert known["XLA_FFI_ExecutionStage_EXECUTE"] == ffi.EXECUTE
    assert known["XLA_FFI_Extension_Metadata"] == ffi.METADATA
    assert known["XLA_FFI_AttrType_SCALAR"] == ffi.SCALAR
    assert known["XLA_FFI_Error_Code_INVALID_ARGUMENT"] == ffi.INVALID_ARGUMENT
    versions = dict(re.findall(r"#define (XLA_FFI_API_M\w+) (\d+)", HEADER))
    assert versions == {"XLA_FFI_API_MAJOR": str(ffi.API_MAJOR), "XLA_FFI_API_MINOR": str(ffi.API_MINOR)}


# A frame made by hand -------------------------------------------------------------------------------------------------

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
FAILED = 0x5EED


def word(address, offset, kind=ctypes.c_int64):
    return kind.from_address(address + offset).value


class Frame:
    """A call frame in plain memory, and a table of functions of which some are ours. Keeps alive what it points to."""

    def __init__(self, stage=ffi.EXECUTE):
        self.kept, self.messages, self.destroyed = [], [], 0
        self.functions = [CALLBACK(f) for f in (self.create, self.destroy, self.no_pool)]
        api, names = self.memory(256), ("Error_Create", "Error_Destroy", "ThreadPool_NumThreads")
        for name, function in zip(names, self.functions, strict=True):
            self.put(api, ffi.API[f"XLA_FFI_{name}"], ctypes.cast(function, ctypes.c_void_p).value)
        self.put(api, ffi.API["XLA_FFI_ThreadPool_Schedule"], self.get(api, ffi.API["XLA_FFI_ThreadPool_NumThreads"]))
        self.address = self.memory(192)
        self.put(self.address, ffi.FRAME["api"], api)
        self.put(self.address, ffi.FRAME["stage"], stage)

    def create(self, request):
        self.messages.append(ctypes.string_at(word(request, 16)).decode())
        assert word(request, 24, ctypes.c_int32) == ffi.INVALID_ARGUMENT
        return FAILED

    def destroy(self, request):
        assert word(request, 16) == FAILED
        self.destroyed += 1

    def no_pool(self, request):
        return FAILED

    def memory(self, size):
        self.kept.append((ctypes.c_char * size)())
        return ctypes.addressof(self.kept[-1])

    def put(self, at, offset, value):
        ctypes.c_int64.from_address(at + offset).value = value

    def get(self, at, offset):
        return word(at, offset)

    def buffers(self, table, *buffers):
        """Fill the table of operands or results with (type, address, shape)."""
        at, list_of = self.address + ffi.FRAME[table], self.memory(8 * len(buffers))
        self.put(at, ffi.TABLE["size"], len(buffers))
        self.put(at, ffi.TABLE["args"], list_of)
        for i, (dtype, address, shape) in enumerate(buffers):
            buffer, dims = self.memory(48), self.memory(8 * len(shape))
            for axis, n in enumerate(shape):
                self.put(dims, 8 * axis, n)
            for field, value in dict(dtype=dtype, data=address, rank=len(shape), dims=dims).items():
                self.put(buffer, ffi.BUFFER[field], value)
            self.put(list_of, 8 * i, buffer)

    def call(self, name):
        entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(build.library().address(name))
        return entry(self.address)


def product_frame(x, w, out, offset=0, **options):
    frame = Frame(**options)
    frame.buffers("args", (ffi.F32, x.ctypes.data + offset, x.shape), (ffi.U8, w.ctypes.data, w.shape))
    frame.buffers("rets", (ffi.F32, out.ctypes.data, out.shape))
    return frame


def case(m=3, n=40, k=96):
    blocks = weight("q4_1", n, k)
    return np.random.default_rng(0).standard_normal((m, k)).astype(np.float32), np.asarray(blocks.data), blocks


def test_without_a_pool_the_caller_does_it_alone():
    """Large enough to ask for help; the errors that the pool's functions return are freed."""
    (x, w, blocks), out = case(n=4000, k=512), np.zeros((3, 4000), np.float32)
    assert w.nbytes * 3 > 1 << 19
    frame = product_frame(x, w, out)
    assert (frame.call("llama_jax_gemv"), frame.messages, frame.destroyed) == (0, [], 1)
    np.testing.assert_allclose(out, reference_product(x, blocks), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_misaligned_activations_are_refused(offset):
    (x, w, _), out = case(), np.zeros((3, 40), np.float32)
    frame = product_frame(x, w, out, offset)
    assert frame.call("llama_jax_gemv") == FAILED
    assert "aligned" in frame.messages[0]
    assert not out.any()


@pytest.mark.parametrize("name", ["llama_jax_gemv", "llama_jax_fused"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_other_stages_touch_nothing(name, stage):
    frame = Frame(stage)  # no tables at all: whoever looks at one falls
    assert (frame.call(name), frame.messages) == (0, [])


@pytest.mark.parametrize("name", ["llama_jax_gemv", "llama_jax_fused"])
def test_asked_for_its_version_a_handler_answers_and_does_no_more(name):
    frame = Frame()
    metadata, other, extension = frame.memory(64), frame.memory(48), frame.memory(48)
    # one that we do not know stands before
    for at, kind, following in ((other, 77, extension), (extension, ffi.METADATA, 0)):
        frame.put(at, ffi.EXTENSION["type"], kind)
        frame.put(at, ffi.EXTENSION["next"], following)
    frame.put(extension, ffi.EXTENSION["metadata"], metadata)
    frame.put(frame.address, ffi.FRAME["extension_start"], other)
    assert frame.call(name) == 0
    version = [word(metadata, 8 + ffi.VERSION[part], ctypes.c_int32) for part in ("major_version", "minor_version")]
    assert version == [ffi.API_MAJOR, ffi.API_MINOR]


def test_nothing_is_written_beyond_the_result():
    (x, w, blocks), room = case(m=5, n=41), np.full(5 * 41 + 64, 7.0, np.float32)
    out = room[32:-32].reshape(5, 41)
    assert product_frame(x, w, out).call("llama_jax_gemv") == 0
    assert (room[:32] == 7).all()
    assert (room[-32:] == 7).all()
    np.testing.assert_allclose(out, reference_product(x, blocks), rtol=1e-3, atol=1e-3)
