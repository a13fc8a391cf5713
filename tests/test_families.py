"""Families in the one transformer: parity with transformers, every way in and out, every placement and cache."""

import shutil
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from llama_jax import attention, checkpoint, config, embeddings, generate, head, kvc, layer, model, rope
from llama_jax.checkpoint import random
from llama_jax.checkpoint.tensors import named
from llama_jax.placement import LADDER, parse
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import program
from llama_lab.activations.spec import Site
from tests.conftest import (
    LLAMA_SHAPE,
    among_the_fast,
    build,
    continuation,
    edit_json,
    relative_error,
    same,
    torch_logits,
)
from tests.families import IN_GGUF, MODELS, gpt2, made, newer, qwen2, write_gguf

NEW = 32
CACHES = ("step+nocache", "step+growing", "step+scan", "loop+scan", "eager+nocache")


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """(our checkpoint, transformers' model) of one model written to disk in the hub's layout."""
    model, folder = made(request.param), tmp_path_factory.mktemp("hub")
    model.save_pretrained(folder)
    return checkpoint.load(str(folder)), model


def equal(cfg, params, theirs, ids, prompt):
    engine = generate.bind(cfg, params, parse("loop"))
    assert relative_error(generate.logits(engine, ids), torch_logits(theirs, ids)) <= 1e-4
    assert generate.answer(engine, [prompt], NEW)[0].token_ids == continuation(theirs, prompt, NEW)


def test_logits_and_greedy_tokens_equal_transformers(both):
    ours, theirs = both
    ids = np.random.default_rng(0).integers(3, 97, 50)
    equal(ours.config, ours.params, theirs, ids, ids[:9].tolist())


@pytest.mark.slow
def test_gpt2_at_full_shapes_equals_transformers():
    torch.manual_seed(0)
    theirs = GPT2LMHeadModel(GPT2Config()).eval()
    cfg, params = checkpoint.from_torch(theirs)
    assert cfg == config.PRESETS["gpt2"]
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, 24).tolist()
    equal(cfg, params, theirs, ids, ids)


TABLE = "model.embed_tokens"


@pytest.mark.parametrize(
    ("name", "table"),
    [("gpt2", "transformer.wte"), *((f, TABLE) for f in ("qwen2", "phi3", "smollm3", "llama, biases"))],
)
def test_torch_and_back_is_bit_exact(name, table):
    theirs = made(name)
    for dtype in ("float32", "bfloat16"):
        theirs = theirs.to(getattr(torch, dtype))
        cfg, params = checkpoint.from_torch(theirs, dtype=dtype)
        back, before = checkpoint.to_torch(cfg, params), theirs.state_dict()
        assert set(back) == set(before)
        assert all(back[key].dtype == before[key].dtype and torch.equal(back[key], before[key]) for key in before)
        assert back["lm_head.weight"].data_ptr() == back[f"{table}.weight"].data_ptr()
        type(theirs)(theirs.config).load_state_dict(back, strict=True)


def test_gemmas_norms_are_stored_less_one():
    theirs = made("gemma3")
    cfg, params = checkpoint.from_torch(theirs)
    norm = theirs.model.layers[0].self_attn.q_norm.weight.numpy(force=True)
    np.testing.assert_array_equal(params.layers[0].attention.q_norm.weight, norm + 1)
    back = checkpoint.to_torch(cfg, params)
    for name, values in theirs.state_dict().items():
        torch.testing.assert_close(back[name], values, rtol=0, atol=2e-7 if "norm" in name else 0)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: gpt2().state_dict(), "give from_torch"),
        (lambda: gpt2(scale_attn_by_inverse_layer_idx=True), "inverse_layer_idx"),
        (lambda: gpt2(activation_function="relu"), "activation_function is 'relu'"),
        (lambda: qwen2(use_sliding_window=True), "use_sliding_window is True"),
        (lambda: newer("gemma3_text", final_logit_softcapping=30.0), "final_logit_softcapping is 30.0"),
        (lambda: newer("gemma3_text", use_bidirectional_attention=True), "use_bidirectional_attention is True"),
        (lambda: newer("qwen3", use_sliding_window=True, max_window_layers=1), "use_sliding_window is True"),
        (lambda: newer("smollm3", mlp_bias=True, hidden_size=32), "mlp_bias is True"),
    ],
)
def test_torch_needs_a_configuration_and_a_known_kind(model, words):
    with pytest.raises(UserError, match=words):
        checkpoint.from_torch(model())


