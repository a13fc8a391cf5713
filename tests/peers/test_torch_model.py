"""transformers' modules on our weights: the same logits in every family and with every kind of rotary scaling, and no
copy; in int8 every linear layer, the float module untouched, rounding of the size that 8 bits have."""

import dataclasses

import jax
import numpy as np
import pytest
import torch

from llama_jax import config, generate, model
from llama_jax.config import RopeScaling
from llama_jax.placement import parse
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import torch as subjects
from llama_lab.peers import torch_model, torch_static
from tests.conftest import build, relative_error
from tests.peers.conftest import small, some_ids, trial

SHAPES = {
    **{family: config.tiny(family) for family in peers.TWINS},
    "llama, untied": config.tiny(tie_word_embeddings=False),
    "gpt2, untied": config.tiny("gpt2", tie_word_embeddings=False),
    "qwen2, heads of their own width": config.tiny("qwen2", head_dim=16, tie_word_embeddings=False),
    "linear": config.tiny(rope_scaling=RopeScaling("linear", 4.0)),
    "llama3": config.tiny(rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16)),
    "factors": config.tiny(rope_scaling=RopeScaling("factors", factors=(1.0, 2.0, 5.0, 9.0))),
}
IDS = np.array(some_ids(40))
INT8 = "torch-int8"


def logits(module, **options):
    with torch.inference_mode():
        return module(torch.tensor(IDS)[None], **options).logits[0].float().numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_ours_and_scaling_is_not_left_out(name):
    cfg = SHAPES[name]
    params = build(cfg)
    ours = generate.logits(generate.bind(cfg, params, parse("step")), IDS)
    module = torch_model.module(cfg, params)
    made = logits(module)
    assert relative_error(made, ours) <= 1e-4
    twin = torch_static.fixed(module)
    with torch.inference_mode():
        again = torch_static.prompt_logits(twin, torch.tensor(IDS)[None], None, torch.arange(len(IDS)))
    assert relative_error(again[0], ours) <= 1e-4
    assert np.array_equal(logits(module), made)  # a twin leaves the other module as it is
    if cfg.rope_scaling:
        assert relative_error(logits(torch_model.module(SHAPES["llama"], params)), made) > 1e-2


def test_bfloat16_stays_bfloat16():
    cfg = SHAPES["llama"]
    params = model.cast(build(cfg), "bfloat16")
    module = torch_model.module(cfg, params)
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert relative_error(logits(module), generate.logits(generate.bind(cfg, params, parse("step")), IDS)) <= 3e-2


@pytest.mark.parametrize("family", peers.TWINS)
def test_memory_is_shared_where_layouts_agree_and_modules_share_all_of_it(family):
    loaded = small(family)
    spans = [(leaf.unsafe_buffer_pointer(), leaf.nbytes) for leaf in jax.tree.leaves(loaded.params)]
    module = torch_model.module(loaded.config, loaded.params)
    assert sum(p.numel() for p in module.parameters()) == loaded.config.num_parameters
    for name, p in module.named_parameters():
        ours = any(start <= p.data_ptr() < start + size for start, size in spans)
        assert ours == (not name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))), name
        assert (p.is_contiguous(), p.requires_grad) == (True, False)
    twin = torch_static.fixed(module)
    assert [p.data_ptr() for p in twin.parameters()] == [p.data_ptr() for p in module.parameters()]
    assert {module.training, twin.training} == {False}
    assert (module.config.eos_token_id, module.generation_config.eos_token_id) == (None, None)  # no token ends a text


def test_a_missing_weight_is_named(llama):
    weights = torch_model.shared(llama.config, llama.params)
    del weights["model.layers.0.mlp.down_proj.weight"]
    with pytest.raises(ValueError, match=r"no weight for model.layers.0.mlp.down_proj.weight"):
        torch_model.assembled(torch_model.described(llama.config), weights, None)


