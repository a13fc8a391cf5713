"""Shards: the safetensors format to the byte, every bit pattern, and no belief in what a disk gives back."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import load_file

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import shards
from llama_lab.activations.folder import open_folder
from tests.activations import stores
from tests.activations.stores import read_all, same_bits


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_bit_pattern_survives(dtype, folder):
    """All 65,536 of them, NaNs with their payloads included, for us and for another reader of the format."""
    every = np.arange(1 << 16, dtype=np.uint16).view(shards.kept_as(dtype)).reshape(-1, 2, 4)
    folder.write("x.safetensors", shards.serialise({"q:1": every}))
    assert same_bits(read_all(folder, "x.safetensors")["q:1"], every)
    other = load_file(folder.path / "x.safetensors")["q:1"]
    assert other.dtype == getattr(torch, dtype)
    assert same_bits(other.view(torch.uint16).numpy(), every.view(np.uint16))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_a_shard_is_what_the_library_writes(rows, dtype):
    tensors = stores.unit(0, rows, dtype)[0]
    assert b"".join(shards.serialise(tensors)) == safetensors.numpy.save(tensors)


def test_a_shard_depends_on_its_tensors_alone():
    tensors = stores.unit(0, 9)[0]
    assert shards.serialise(tensors) == shards.serialise(dict(reversed(tensors.items())))
    strided = {name: np.asfortranarray(np.repeat(value, 2, axis=0))[::2] for name, value in tensors.items()}
    assert shards.serialise(strided) == shards.serialise(tensors)
    with pytest.raises(ValueError, match="one number of rows"):
        shards.serialise({"a": np.zeros(2, np.int32), "b": np.zeros(3, np.int32)})


def header(entries, body=b"\0" * 8):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + body


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\1\2",
        (1 << 60).to_bytes(8, "little") + b"{}",
        header(b"{nope"),
        header(b"[]"),
        header(b"\xff\xfe{}"),
        header(b"[" * 100_000),
        header({"a": GOOD | {"dtype": "I8"}}),
        header({"a": GOOD | {"shape": [3]}}),
        header({"a": GOOD | {"shape": [-1, -2]}}),
        header({"a": GOOD | {"shape": [2.0]}}),
        header({"a": GOOD | {"data_offsets": [0, 8, 9]}}),
        header({"a": GOOD | {"data_offsets": [8, 0]}}),
        header({"a": GOOD | {"data_offsets": [4, 12]}}, b"\0" * 12),
        header({"a": GOOD, "b": GOOD}),
        header({"a": GOOD}, b"\0" * 7),
        header({"a": GOOD}, b"\0" * 9),
        header({"a": 7}),
        header({"a": {}}),
        header({}),
    ],
)
def test_a_header_is_not_believed(content, folder):
    folder.write("x.safetensors", content)
    with pytest.raises(UserError, match=r"x\.safetensors"):
        shards.read_header(folder, "x.safetensors")


def test_a_long_header_is_read_whole(folder):
    many = {f"resid_post:{i}": np.full((2, 3), i, ml_dtypes.bfloat16) for i in range(1500)}
    content = b"".join(shards.serialise(many))
    assert int.from_bytes(content[:8], "little") > shards.GUESS
    folder.write("x.safetensors", content)
    assert all(same_bits(value, many[name]) for name, value in read_all(folder, "x.safetensors").items())


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_file_cut_short_while_it_is_read_is_one_line(kind, tmp_path):
    folder = open_folder(tmp_path if kind == "local" else f"memory://{tmp_path.name}-cut")
    content = b"".join(shards.serialise({"q:1": np.ones((9, 4), np.float32)}))
    folder.write("x.safetensors", content)
    tensor = shards.read_header(folder, "x.safetensors")["q:1"]
    folder.write("x.safetensors", content[:-40])
    with pytest.raises(UserError, match=r"x\.safetensors has been cut short"):
        shards.read(folder, "x.safetensors", tensor, 0, 9)
