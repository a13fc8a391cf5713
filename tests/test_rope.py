from dataclasses import asdict

import jax.numpy as jnp
import numpy as np
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from llama_jax import config, rope

LLAMA3 = config.RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


def reference(cfg, parameters):
    """transformers' own inverse frequencies."""
    hf = LlamaConfig(
        hidden_size=cfg.hidden_size,
        num_attention_heads=cfg.num_attention_heads,
        head_dim=cfg.head_dim,
        max_position_embeddings=cfg.max_position_embeddings,
        rope_parameters=parameters,
    )
    return LlamaRotaryEmbedding(hf).inv_freq.numpy()


@pytest.mark.parametrize(
    ("scaling", "parameters"),
    [
        (None, {"rope_type": "default"}),
        (config.RopeScaling("linear", 4.0), {"rope_type": "linear", "factor": 4.0}),
        (LLAMA3, {"rope_type": "llama3", **{k: v for k, v in asdict(LLAMA3).items() if k not in ("kind", "factors")}}),
    ],
    ids=["none", "linear", "llama3"],
)
def test_frequencies_equal_transformers(scaling, parameters):
    cfg = config.tiny(head_dim=64, rope_theta=500_000.0, rope_scaling=scaling)
    expected = reference(cfg, {"rope_theta": 500_000.0, **parameters})
    np.testing.assert_allclose(rope.frequencies(cfg), expected, rtol=1e-6)


def test_explicit_factors_divide_each_frequency():
    factors = (1.0, 2.0, 4.0, 8.0)
    plain, scaled = (
        rope.frequencies(config.tiny(rope_scaling=s)) for s in (None, config.RopeScaling("factors", factors=factors))
    )
    np.testing.assert_allclose(plain / scaled, factors, rtol=1e-6)


def test_rotation_keeps_length_and_depends_on_distance_only():
    rng, inverse = np.random.default_rng(0), rope.frequencies(config.tiny())
    q, k = (jnp.asarray(rng.standard_normal((1, 1, 1, 8)), jnp.float32) for _ in "qk")

    def at(x, position):
        return rope.rotate(x, *rope.angles(jnp.array([[position]]), inverse))

    np.testing.assert_allclose(jnp.linalg.norm(at(q, 77)), jnp.linalg.norm(q), rtol=1e-5)
    np.testing.assert_allclose((at(q, 9) * at(k, 4)).sum(), (at(q, 105) * at(k, 100)).sum(), rtol=1e-3)


def test_shapes_are_checked():
    rotate = jaxtyped(typechecker=beartype)(rope.rotate)
    cos = jnp.ones((1, 1, 3, 4))
    assert rotate(jnp.ones((1, 2, 3, 8)), cos, cos).shape == (1, 2, 3, 8)
    with pytest.raises(TypeCheckError):
        rotate(jnp.ones((2, 2, 3, 8)), cos, cos)
