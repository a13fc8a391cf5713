"""A model over several devices: the same activations, each weight where it belongs, and none of them whole anywhere."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import llama_jax as ll
from llama_jax import config
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import sharding
from llama_lab.activations.program import Extractor
from llama_lab.activations.spec import ActivationSpec
from tests.conftest import build

ROWS, COLUMNS = PartitionSpec("tensor"), PartitionSpec(None, "tensor")
SPLIT = {"qkv": ROWS, "qkv_bias": ROWS, "gate_up": ROWS, "gate_up_bias": ROWS, "o": COLUMNS, "down": COLUMNS}


def partitions(params, size):
    found = jax.tree_util.tree_map_with_path(lambda path, weight: sharding.partition(path, weight, size), params)
    return {jax.tree_util.keystr(path): spec for path, spec in jax.tree_util.tree_leaves_with_path(found)}


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_each_weight_is_split_by_what_it_is(family):
    params = build(config.tiny(family, vocab_size=96, tie_word_embeddings=family == "gpt2"))
    for path, spec in partitions(params, 4).items():
        name = path.rpartition(".")[2]
        expected = ROWS if path in (".embedding.weight", ".head.weight") else SPLIT.get(name, PartitionSpec())
        assert spec == expected, path


def test_what_cannot_be_split_evenly_is_on_every_device():
    found = partitions(build(config.tiny()), 3)  # vocabulary 97, D 32, 2F 128
    assert set(found.values()) == {PartitionSpec()}
    found = partitions(build(config.tiny(vocab_size=99)), 3)
    assert found[".embedding.weight"] == ROWS
    assert found[".layers[0].attention.qkv"] == PartitionSpec()


def test_a_mesh_of_one_device_changes_nothing(tiny):
    model, spec = (
        ll.Checkpoint("tiny", *tiny, None, "", "random:", "float32"),
        ActivationSpec((("resid_post", "all"),), dtype="float32"),
    )
    examples = [[5, 9, 33], list(range(20)), [1]]
    plain, meshed = (Extractor(model, spec, (2, 8), mesh=grid)(examples) for grid in (None, sharding.parse("1X1")))
    assert plain.keys() == meshed.keys()
    for name, values in plain.items():
        assert np.array_equal(values, meshed[name]), name


@pytest.mark.parametrize("text", ["2", "2x", "x2", "2x2x1", "axb", "-1x1", "2,2", "²x1"])
def test_a_mesh_is_two_numbers(text):
    with pytest.raises(UserError, match="write DATAxTENSOR"):
        sharding.parse(text)


@pytest.mark.parametrize("text", ["0x1", "1x3", "64x64"])
def test_a_mesh_takes_all_devices(text):
    with pytest.raises(UserError, match="needs .* devices; JAX sees 1,"):
        sharding.parse(text)


def test_a_batch_must_be_shared_evenly(tiny):
    grid = SimpleNamespace(shape={"data": 4, "tensor": 1})
    sharding.check_batch((8, 16), grid)
    with pytest.raises(UserError, match="batch of 6 rows .* by 4 .* a multiple of 4"):
        Extractor(
            ll.Checkpoint("tiny", *tiny, None, "", "random:", "float32"),
            ActivationSpec("resid_post:0"),
            (6, 16),
            mesh=grid,
        )


NAME = "random:smollm2-135m,num_hidden_layers=1,hidden_size=32,intermediate_size=64,num_attention_heads=2,"
NAME += "num_key_value_heads=1,vocab_size=50"


@pytest.mark.slow
def test_weights_are_loaded_onto_the_device_that_is_asked_for():
    """Read in several threads, which do not share JAX's default device."""
    code = (
        f"import jax\nfrom llama_jax import checkpoint\nlast = jax.devices()[-1]\n"
        f"params = checkpoint.load({NAME!r}, device=last).params\n"
        "assert all(leaf.devices() == {last} for leaf in jax.tree.leaves(params)), params\n"
        f"params = checkpoint.load({NAME!r}).params\n"
        "assert all(leaf.devices() == {jax.devices()[0]} for leaf in jax.tree.leaves(params)), params\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    )


def test_the_host_is_a_processor_and_must_be_allowed(monkeypatch):
    assert sharding.host().platform == "cpu"
    monkeypatch.setattr(
        jax, "local_devices", lambda backend: (_ for _ in ()).throw(RuntimeError("Unknown backend cpu"))
    )
    with pytest.raises(UserError, match="JAX_PLATFORMS"):
        sharding.host()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_four_devices_make_the_activations_of_one(family):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.activations.mesh_child", family], check=True, env=environment, capture_output=True
    )
    found = json.loads(child.stdout)
    assert found.keys() == {f"{mesh} {spec}" for mesh in ("4x1", "2x2", "1x4") for spec in ("all", "last")}
    for case, result in found.items():
        assert max(result["errors"].values()) <= 1e-5, case
        assert result["labels"], case
        assert result["compilations"] == 1, case
        assert not any(any(spec) for spec in result["outputs"]), case  # every process has all of them
        parts, split = int(case[2]), 0
        gathered = set(map(tuple, result["gathered"]))
        assert gathered or "last" in case
        for path, (whole, held) in result["weights"].items():
            over = path.rpartition(".")[2] in SPLIT or path == ".embedding.weight"
            assert len(held) == 1, (case, path)
            assert np.prod(held[0]) * (parts if over else 1) == np.prod(whole), (case, path)
            split += over
            # no device puts a whole weight together on its way: it gathers values only
            if parts > 1 and over and len(whole) > 1:
                assert gathered.isdisjoint({tuple(whole), tuple(whole[::-1])}), (case, path)
        assert split >= 9, case