@pytest.mark.parametrize("family", config.FAMILIES)
def test_flax_and_back_is_bit_exact(family):
    cfg = config.tiny(family, tie_word_embeddings=False)
    params = build(cfg)
    tree = checkpoint.to_flax(cfg, params)
    assert same(checkpoint.from_flax(cfg, {"params": tree}), params)
    if family == "gpt2":
        down, norm = tree["transformer"]["h"]["1"]["mlp"]["c_proj"], tree["transformer"]["ln_f"]
    else:
        down, norm = tree["model"]["layers"]["1"]["mlp"]["down_proj"], tree["model"]["norm"]
    assert down["kernel"].shape == (cfg.intermediate_size, cfg.hidden_size)  # [in, out], as nn.Dense has it
    assert norm["scale"].shape == (cfg.hidden_size,)
    norm["extra"] = norm["scale"]
    with pytest.raises(UserError, match="extra"):
        checkpoint.from_flax(cfg, tree)
    del norm["extra"], norm["scale"]
    with pytest.raises(UserError, match="has no .*scale"):
        checkpoint.from_flax(cfg, tree)


def test_the_hubs_own_gpt2_has_shorter_names_and_a_mask(tmp_path):
    model = made("gpt2")
    model.save_pretrained(tmp_path)
    shorter = {k.removeprefix("transformer."): v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 128, 128) for i in range(2)}
    save_file({k: v.contiguous() for k, v in (shorter | masks).items()}, tmp_path / "model.safetensors")
    assert same(checkpoint.load_params(str(tmp_path)), checkpoint.from_torch(model)[1])
    edit_json(tmp_path / "config.json", n_head=...)
    with pytest.raises(UserError, match="no n_head"):
        checkpoint.load(str(tmp_path))


@pytest.mark.parametrize(
    "make", [lambda **changes: LlamaForCausalLM(LlamaConfig(**LLAMA_SHAPE | changes)), qwen2, gpt2]
)
def test_a_head_of_its_own_is_used_though_the_configuration_says_that_it_is_the_table(tmp_path, make):
    """As transformers 5 does; a head that repeats the table is not kept, and a table that is missing is the head."""
    torch.manual_seed(0)
    model = make(tie_word_embeddings=False).eval()
    model.save_pretrained(tmp_path)
    ids = list(range(3, 40))
    edit_json(tmp_path / "config.json", tie_word_embeddings=True)
    theirs = type(model).from_pretrained(tmp_path).eval()
    own = checkpoint.load(str(tmp_path))
    assert not own.config.tie_word_embeddings
    assert relative_error(generate.logits(generate.build(own, "step"), ids), torch_logits(theirs, ids)) <= 1e-4
    model.config.tie_word_embeddings = True
    assert same(checkpoint.from_torch(model)[1], own.params)

    stored = load_file(tmp_path / "model.safetensors")
    (table,) = (name for name in stored if name.endswith(("embed_tokens.weight", "wte.weight")))
    repeated, alone = (
        stored | {"lm_head.weight": stored[table].clone()},
        {k: v for k, v in stored.items() if k != table},
    )
    for name, changed in (("repeated", repeated), ("alone", alone)):
        folder = tmp_path / name  # a file that somebody has mapped is not written over
        folder.mkdir()
        shutil.copy(tmp_path / "config.json", folder)
        save_file(changed, folder / "model.safetensors", {"format": "pt"})
        tied, theirs = checkpoint.load(str(folder)), type(model).from_pretrained(folder).eval()
        assert tied.config.tie_word_embeddings
        assert relative_error(generate.logits(generate.build(tied, "step"), ids), torch_logits(theirs, ids)) <= 1e-4


def test_a_gguf_of_gpt2_that_repeats_the_table_as_its_head_is_tied(written):
    """As some converters write it."""
    cfg, params, path = written("gpt2")
    tensors = named(cfg, params)
    write_gguf(path, cfg, tensors | {"lm_head.weight": tensors["transformer.wte.weight"]})
    loaded = checkpoint.load(str(path))
    assert loaded.config == cfg
    assert same(loaded.params, params)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """name → (configuration, parameters, the GGUF file that holds them) of one of `MODELS`."""
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))

    def write(name):
        cfg, params = checkpoint.from_torch(made(name))
        write_gguf(tmp_path / "m.gguf", cfg, named(cfg, params))
        return cfg, params, tmp_path / "m.gguf"

    return write


@pytest.mark.parametrize("name", IN_GGUF)
def test_gguf_of_these_architectures(written, name):
    cfg, params, path = written(name)
    loaded = checkpoint.load(str(path))
    scale = loaded.config.rotary_scale
    assert replace(loaded.config, rotary_scale=cfg.rotary_scale) == cfg
    assert scale == pytest.approx(cfg.rotary_scale, rel=1e-6)  # float32 there
    assert same(loaded.params, params)


