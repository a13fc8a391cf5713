"""Generation on quantised weights: every placement, family and form, and the kernels' place in the program."""

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import checkpoint, config, generate, linear, model, prompts, transforms
from llama_jax.block_types import LAYOUTS
from llama_jax.checkpoint import random, tensors
from llama_jax.kernels import gemv
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import Blocks, is_quantised
from llama_lab.bench import quality
from tests.conftest import among_the_fast, build, relative_error

N = 10
PROMPTS = [[5, 9, 33, 60, 2, 7, 1], [8, 3], [44] * 11]
WAYS = ("eager", "layer", "split", "step+donate", "chunk8", "loop", "step+scan", "loop+scan", "step+nocache",
        "step+growing", "chunk8+async", "step+aot", "loop+kvint8")  # fmt: skip


def small(family="llama", **changes):
    cfg = config.tiny(family, **changes)
    return cfg, build(cfg)


def answers(engine, n=N):
    return [a.token_ids for a in generate.answer(engine, PROMPTS, n)]


@pytest.fixture(scope="module")
def dequantised(tiny):
    """(weights' form, placement, tokens) → the answers of the dequantised weights, made once."""
    cfg, params = tiny
    expanded = functools.cache(lambda weights: model.cast(model.quantised(params, weights), jnp.float32))
    return functools.cache(
        lambda weights, placement, n: answers(generate.bind(cfg, expanded(weights), parse(placement)), n)
    )


NAMES = [f"{p}+{'q4_1' if i % 2 else 'int8'}" for i, p in enumerate(WAYS)]


@pytest.mark.parametrize("name", among_the_fast([NAMES[i] for i in (2, 5, 6, 8, -1)], NAMES))
def test_every_placement_makes_the_tokens_of_the_dequantised_weights(tiny, dequantised, name):
    placed = parse(name)
    kept = "+kvint8" if placed.kv == "int8" else ""
    n = 4 if placed.cache == "growing" else N
    assert answers(generate.bind(*tiny, placed), n) == dequantised(placed.weights, "step" + kept, n)


FORMS = {"q8_0": (0.015, 3e-6), "int8": (0.015, 3e-6), "q4_0": (0.15, 3e-4), "q4_1": (0.15, 3e-4)}  # error, divergence


@pytest.mark.parametrize(
    ("family", "form"),
    among_the_fast([("llama", "q8_0"), ("llama", "q4_1")], itertools.product(config.FAMILIES, FORMS)),
)
def test_logits_of_every_family_are_near_those_of_float32(family, form):
    cfg = config.tiny(family, tie_word_embeddings=family == "gpt2", hidden_size=64, num_attention_heads=4, head_dim=16)
    params = tensors.assemble(random.open_random(cfg, 0), "float32")
    ids = np.random.default_rng(0).integers(3, 97, 40)
    exact = np.asarray(generate.logits(generate.bind(cfg, params, parse("step")), ids))
    logits = np.asarray(generate.logits(generate.bind(cfg, params, parse(f"step+{form}")), ids))
    rounded = model.cast(model.quantised(params, form), jnp.float32)
    assert relative_error(logits, np.asarray(generate.logits(generate.bind(cfg, rounded, parse("step")), ids))) < 1e-5
    error, divergence = FORMS[form]
    if family == "gemma3":  # a norm after each block makes its output as large as the residual: more of it is rounded
        error, divergence = 1.8 * error, 1.8**2 * divergence
    assert 1e-4 < relative_error(logits, exact) <= error
    assert quality.against(exact, logits)["kl"].mean() <= divergence


@pytest.mark.parametrize(
    ("family", "form"),
    among_the_fast([("gpt2", "q8_0"), ("qwen2", "q8_0")], itertools.product(config.FAMILIES, ("int8", "q8_0"))),
)
def test_every_family_generates_alike_under_step_and_loop(family, form):
    cfg, params = small(family, tie_word_embeddings=family == "gpt2")
    step, loop = (answers(generate.bind(cfg, params, parse(f"{name}+{form}"))) for name in ("step", "loop"))
    assert step == loop


