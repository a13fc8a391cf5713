import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import config, generate
from llama_jax.bench import environment, roofline
from llama_jax.placement import parse


def test_bytes_are_weights_once_and_the_cache(tiny):
    cfg, params = tiny
    read = [w for w in jax.tree.leaves(params) if w is not params.embedding.weight] + [params.embedding.weight]  # the tied head
    expected = sum(w.nbytes for w in read) + 3 * 10 * cfg.kv_bytes_per_position(4)
    assert roofline.bytes_per_token(cfg, 10, 4, 4, batch=3) == expected


def test_flops_agree_with_xla_for_the_unrolled_step():
    cfg = config.tiny(hidden_size=128, intermediate_size=384, head_dim=32, vocab_size=1024)
    from tests.conftest import build

    engine = generate.bind(cfg, build(cfg), parse("step"))
    batch = generate.request(engine, [[1, 2]], 4, length=2, slots=16)
    token, carry = generate.prefill(engine, batch)
    counted = engine.programs.step.lower(engine.params, token, carry, generate.GREEDY).compile().cost_analysis()["flops"]
    assert roofline.flops_per_token(cfg, 16) == pytest.approx(counted, rel=0.03)  # XLA attends over all 16 slots


def test_mbu_of_a_run_at_the_limit_is_one():
    assert roofline.mbu(10.0, 2e9, 20.0) == pytest.approx(1.0)


def test_the_probe_gives_a_plausible_bandwidth(monkeypatch):
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 24)
    assert 0.1 < roofline.bandwidth() < 10_000


def test_the_environment_is_plain_and_complete():
    import json

    found = environment.capture()
    json.dumps(found)
    assert found["packages"]["jax"] == jax.__version__
    assert found["cores"] >= 1
    assert found["git"]["commit"] == "unknown" or len(found["git"]["commit"]) == 40
    assert f"jax {jax.__version__}" in environment.machine_line(found)
    assert jnp.asarray(np.ones(1)).dtype == jnp.float32