@pytest.fixture(scope="module", params=[family for family in config.FAMILIES if family != "llama"])
def family(request):
    """(configuration, weights, prompts, an engine, its answers)."""
    cfg = config.tiny(request.param)
    params, prompts = build(cfg), [[5, 9, 33, 60, 2, 7, 1], [8, 3], [44] * 11]
    engine = generate.bind(cfg, params, parse("step"))
    return cfg, params, prompts, engine, generate.answer(engine, prompts, 10)


@pytest.mark.parametrize("name", among_the_fast(("loop", "step+nocache"), [*LADDER, *CACHES]))
def test_every_placement_and_cache_makes_the_same_tokens(family, name):
    cfg, params, prompts, _, expected = family
    n = 4 if "growing" in name else 10
    answers = generate.answer(generate.bind(cfg, params, parse(name)), prompts, n)
    assert [a.token_ids for a in answers] == [a.token_ids[:n] for a in expected]


def test_a_padded_row_equals_the_row_alone(family):
    _, _, prompts, engine, expected = family
    alone = [generate.answer(engine, [p], 10, length=len(p))[0] for p in prompts[:2]]
    assert alone == expected[:2]


def test_learned_positions_end_where_their_table_ends():
    cfg = config.tiny("gpt2", max_position_embeddings=32)
    engine = generate.bind(cfg, build(cfg), parse("step"))
    assert len(generate.answer(engine, [[1] * 20], 12)[0].token_ids) == 12
    with pytest.raises(UserError, match="context of 32"):
        generate.answer(engine, [[1] * 20], 13)


def test_random_biases_are_not_ones():
    tensors = random.open_random(config.tiny("gpt2"), 0).tensors
    assert np.all(tensors["transformer.h.0.ln_1.weight"].read() == 1)
    assert 0 < np.abs(tensors["transformer.h.0.attn.c_attn.bias"].read()).max() < 0.2


@pytest.mark.parametrize("name", ["loop+lookup", "step+scan+lookup"])
@pytest.mark.parametrize("kind", ["gemma3", "smollm3"])
def test_drafts_and_a_cache_of_integers_work_in_layers_that_differ(kind, name):
    cfg = config.tiny(kind)
    params, prompt = build(cfg), [5, 9, 33, 5, 9, 33, 5, 9]
    plain, drafted = (generate.bind(cfg, params, parse(each)) for each in ("step", name))
    assert generate.answer(drafted, [prompt], 20)[0].token_ids == generate.answer(plain, [prompt], 20)[0].token_ids
    kept = generate.bind(cfg, params, replace(parse("step"), kv="int8"))
    assert len(generate.answer(kept, [prompt], 5)[0].token_ids) == 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_transformers_reads_the_same_gguf_the_same_way(written, name):

    *_, path = written(name)
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ids = np.random.default_rng(1).integers(3, 97, 20)
    ours = generate.logits(generate.build(checkpoint.load(str(path)), "step"), ids)
    assert relative_error(ours, torch_logits(theirs, ids)) <= 1e-4


def test_activations_of_every_family_are_of_the_same_model(family):
    """Logits of packed examples, segments in one row, are those of each alone; windows end within a segment."""
    cfg, params, prompts, engine, _ = family
    lengths = [len(p) for p in prompts]
    ids = jnp.asarray([np.concatenate(prompts)])
    positions = jnp.asarray([[i for n in lengths for i in range(n)]])
    segments = jnp.asarray([np.repeat([1, 2, 3], lengths)])
    found = program.tapped(params, ids, positions, segments, config=cfg, sites=[Site("logits")])["logits"][0]
    expected = np.concatenate([generate.logits(engine, prompt) for prompt in prompts])
    assert relative_error(found, expected) <= 1e-4


@pytest.mark.parametrize("family", ["mistral", "smollm3", "gemma3", "qwen3"])
def test_a_step_of_parts_is_the_models(family):
    """Layers that differ take their own rope; without one a line says so. Padding may stand before and between."""
    cfg = config.tiny(family)
    weights, ids = model.create(cfg, build(cfg)), np.arange(5, 17)
    mask = jnp.asarray([[0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    padded = jnp.asarray(np.where(mask[0], 0, 1))
    padded = padded.at[np.flatnonzero(mask[0])].set(ids)[None]
    x, seen = embeddings.forward(cfg, weights.embeddings, padded), attention.attention_mask(cfg, mask)
    caches = list(kvc.create(cfg, slots=20))
    if weights.rope is None:
        with pytest.raises(UserError, match=r"rope.create\(config, i\)"):
            layer.forward(cfg, weights.layers[0], weights.rope, seen, x, caches[0])
    for i, params in enumerate(weights.layers):
        x, caches[i] = layer.forward(cfg, params, rope.create(cfg, i), seen, x, caches[i])
    expected = generate.logits(generate.bind(cfg, build(cfg), parse("step")), ids.tolist())[-1]
    assert relative_error(head.forward(cfg, weights.head, x, mask)[0], expected) <= 1e-4