@pytest.mark.slow
def test_the_packaged_model_stays_the_same_model(packaged):
    """The file's own blocks are the weights, so only the order of sums may differ; the others round them once more."""
    ids = packaged.tokenizer.encode(" ".join(prompts.load(20)))[:48]
    exact = generate.logits(generate.build(packaged, "step"), ids)
    for form, mean, agree in (("gguf", 1e-9, 1), ("q8_0", 4e-3, 0.9), ("int8", 1e-2, 0.9)):
        compared = quality.against(exact, generate.logits(generate.build(packaged, f"step+{form}"), ids))
        assert compared["kl"].mean() <= mean
        assert compared["agree"].mean() >= agree


def test_layers_of_different_kinds_do_not_stack():
    cfg, params = small()
    one, two = (model.quantised(params, form).layers[i] for i, form in enumerate(("q4_0", "q8_0")))
    mixed = model.Model(params.embeddings, (one, two), params.head)
    with pytest.raises(UserError, match="all layers quantised alike"):
        generate.bind(cfg, mixed, parse("step+scan"))


def test_what_the_weights_are_kept_as_has_a_name():
    _, params = small()
    assert model.kinds(params) == "float32"
    assert model.kinds(model.quantised(params, "q4_1")) == "q4_1+q8_0"
    assert model.kinds(model.quantised(params, "int8")) == "int8"
    assert model.kinds(model.cast(model.quantised(params, "q4_1"), jnp.bfloat16)) == "bfloat16"


# Kernels --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch):
    """Products in XLA in the kernel's place, counted as they are traced."""
    kinds = {layout.group: kind for kind, layout in LAYOUTS.items()}
    seen = types.SimpleNamespace(products=0)

    def product(x, data, shape):
        seen.products += 1
        assert x.dtype == jnp.float32
        return linear.matmul(x, Blocks(data, kinds[data.shape[-1]], shape).dequantised(), jnp.float32)

    monkeypatch.setattr(gemv, "product", product)
    monkeypatch.setattr("llama_jax.kernels.check", lambda: None)
    return seen


@pytest.mark.parametrize(
    "name",
    among_the_fast(
        ("split", "loop", "step+scan"),
        ["layer", "split", "step", "chunk8", "loop", "step+scan", "step+nocache", "step+growing"],
    ),
)
def test_gemv_multiplies_in_every_placement(tiny, kernels, name):
    cfg, params = tiny
    n = 4 if "growing" in name else N
    engine = generate.bind(cfg, params, parse(f"{name}+gemv"))
    weights = jax.tree.leaves(engine.params, is_leaf=is_quantised)
    assert {w.product for w in weights if is_quantised(w)} == {gemv.product}
    assert answers(engine, n) == answers(generate.bind(cfg, params, parse("step+q8_0")), n)
    assert kernels.products


def test_kernels_take_the_files_own_blocks_where_it_has_them(packaged, kernels):
    loaded = checkpoint.Checkpoint("mine", *small(), None, "", "here", "float32")
    names = ("step", "step+gemv", "step+q4_0+gemv", "step+bf16")
    assert [generate.form(packaged, parse(name)) for name in names] == [None, "gguf", "q4_0", None]
    assert generate.form(loaded, parse("loop+fused")) == "q8_0"
    weight = generate.build(packaged, "step+gemv").params.layers[0].ffn.down
    assert isinstance(weight, Blocks)
    # shared with every other placement on these blocks
    assert weight.data is packaged.weights("gguf").layers[0].ffn.down.data


def test_kernels_multiply_by_blocks_alone(tiny, kernels):
    cfg, params = tiny
    with pytest.raises(UserError, match="these weights are int8; use weights='q8_0'"):
        generate.bind(cfg, model.quantised(params, "int8"), parse("step+gemv"))


def test_a_cache_over_quantised_weights_is_float32(tiny):
    for name, dtype in (("step+q4_0", jnp.float32), ("step+q4_0+kvf16", jnp.float16)):
        engine = generate.bind(*tiny, parse(name))
        cache = transforms.new_cache(engine.params, jnp.zeros(1, jnp.int32), 8, engine.config, engine.placement)
        assert cache.entries[0][0].dtype == dtype
