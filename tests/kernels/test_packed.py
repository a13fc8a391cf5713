"""Layers in a few arrays are the same layers: every byte at its place, the same products, and no copy on a CPU."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from llama_jax import generate, quantise
from llama_jax.kernels import gemv, packed
from llama_jax.model import kinds
from llama_jax.placement import parse
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


def test_what_the_weights_are_kept_as_is_still_known():
    model = mixed(small())
    assert kinds(with_packed_layers(model)) == kinds(model) == "q4_1+q8_0"


def test_a_call_of_the_fused_step_has_few_operands():
    """However many layers there are: that is what packing is for."""
    for layers in (1, 5):
        cfg = small(num_hidden_layers=layers)
        engine = generate.bind(cfg, random_model(cfg), parse("step+q8_0+fused"))
        assert len(jax.tree.leaves(engine.params)) == 5  # embedding, final norm; blocks, table, norms