@pytest.mark.parametrize("family", peers.TWINS)
def test_in_int8_every_linear_layer_is_rounded_to_eight_bits_and_the_float_module_stays(family):
    loaded = small(family)
    module = subjects.shared_module(loaded)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    made = torch_model.quantised(module)
    assert "Conv1D" not in {type(part).__name__ for part in made.modules()}
    assert not [part for part in made.modules() if isinstance(part, torch.nn.Linear)]
    quantised = [part for part in made.modules() if isinstance(part, torch.ao.nn.quantized.dynamic.Linear)]
    assert len(quantised) == (4 if family == "gpt2" else 7) * loaded.config.num_hidden_layers + 1  # and the head
    assert {part.weight().qscheme() for part in quantised} == {torch.per_channel_affine}
    assert made.get_input_embeddings().weight.data_ptr() == module.get_input_embeddings().weight.data_ptr()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    exact, rounded = (subjects.logits(loaded, name)(IDS[:7]) for name in ("torch", INT8))
    assert exact.shape == rounded.shape == (7, 97)
    assert 1e-4 < relative_error(rounded, exact) < 0.1


def test_an_int8_product_is_that_of_rounded_factors():
    """One layer by hand: weights of one scale a row, activations of one scale and zero point for all of them."""
    module = subjects.shared_module(small("qwen2"))
    made = torch_model.quantised(module)
    exact, rounded = (each.get_submodule("model.layers.0.self_attn.q_proj") for each in (module, made))
    x = torch.tensor(np.random.default_rng(0).normal(size=(3, exact.in_features)), dtype=torch.float32)
    w = exact.weight.detach().numpy()
    scale = np.abs(w).max(1, keepdims=True) / 127.5
    weights = np.clip(np.rint(w / scale), -128, 127) * scale
    step = (x.max() - x.min()).item() / 127  # seven bits: room in 16 for the sum of two products
    with torch.inference_mode():
        found, unrounded = rounded(x).numpy(), exact(x).numpy()
    expected = (np.rint(x.numpy() / step) * step) @ weights.T + exact.bias.detach().numpy()
    apart = np.abs(found - expected)
    assert (apart < 1e-5).mean() > 0.8  # the others have a factor halfway between two integers
    assert apart.max() < 0.2 * np.abs(found - unrounded).max()
    assert relative_error(found, unrounded) > 1e-3


def test_int8_generates_and_its_trials_are_approximate(llama):
    work, subject = Workload((IDS[:5],), new_tokens=7, length=8, batch=2), peers.subject(llama, INT8)
    assert {k: subject.identity[k] for k in ("dtype", "quantisation", "weight_bytes", "cache", "cache_bytes")} == dict(
        dtype="int8", quantisation="int8-dynamic", weight_bytes=1, cache="growing", cache_bytes=4
    )
    record, made = trial(subject, work)
    assert made.shape == (7, 2)
    assert np.array_equal(made[:, 0], made[:, 1])
    assert protocol.Reference(llama, work).judge(record, made).valid
    exact = dataclasses.replace(subject, identity={**subject.identity, "quantisation": "none", "dtype": "float32"})
    record, _ = trial(exact, work)  # only one that says that it rounds may part
    assert not protocol.Reference(llama, work).judge(record, (made + 1) % 97).valid


def test_where_int8_cannot_run_the_gap_says_so(llama, monkeypatch):
    assert peers.missing([INT8], "m") == []
    monkeypatch.setattr(subjects, "engines", set)
    assert "no integer products" in peers.missing([INT8], "m")[0]["reason"]
    monkeypatch.setattr(subjects, "device", lambda: "cuda")
    (gap,) = peers.missing([INT8], "m")
    assert "GPU" in gap["reason"]
    assert "CUDA_VISIBLE_DEVICES" in gap["remedy"]
    with pytest.raises(peers.UnavailableError, match="GPU"):
        subjects.logits(llama, INT8)
