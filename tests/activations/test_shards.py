"""Shards: the safetensors format to the byte, every bit pattern, and no belief in what a disk gives back."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from llama_jax.plumbing.errors import UserError
from llama_lab.activations import moments, shards
from llama_lab.activations.folder import open_folder
from llama_lab.activations.moments import Moments, merge
from tests.activations import stores
from tests.activations.stores import read_all, same_bits


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


# Moments, however they are cut ---

VALUES = hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.just(3)), elements=st.floats(-1e3, 1e3))


def merged(values, cuts, axes=0):
    nothing = np.zeros(() if axes is None else values.shape[1:])
    found = Moments(0, nothing, nothing)
    for part in np.split(values, sorted(cuts)):
        found = merge(found, moments.of(part, axes))
    return found


@settings(deadline=None)
@given(VALUES, st.lists(st.integers(0, 40), max_size=6), st.sampled_from([0, None]))
def test_any_split_merges_to_the_mean_and_variance_of_all(values, cuts, axes):
    found = merged(values, [min(cut, len(values)) for cut in cuts], axes)
    count = len(values) if axes == 0 else values.size
    assert (found.count, found.mean.shape) == (count, values.mean(axes).shape)
    np.testing.assert_allclose(found.mean, values.mean(axes), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found.m2, values.var(axes) * count, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(found.std, values.std(axes), rtol=1e-6, atol=1e-5)


def test_no_digits_are_lost_far_from_zero():
    """Where the sum of squares less the square of the sum has no digit left."""
    values = 1e9 + np.random.default_rng(0).normal(0, 1, (10_000, 2))
    found = merged(values, range(100, 10_000, 100))
    np.testing.assert_allclose(found.std, values.std(0), rtol=1e-6)
    naive = (values**2).mean(0) - values.mean(0) ** 2
    assert (np.abs(naive - values.var(0)) > 0.1).any()


def test_nothing_changes_nothing():
    some, none = moments.of(np.arange(6.0).reshape(3, 2)), moments.of(np.empty((0, 2)))
    assert merge(none, some) is some
    assert merge(some, none) is some
    assert merge(none, none).count == 0
    assert np.isnan(none.std).all()


@pytest.mark.filterwarnings("error")
def test_what_is_not_finite_stays_so_without_a_warning():
    found = merge(moments.of(np.array([[1.0, np.nan], [2, 3]])), Moments(2, np.array([np.inf, 1]), np.array([0.0, 1])))
    assert not np.isfinite(found.mean).any()
    assert not np.isfinite(found.m2).any()
