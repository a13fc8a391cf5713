"""Layers in a few arrays are the same layers: every byte at its place, the same products, and no copy on a CPU."""

import gc
from dataclasses import replace

import jax
import numpy as np
import pytest

from llama_jax import checkpoint, generate, quantise
from llama_jax.kernels import gemv, packed
from llama_jax.model import kinds
from llama_jax.placement import parse
from tests.checkpoint.test_gguf import write
from tests.kernels.models import quantised, random_model, small, with_packed_layers


def mixed(cfg):
    """A model whose layers are of different kinds, as files of other makers have them."""
    model = quantised(cfg, "q4_1")
    down = model.layers[0].ffn.down
    other = replace(quantise.from_float(np.asarray(down.dequantised()), "q8_0"), product=gemv.product)
    first = replace(model.layers[0], ffn=replace(model.layers[0].ffn, down=other))
    return replace(model, layers=(first, *model.layers[1:]))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_every_matrix_stands_where_the_table_says(family):
    model = mixed(small(family, num_hidden_layers=3))
    arrays = packed.pack(model.layers)
    blocks, table = np.asarray(arrays.blocks), np.asarray(arrays.table)
    end = 0
    for layer, rows in zip(model.layers, table, strict=True):
        for matrix, (unit, *sizes) in zip(packed.matrices(layer), rows.tolist(), strict=True):
            assert tuple(sizes) == matrix.data.shape
            assert end <= packed.UNIT * unit < end + packed.UNIT
            end = packed.UNIT * unit + matrix.nbytes
            np.testing.assert_array_equal(blocks[packed.UNIT * unit : end], np.asarray(matrix.data).reshape(-1))
    assert end == len(blocks)
    np.testing.assert_array_equal(arrays.norms[1, 1], model.layers[1].ffn_norm.weight)
    assert (arrays.biases is None) == (family == "llama")


def test_both_sides_count_places_in_the_same_unit():
    from llama_jax.kernels.native import operands

    assert packed.UNIT == operands.UNIT


def test_a_large_array_is_taken_as_it_is():
    room = packed.aligned(1 << 20)
    assert jax.device_put(room).unsafe_buffer_pointer() == room.ctypes.data


@pytest.mark.parametrize("kind", ["q4_k", "q6_k", "q8_0"])
def test_a_files_layers_are_packed_where_they_stand(tmp_path, monkeypatch, kind):
    """The weights are in memory once, and stay while either the layers or their packed form are used."""
    write(tmp_path / "m.gguf", kind.upper())
    layers = checkpoint.load(str(tmp_path / "m.gguf"), "gguf").params.layers
    first = [matrix for layer in layers for matrix in packed.matrices(layer)]
    expected = [np.array(matrix.data).reshape(-1) for matrix in first]
    monkeypatch.setattr(packed, "aligned", lambda size: pytest.fail("copied"))
    arrays = packed.pack(layers)
    assert arrays.blocks.unsafe_buffer_pointer() == np.asarray(first[0].data).ctypes.data
    del layers, first
    gc.collect()
    _ = [np.full(len(part), 255, np.uint8) for part in expected]  # what would take the place of freed memory
    blocks = np.asarray(arrays.blocks)
    for part, unit in zip(expected, np.asarray(arrays.table)[..., 0].reshape(-1), strict=True):
        np.testing.assert_array_equal(blocks[packed.UNIT * unit :][: len(part)], part)


def test_what_the_weights_are_kept_as_is_still_known():
    model = mixed(small())
    assert kinds(with_packed_layers(model)) == kinds(model) == "q4_1+q8_0"


def test_a_call_of_the_fused_step_has_few_operands():
    """However many layers there are: that is what packing is for."""
    for layers in (1, 5):
        cfg = small(num_hidden_layers=layers)
        engine = generate.bind(cfg, random_model(cfg), parse("step+q8_0+fused"))
        assert len(jax.tree.leaves(engine.params)) == 5  # embedding, final norm; blocks, table, norms
