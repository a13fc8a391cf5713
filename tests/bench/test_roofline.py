import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import config, generate, kvc, sampling, transforms
from llama_jax.checkpoint import tensors
from llama_jax.placement import parse
from llama_lab.bench import memory, roofline
from llama_lab.bench.guard import Guard
from tests.bench.test_record import trial


def test_bytes_are_weights_once_and_the_cache(tiny):
    cfg, params = tiny
    # the tied head
    read = [w for w in jax.tree.leaves(params) if w is not params.embeddings.weight] + [params.embeddings.weight]
    expected = sum(w.nbytes for w in read) + 3 * 10 * cfg.kv_bytes_per_position(4)
    assert roofline.bytes_per_token(cfg, 10, 4, 4, batch=3) == expected


@pytest.mark.parametrize("preset", ["smollm2-135m", "qwen2.5-0.5b", "gpt2"])
def test_flops_and_bytes_agree_with_xla_for_the_unrolled_step(preset):
    """At real widths, where what the formulas leave out (activations, softmax, the copy of a small cache) is small."""
    cfg, slots = replace(config.PRESETS[preset], num_hidden_layers=4), 32
    params, step = of_shapes(cfg), parse("step")
    cache = jax.eval_shape(lambda: kvc.create(cfg, "fixed", jnp.zeros(1, jnp.int32), slots, jnp.float32))
    draw = jax.eval_shape(lambda: sampling.Draw(jax.vmap(jax.random.key)(jnp.zeros(1, jnp.uint32)), jnp.int32(0), None))
    carry, token = transforms.Carry(cache, draw), jax.ShapeDtypeStruct((1,), jnp.int32)
    program = transforms.assemble(cfg, step).step.lower(params, token, carry, generate.GREEDY).compile()
    counted = program.cost_analysis()
    # XLA attends over all slots
    assert roofline.flops_per_token(cfg, slots) == pytest.approx(counted["flops"], rel=0.03)
    assert roofline.bytes_per_token(cfg, slots) == pytest.approx(counted["bytes accessed"], rel=0.03)


def of_shapes(cfg):
    """The model's tree with shapes in place of weights."""
    sizes = tensors.shapes(cfg)

    def shape(rows):
        each = [sizes[name][::-1] if rows.transposed else sizes[name] for name in rows.names]
        return jax.ShapeDtypeStruct((sum(s[0] for s in each), *each[0][1:]), jnp.float32)

    return jax.tree.map(shape, tensors.names(cfg))


def test_mbu_of_a_run_at_the_limit_is_one():
    assert roofline.mbu(10.0, 2e9, 20.0) == pytest.approx(1.0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 20)


def test_the_probe_reads_everything_again_without_compiling_or_leaving_anything(small):
    probe = roofline.Probe()
    probe.bandwidth()
    arrays = memory.live_buffers()
    with Guard() as guard:
        found = [probe.bandwidth(repeats=2) for _ in range(3)]
    assert not guard.fired
    assert memory.live_buffers() == arrays
    assert all(0.01 < value < 10_000 for value in found)
    assert np.asarray(probe.xla_reader()).tolist() == [4096.0] * 64
    assert sum(probe.numpy_reader()) == (1 << 20) // 4


def test_a_probe_is_the_fastest_read_of_either_reader(small, monkeypatch):
    taken = iter(([3e-3, 5e-3, 2e-3], [8e-3, 1e-3, 1.0]))
    monkeypatch.setattr(roofline, "times", lambda reader, repeats: next(taken))
    assert roofline.Probe().bandwidth() == pytest.approx((1 << 20) / 1e-3 / 1e9)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no process")
def test_the_probe_has_a_thread_for_each_core_that_it_may_use(small, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5})
    assert len(roofline.Probe().parts) == 3


PLACES = [("one", 0, 0, 20.0), ("one", 0, 0, 20.0),  # another subject of the same block
          ("one", 0, 1, 32.0), ("one", 1, 1, 26.0),  # the block again, in another process
          ("other", 0, 0, 10.0), ("other", 0, 0, None)]  # fmt: skip
ROWS = [trial(run=run, process=process, block=block, bandwidth_gbps=read) for run, process, block, read in PLACES]


def test_the_bandwidth_of_a_run_is_the_most_that_any_of_its_probes_read():
    assert [row.bandwidth_gbps for row in roofline.of_runs(ROWS)] == [32.0] * 4 + [10.0, None]
    assert roofline.of_runs(roofline.of_runs(ROWS)) == roofline.of_runs(ROWS)
    assert roofline.of_runs([]) == []


def test_the_spread_counts_each_probe_once():
    one, other = dict(max=32.0, median=26.0, min=20.0, n=3), dict(max=10.0, median=10.0, min=10.0, n=1)
    assert roofline.spread(ROWS) == dict(one=one, other=other)


def test_a_probe_reads_as_much_as_a_token_does_within_bounds(small, monkeypatch):
    monkeypatch.setattr(roofline, "MOST", 1 << 22)
    found = [roofline.Probe(asked).matrix.nbytes for asked in (0, 1e6, 2e6, 1e9)]
    assert found == [1 << 20, 1 << 20, 2_000_000 // roofline.ROW_BYTES * roofline.ROW_BYTES, 1 << 22]


def test_flops_count_a_multiply_add_as_two(monkeypatch):
    shapes = []
    monkeypatch.setattr(roofline, "SIDE", 64)
    monkeypatch.setattr(roofline, "times", lambda reader, repeats: shapes.append(reader().shape) or [0.5, 1.0, 9.0])
    assert roofline.flops() == pytest.approx(2 * 64**3 / 1e9)
    assert shapes == [(64, 64)]


def test_times_leaves_the_first_run_out():
    runs = []
    assert len(roofline.times(lambda: runs.append(1), 4)) == 4
    assert len(runs) == 5
