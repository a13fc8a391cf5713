"""transformers' modules on our weights: the same logits in every family and with every kind of rotary scaling, and no
copy."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import torch

from llama_jax import config, generate, model
from llama_jax.config import RopeScaling
from llama_jax.placement import parse
from llama_lab.peers import torch_model, torch_static
from tests.conftest import build, relative_error

SHAPES = {
    **{family: config.tiny(family) for family in config.FAMILIES},
    "llama, untied": config.tiny(tie_word_embeddings=False),
    "qwen2, heads of their own width": config.tiny("qwen2", head_dim=16, tie_word_embeddings=False),
    "linear": config.tiny(rope_scaling=RopeScaling("linear", 4.0)),
    "llama3": config.tiny(rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16)),
    "factors": config.tiny(rope_scaling=RopeScaling("factors", factors=(1.0, 2.0, 5.0, 9.0))),
}
IDS = np.random.default_rng(0).integers(3, 97, 40)


def logits(module):
    with torch.inference_mode():
        return module(torch.tensor(IDS)[None]).logits[0].float().numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_ours(name):
    cfg = SHAPES[name]
    params = build(cfg)
    ours = generate.logits(generate.bind(cfg, params, parse("step")), IDS)
    module = torch_model.module(cfg, params)
    assert relative_error(logits(module), ours) <= 1e-4
    with torch.inference_mode():
        again = torch_static.prompt_logits(
            torch_static.fixed(module), torch.tensor(IDS)[None], None, torch.arange(len(IDS))
        )
    assert relative_error(again[0], ours) <= 1e-4


def test_scaling_is_not_left_out():
    plain = SHAPES["llama"]
    params = build(plain)
    before = logits(torch_model.module(plain, params))
    for name in ("linear", "llama3", "factors"):
        assert relative_error(logits(torch_model.module(SHAPES[name], params)), before) > 1e-2


def test_bfloat16_stays_bfloat16():
    cfg = SHAPES["llama"]
    params = model.cast(build(cfg), "bfloat16")
    module = torch_model.module(cfg, params)
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert relative_error(logits(module), generate.logits(generate.bind(cfg, params, parse("step")), IDS)) <= 3e-2


@pytest.mark.parametrize("family", config.FAMILIES)
def test_memory_is_shared_where_layouts_agree_and_modules_share_all_of_it(family):
    cfg = config.tiny(family, tie_word_embeddings=family != "qwen2")
    params = build(cfg)
    spans = [(leaf.unsafe_buffer_pointer(), leaf.nbytes) for leaf in jax.tree.leaves(params)]
    module = torch_model.module(cfg, params)
    assert sum(p.numel() for p in module.parameters()) == cfg.num_parameters
    for name, p in module.named_parameters():
        ours = any(start <= p.data_ptr() < start + size for start, size in spans)
        assert ours == (not name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))), name
        assert p.is_contiguous()
        assert not p.requires_grad
    twin = torch_static.fixed(module)
    assert [p.data_ptr() for p in twin.parameters()] == [p.data_ptr() for p in module.parameters()]
    assert {module.training, twin.training} == {False}


def test_a_twin_leaves_the_other_module_as_it_is():
    cfg = SHAPES["factors"]
    module = torch_model.module(cfg, build(cfg))
    before = logits(module)
    other = torch_static.fixed(module)
    assert (module.config._attn_implementation, other.config._attn_implementation) == ("sdpa", torch_static.ATTENTION)
    assert np.array_equal(logits(module), before)


def test_a_missing_weight_is_named():
    cfg = config.tiny()
    weights = torch_model.shared(cfg, build(cfg))
    del weights["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(ValueError, match=r"no weight for model.layers.1.mlp.down_proj.weight"):
        torch_model.assembled(torch_model.described(cfg), weights, None)


def test_other_weights_are_other_logits():
    cfg = SHAPES["llama"]
    first, second = (torch_model.module(replace(cfg), build(cfg, seed)) for seed in (0, 1))
    assert relative_error(logits(first), logits(second)) > 1e-2
