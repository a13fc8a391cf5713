"""A model over several devices: the same activations, each weight where it belongs, and none of them whole anywhere."""

import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from safetensors import safe_open

import llama_jax as ll
from llama_jax import config
from llama_lab.activations import sharding
from llama_lab.activations.program import Extractor
from llama_lab.activations.spec import ActivationSpec
from tests.activations.runs import UNITS, commits, done, finished, free_port, spawn, start
from tests.activations.stores import says
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
        expected = ROWS if path in (".embeddings.weight", ".head.weight") else SPLIT.get(name, PartitionSpec())
        assert spec == expected, path


def test_what_cannot_be_split_evenly_is_on_every_device():
    found = partitions(build(config.tiny()), 3)  # vocabulary 97, D 32, 2F 128
    assert set(found.values()) == {PartitionSpec()}
    found = partitions(build(config.tiny(vocab_size=99)), 3)
    assert found[".embeddings.weight"] == ROWS
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


def test_what_is_no_mesh_is_one_line(tiny, monkeypatch):
    for text in ("2", "2x", "x2", "2x2x1", "axb", "-1x1", "2,2", "²x1"):
        with says("write DATAxTENSOR"):
            sharding.parse(text)
    for text in ("0x1", "1x3", "64x64"):
        with says("needs", "devices; JAX sees 1,"):
            sharding.parse(text)
    grid, model = SimpleNamespace(shape={"data": 4, "tensor": 1}), ll.Checkpoint("tiny", *tiny, None, "", "", "float32")
    sharding.check_batch((8, 16), grid)
    with says("batch of 6 rows", "by 4", "a multiple of 4"):
        Extractor(model, ActivationSpec("resid_post:0"), (6, 16), mesh=grid)
    assert sharding.host().platform == "cpu"
    monkeypatch.setattr(jax, "local_devices", lambda backend: (_ for _ in ()).throw(RuntimeError("Unknown backend")))
    with says("JAX_PLATFORMS"):
        sharding.host()


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
    ended = finished(spawn("-c", code, JAX_NUM_CPU_DEVICES="2"))
    assert ended.returncode == 0, ended.err


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_four_devices_make_the_activations_of_one(family):
    found = done(spawn("-m", "tests.activations.mesh_child", family, JAX_NUM_CPU_DEVICES="4"))
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
            over = path.rpartition(".")[2] in SPLIT or path == ".embeddings.weight"
            assert len(held) == 1, (case, path)
            assert np.prod(held[0]) * (parts if over else 1) == np.prod(whole), (case, path)
            split += over
            # no device puts a whole weight together on its way: it gathers values only
            if parts > 1 and over and len(whole) > 1:
                assert gathered.isdisjoint({tuple(whole), tuple(whole[::-1])}), (case, path)
        assert split >= 9, case


# Several processes: they meet by JAX's own runtime, agree, and end together -------------------------------------------

SLURM = dict(SLURM_JOB_ID="7", SLURM_STEP_NODELIST="localhost", SLURM_NTASKS="2")


def meshed(source, out, *options):
    """Two processes of two devices each, with the variables that srun sets."""
    slurm = SLURM | dict(JAX_NUM_CPU_DEVICES="2", JAX_COORDINATOR_PORT=str(free_port()))
    options = ("--mesh", "2x2", "--distributed", "--keep", "float32", *options)
    return [start(source, out, *options, **slurm, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(2)]


@pytest.mark.slow
def test_over_a_mesh_all_work_on_each_unit_and_one_writes_it(source, tmp_path):
    """Two processes make what one device makes; one that dies ends the other, and the same command goes on."""
    both, single = tmp_path / "meshed", tmp_path / "single"
    reports = [done(process) for process in meshed(source, both, "--limit", "60")]
    assert sorted(r["written"] for r in reports) == [7, 8]
    assert [r["compilations"] for r in reports] == [1, 1]
    assert any(r["complete"] for r in reports)
    done(start(source, single, "--limit", "60", "--keep", "float32"))
    for file in sorted(single.rglob("*.safetensors")):
        with safe_open(file, "np") as one, safe_open(both / file.relative_to(single), "np") as two:
            for name in one.keys():  # noqa: SIM118
                a, b = one.get_tensor(name), two.get_tensor(name)
                assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), (file, name)
    out = tmp_path / "killed"
    first, second = meshed(source, out)
    end = time.monotonic() + 60
    while len(commits(out)) < 4 and time.monotonic() < end:
        time.sleep(0.02)
    second.kill()
    second.communicate()
    assert finished(first).returncode  # JAX's runtime ends it
    committed = len(commits(out))
    assert 4 <= committed < UNITS
    assert sum(done(process)["written"] for process in meshed(source, out)) == UNITS - committed


def test_who_does_not_come_is_waited_for_only_so_long():
    """JAX's own runtime would abort with a core dump. And without a launcher nobody is waited for."""
    code = "from llama_lab.activations import sharding\nsharding.join(seconds=2)"
    slurm = SLURM | dict(SLURM_PROCID="0", SLURM_LOCALID="0", JAX_COORDINATOR_PORT=str(free_port()))
    late, alone = finished(spawn("-c", code, **slurm)), finished(spawn("-c", code))
    assert late.returncode == 2
    assert late.err.splitlines()[-1].startswith("error: The other processes of the mesh did not answer within 2 s")
    assert "No launcher is detected" in alone.err.splitlines()[-1]


def test_alone_everything_is_agreed_at_once():
    assert sharding.agreed([1, {"a": "b"}]) == [1, {"a": "b"}]
    with pytest.raises(ZeroDivisionError), sharding.leaving():
        raise ZeroDivisionError
