"""A shard: the rows of one unit, one tensor per column, in a plain safetensors file that any reader of the format
opens.

The format is simple (https://github.com/huggingface/safetensors#format): 8 bytes length, a JSON header, then the
tensors. The bytes are those of the safetensors library. It is not used, because it copies all tensors twice and blocks
every other thread while it does, and because it cannot read bfloat16 back through numpy. The header of a file is
checked before its content is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from pydantic import Field

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError
from llama_lab.activations.folder import Folder

DTYPES = {"I64": np.dtype("<i8"), "F32": np.dtype("<f4"), "I32": np.dtype("<i4"), "BF16": np.dtype(ml_dtypes.bfloat16),
          "F16": np.dtype("<f2")}  # fmt: skip # in the order in which tensors are laid out
I32, I64 = np.dtype("int32"), np.dtype("int64")
LABELS = {"token": I32, "example": I64, "segment": I32, "position": I32}
LONGEST_HEADER = 16 << 20  # bytes: a hundred thousand columns
GUESS = 1 << 16  # bytes that hold most headers


Size = Annotated[int, Field(ge=0, lt=1 << 40)]  # of one shard: a sum over all units stays below 2^63


class Entry(Declared):
    """A tensor as the header has it."""

    dtype: Literal[tuple(DTYPES)]
    shape: Annotated[list[Size], Field(max_length=4)]
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]


class Tensor(NamedTuple):
    """One tensor of a shard: bytes begin..end of the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def serialise(tensors: Mapping[str, np.ndarray]) -> list[memoryview]:
    """The file, as a header and the tensors' own memory. Its bytes depend on the tensors alone, not on their order."""
    if len(rows := {len(tensor) for tensor in tensors.values()}) != 1:
        raise ValueError(f"a shard's tensors have one number of rows, not {sorted(rows)}")
    kinds = {dtype: kind for kind, dtype in DTYPES.items()}
    order = sorted(tensors, key=lambda name: (list(kinds).index(tensors[name].dtype), name))
    entries, end = {}, 0
    for name in order:
        tensor, begin = tensors[name], end
        end += tensor.nbytes
        entries[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    head = json.dumps(entries, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # tensors begin at a multiple of 8 bytes
    raw = [np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8) for name in order]
    return [memoryview(len(head).to_bytes(8, "little") + head), *map(memoryview, raw)]


def kept_as(name: str) -> np.dtype:
    """NumPy's dtype for "bfloat16", "float16" or "float32"."""
    return DTYPES[{"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[name]]


def unlike(tensors: Mapping[str, Tensor], rows: int, spec: Mapping) -> Iterator[str]:
    """How a shard's tensors differ from its commit (rows) and from the run (`spec` of run.json)."""
    dtype = kept_as(spec["dtype"])
    expected = {name: (kind, (rows,)) for name, kind in LABELS.items()}
    expected |= {site: (dtype, (rows, *shape)) for site, shape in spec["sites"].items()}
    for name in sorted(expected.keys() | tensors.keys()):
        there = (tensors[name].dtype, tensors[name].shape) if name in tensors else None
        if there != expected.get(name):
            what, wanted = (f"{one[0]} {list(one[1])}" if one else "absent" for one in (there, expected.get(name)))
            yield f"{name} is {what}, where the run and the commit say {wanted}"


def read_header(folder: Folder, name: str) -> dict[str, Tensor]:
    """A shard's tensors. Raises UserError when the file is missing, truncated or not a shard."""
    file, size = f"{folder.where}/{name}", folder.size(name)
    if size is None:
        raise UserError(f"{file} is missing.")
    start = folder.part(name, 0, min(size, GUESS)).tobytes()
    length = 8 + int.from_bytes(start[:8], "little")
    if len(start) < 8 or not 10 <= length <= min(8 + LONGEST_HEADER, size):
        raise UserError(f"{file} is truncated or not a safetensors file: its header does not fit in {size:,} bytes.")
    return parse(start[:length] if length <= len(start) else folder.part(name, 0, length).tobytes(), size, file)


def read(folder: Folder, name: str, tensor: Tensor, start: int, stop: int) -> np.ndarray:
    """Rows start..stop of a tensor, read-only; memory-mapped where the file lies on this machine."""
    row = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    raw = folder.part(name, tensor.begin + start * row, tensor.begin + stop * row)
    if len(raw) != (stop - start) * row:
        raise UserError(f"{folder.where}/{name} has been cut short since it was opened; see `llama-jax verify`.")
    return raw.view(tensor.dtype).reshape(stop - start, *tensor.shape[1:])


def parse(head: bytes, size: int, file: str) -> dict[str, Tensor]:
    """Name → tensor, from the bytes before the first tensor. Raises UserError unless the tensors fill the file
    exactly."""
    where = f"{file}, its header"
    entries = boundary.read(dict[str, Any], boundary.parse(head[8:], where), where)
    entries.pop("__metadata__", None)
    tensors = {
        name: Tensor(DTYPES[entry.dtype], tuple(entry.shape), *(len(head) + at for at in entry.data_offsets))
        for name, entry in boundary.read(dict[str, Entry], entries, where).items()
    }
    end = len(head)
    for name, (dtype, shape, begin, after) in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if begin != end or after - begin != math.prod(shape) * dtype.itemsize:
            raise UserError(f"{file} has an invalid header: bytes {begin} to {after} cannot be {name} {list(shape)}.")
        end = after
    if end != size:
        raise UserError(f"{file} is {'truncated' if size < end else 'damaged'}: {size:,} bytes, {end:,} by its header.")
    return tensors
