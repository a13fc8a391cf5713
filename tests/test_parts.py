"""A step that a person composes of the model's parts: equal to the package's own, under any place of jit."""

import pathlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llama_jax as ll
from llama_jax import checkpoint, config, kvc, model
from llama_jax.chat import Message
from llama_jax.checkpoint import ModelConfig
from llama_jax.checkpoint.random import open_random
from llama_jax.checkpoint.tensors import assemble
from llama_jax.kvc import KVCache
from llama_jax.plumbing.errors import UserError
from tests.activations.stores import says

PROMPTS = ([5, 9, 2, 77, 31], [8, 3])  # of two lengths: the second is padded


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def composed(request):
    cfg = config.tiny(request.param)
    params = assemble(open_random(cfg, 0), "float32")
    return cfg, params, model.create(cfg, params)


def padded(side: str = "left", width: int = 5) -> tuple[jax.Array, jax.Array]:
    """(ids, position mask) of PROMPTS."""
    ids, mask = np.zeros((2, len(PROMPTS), width), np.int32)
    for i, prompt in enumerate(PROMPTS):
        at = slice(width - len(prompt), width) if side == "left" else slice(len(prompt))
        ids[i, at], mask[i, at] = prompt, 1
    return jnp.asarray(ids), jnp.asarray(mask)


def transform(cfg, params, ids, position_mask, cache, layer=ll.layer.forward, positions=None):
    x = ll.embeddings.forward(cfg, params.embeddings, ids, positions)
    mask, layers = ll.attention.attention_mask(cfg, position_mask), list(cache)
    for i, part in enumerate(params.layers):
        x, layers[i] = layer(cfg, part, params.rope, mask, x, layers[i])
    return ll.head.forward(cfg, params.head, x, position_mask), KVCache(layers)


def greedy(step, cfg, params, ids, position_mask, count: int, slots: int = 16) -> np.ndarray:
    """Tokens [B count] of a step (ids, position mask, cache) → (logits, cache)."""
    cache, tokens = kvc.create(cfg, slots=slots, rows=len(ids)), []
    for _ in range(count):
        logits, cache = step(cfg, params, ids, position_mask, cache)
        ids = jnp.argmax(logits, axis=-1, keepdims=True).astype(jnp.int32)
        tokens.append(ids)
    return np.concatenate(tokens, axis=1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("jitted", ["nothing", "layer", "transform"])
def test_the_composed_step_makes_the_packages_tokens(composed, jitted, side):
    cfg, params, made = composed
    layer = jax.jit(ll.layer.forward, static_argnames="config") if jitted == "layer" else ll.layer.forward
    step = partial(transform, layer=layer)
    step = jax.jit(step, static_argnums=0) if jitted == "transform" else step
    engine = ll.bind(cfg, params, ll.parse("step"))
    expected = [answer.token_ids for answer in ll.answer(engine, PROMPTS, 6)]
    assert greedy(step, cfg, made, *padded(side), 6).tolist() == [list(row) for row in expected]


def test_a_prompt_may_come_in_pieces(composed):
    cfg, _, made = composed
    ids, mask = padded()
    whole, _ = transform(cfg, made, ids, mask, kvc.create(cfg, slots=8, rows=2))
    _, cache = transform(cfg, made, ids[:, :4], mask, kvc.create(cfg, slots=8, rows=2))
    pieces, cache = transform(cfg, made, ids[:, 4:], mask, cache)
    np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-5)
    assert int(cache.length) == 5


def test_learned_positions_are_asked_for():
    cfg = config.tiny("gpt2")
    params = assemble(open_random(cfg, 0), "float32")
    made, ids, ones = model.create(cfg, params), jnp.asarray([PROMPTS[0]]), jnp.ones((1, 5), jnp.int32)
    with says("learned positions", "positions="):
        transform(cfg, made, ids, ones, kvc.create(cfg))
    with says("positions 0 to 255"):
        transform(cfg, made, ids, ones, kvc.create(cfg), positions=252 + jnp.arange(5)[None])
    logits, _ = transform(cfg, made, ids, ones, kvc.create(cfg), positions=jnp.arange(5)[None])
    engine = ll.bind(cfg, params, ll.parse("step"))
    np.testing.assert_allclose(logits[0], ll.logits(engine, PROMPTS[0])[-1], rtol=1e-4, atol=1e-5)


def test_two_models_of_one_shape_share_a_program(composed):
    cfg, _, made = composed
    step = jax.jit(partial(transform), static_argnums=0)
    for home in (None, config.Home("one", None), config.Home("two", None)):
        placed = ModelConfig(**vars(cfg) | {"home": home})
        assert placed == cfg
        assert "home" not in placed.shape()
        step(placed, made, *padded(), kvc.create(cfg, rows=2, slots=8))
    assert step._cache_size() == 1


def test_a_full_cache_is_a_line_outside_jit_and_not_a_number_inside(composed):
    cfg, _, made = composed
    cache = kvc.create(cfg, slots=6, rows=2)
    step = jax.jit(transform, static_argnums=0)
    for jitted in (False, True):
        logits, filled = (step if jitted else transform)(cfg, made, *padded(), cache)
        token = jnp.zeros((2, 1), jnp.int32)
        logits, filled = (step if jitted else transform)(cfg, made, token, padded()[1], filled)
        assert np.isfinite(logits).all()
    assert np.isnan(step(cfg, made, token, padded()[1], filled)[0]).all()
    with says("6 slots", "slots=7"):
        transform(cfg, made, token, padded()[1], filled)


def wrong(name, cfg, made):
    """A call with one thing wrong."""
    ids, mask = padded()
    good = dict(cfg=cfg, params=made, ids=ids, position_mask=mask, cache=kvc.create(cfg, slots=8, rows=2))
    other = config.tiny(cfg.model_type, head_dim=16)
    changes = {
        "flat ids": dict(ids=ids[0]),
        "float ids": dict(ids=ids * 1.0),
        "list of ids": dict(ids=[[1, 2]]),
        "mask of fewer tokens": dict(position_mask=mask[:, :3]),
        "mask of fewer rows": dict(position_mask=mask[:1]),
        "flat mask": dict(position_mask=mask[0]),
        "mask of floats": dict(position_mask=mask * 1.0),
        "mask past the cache": dict(position_mask=jnp.ones((2, 9), jnp.int32)),
        "mask past the context": dict(position_mask=jnp.ones((2, 257), jnp.int32)),
        "cache of another config": dict(cache=kvc.create(other, slots=8, rows=2)),
        "cache of fewer rows": dict(cache=kvc.create(cfg, slots=8)),
        "cache without slots": dict(cache=kvc.create(cfg, "growing", rows=2)),
        "cache without keys": dict(cache=kvc.create(cfg, "none", rows=2)),
        "stacked cache": dict(cache=kvc.create(cfg, rows=2, stacked=True)),
        "cache with a pad": dict(cache=kvc.create(cfg, pad=jnp.asarray([0, 3]), slots=8)),
        "ids past the vocabulary": dict(ids=ids + cfg.vocab_size - 9),
        "ids below 0": dict(ids=ids - 9),
        "list as mask": dict(position_mask=mask.tolist()),
        "weights without rope": dict(params=ll.model.Model(made.embeddings, made.layers, made.head)),
        "tied head": dict(params=ll.model.Model(made.embeddings, made.layers, made.head, made.rope)),
    }[name]
    return good | changes


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "flat ids": ["int32[5]", "[B T]"],
        "float ids": ["float32[2, 5]", "whole numbers"],
        "list of ids": ["a list", "tokenizer.encode"],
        "mask of fewer tokens": ["[2, 3]", "2 rows of 5"],
        "mask of fewer rows": ["[1, 5]", "2 rows of 5"],
        "flat mask": ["int32[5]", "[B T]"],
        "mask of floats": ["float32[2, 5]", "1 or 0"],
        "mask past the cache": ["9 positions", "8 slots"],
        "mask past the context": ["257", "256"],
        "cache of another config": ["of 16 numbers", "kvc.create(config, rows=2)"],
        "cache of fewer rows": ["rows=2"],
        "cache without slots": ["9 positions|0 slots"],
        "cache without keys": ["layer by layer", "kvc.create(config)"],
        "stacked cache": ["layer by layer", "not stacked"],
        "cache with a pad": ["pad", "rows=B"],
        "ids past the vocabulary": ["0 to 96"],
        "ids below 0": ["0 to 96"],
        "list as mask": ["list[]", "[B T]"],
        "weights without rope": ["no rope", "model.create(config)"],
    }.items(),
)
def test_wrong_input_is_one_line(composed, name, words):
    cfg, _, made = composed
    with pytest.raises(UserError) as raised:
        transform(*wrong(name, cfg, made).values())
    assert all(any(word in str(raised.value) for word in words_of.split("|")) for words_of in words), raised.value


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (3, lambda mask: mask * 2, "int32[2, 5]"),  # which would be taken for a mask bit by bit
        (3, lambda mask: jnp.where(mask, 0, -jnp.inf), "float32[2, 5]"),
        (3, lambda mask: jnp.ones((2, 5, 5), bool), "bool[2, 5, 5]"),
        (4, lambda x: x[0], "[5, 32]"),
        (5, lambda cache: KVCache([cache]), "KVCache"),
    ],
)
def test_what_a_layer_refuses(composed, at, value, words):
    cfg, _, made = composed
    x = ll.embeddings.forward(cfg, made.embeddings, padded()[0])
    given = [cfg, made.layers[0], made.rope, padded()[1], x, next(iter(kvc.create(cfg, slots=8, rows=2)))]
    given[3] = given[3] == 1 if at != 3 else given[3]
    given[at] = value(given[at])
    with says(words):
        ll.layer.forward(*given)


@pytest.mark.parametrize(
    "given", [dict(policy=1024), dict(slots=-1), dict(slots=8.0), dict(rows=-1), dict(dtype="int4")]
)
def test_a_cache_that_cannot_be_is_one_line(given):
    with says(str(next(iter(given))), str(next(iter(given.values())))):
        kvc.create(config.tiny(), **given)


def test_a_cache_takes_a_dtype_by_any_of_its_names():
    cfg = config.tiny()
    for dtype in ("int8", np.int8, jnp.int8, jnp.dtype("int8")):
        assert [part.shape[-1] for part in kvc.create(cfg, dtype=dtype).entries[0]] == [cfg.head_dim] * 2 + [1, 1]
    assert {kvc.create(cfg, dtype=dtype).entries[0][0].dtype.name for dtype in ("bf16", "bfloat16")} == {"bfloat16"}


def test_steps_can_be_scanned_from_an_empty_cache_and_ids_that_are_none_are_not_a_number_there(composed):
    cfg, _, made = composed

    def body(cache, token):
        logits, cache = transform(cfg, made, token, jnp.ones((1, 1), jnp.int32), cache)
        return cache, logits

    def scanned(ids):
        return jax.lax.scan(body, kvc.create(cfg, slots=8), ids.T[:, :, None])

    ids = padded()[0][:1]
    whole, _ = transform(cfg, made, ids, jnp.ones((1, 5), jnp.int32), kvc.create(cfg, slots=8))
    cache, logits = scanned(ids)
    np.testing.assert_allclose(logits[-1], whole, rtol=1e-4, atol=1e-5)
    assert int(cache.length) == 5
    assert np.isnan(scanned(ids.at[0, 2].set(cfg.vocab_size))[1]).any(axis=(1, 2)).tolist() == [False] * 2 + [True] * 3


def test_a_layer_may_overwrite_its_cache(composed):
    cfg, _, made = composed
    layer = jax.jit(ll.layer.forward, static_argnames="config", donate_argnames="layer_cache")
    expected = greedy(transform, cfg, made, *padded(), 3)
    np.testing.assert_array_equal(greedy(partial(transform, layer=layer), cfg, made, *padded(), 3), expected)


def test_what_create_refuses(composed):
    cfg, params, made = composed
    with says("loaded already", "dtype='bfloat16'"):
        model.create(cfg, params, dtype="bfloat16")
    with says("Checkpoint", ".params"):
        model.create(cfg, checkpoint.Checkpoint("", cfg, params, None, "", "", "float32"))
    for change in (dict(num_hidden_layers=3), dict(vocab_size=96), dict(hidden_size=64)):
        with says("These weights have 2 layers of width 32 and 97 tokens"):
            model.create(config.tiny(cfg.model_type, **change), params)
    assert model.cast(made, jnp.bfloat16).rope == model.quantised(made, "int8").rope == made.rope
    with says("names no weights", "load_config"):
        model.create(cfg)
    with says("stacked"):
        model.create(cfg, model.stack(params))
    with says("shares the embedding's matrix", "model.create"):
        ll.head.forward(cfg, params.head, jnp.zeros((1, 1, cfg.hidden_size)), jnp.ones((1, 1), jnp.int32))
    with says("read from no checkpoint"):
        checkpoint.load_tokenizer(cfg)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("SmolLM2-135M-Instruct", checkpoint.DEFAULT),
        ("smollm2.135m.instruct", checkpoint.DEFAULT),
        ("Qwen2.5-Coder_0.5B", "qwen2.5-coder-0.5b"),
        ("random:SmolLM2-135M", "random:smollm2-135m"),
        ("Random:Llama3.2-1B,num_hidden_layers=2:7", "random:llama-3.2-1b,num_hidden_layers=2:7"),
        ("random:nothing:1", "random:nothing:1"),
        ("somebody/Model.7B", "somebody/Model.7B"),
        ("./SmolLM2-135M-Instruct", "./SmolLM2-135M-Instruct"),  # a folder that is not there, not the packaged model
        (pathlib.Path("~/smollm2-135m-instruct"), "~/smollm2-135m-instruct"),
    ],
)
def test_known_names_in_any_spelling(given, name):
    assert checkpoint.canonical(given) == name


def test_a_folder_goes_before_a_name_that_is_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SmolLM2-135M-Instruct").mkdir()
    assert checkpoint.canonical("SmolLM2-135M-Instruct") == "SmolLM2-135M-Instruct"


def test_a_model_that_is_not_here_says_what_is():
    with says("'Llama3.2-3b-Instruct'", "random:llama-3.2-3b", checkpoint.DEFAULT):
        checkpoint.load_config("Llama3.2-3b-Instruct")


def test_prompts_to_arrays_and_back(packaged):
    tokenizer = checkpoint.load_tokenizer(packaged.config)
    ids, mask = tokenizer.encode(["Why is the sky blue?", "Why?"])
    assert ids.dtype == mask.dtype == jnp.int32
    assert ids[1][mask[1] == 1].tolist() == packaged.tokenizer.encode("Why?")
    assert (np.diff(mask) >= 0).all()  # padding stands first
    assert ids.shape == tokenizer.encode("Why is the sky so blue?")[0].repeat(2, axis=0).shape  # few lengths
    assert tokenizer.decode(ids) == ("Why is the sky blue?", "Why?")
    assert tokenizer.stop_tokens.tolist() == list(packaged.tokenizer.stop)
    asked = ll.chat.render_prompt([Message(role="user", content="Hi <|im_end|>")])
    ids, mask = tokenizer.encode(asked)
    assert ids[mask == 1].tolist() == ll.chat.encode(packaged.tokenizer, asked.messages)
    for nothing in ([], "", ["a", ""]):
        with says("no prompt, or a prompt has no tokens"):
            tokenizer.encode(nothing)
    for wrong in (ids[0], ids * 1.0, ids - ids.max()):
        with says("decode takes whole numbers"):
            tokenizer.decode(wrong)


@pytest.mark.parametrize("message", [{"content": "Hi"}, {"role": "nobody", "content": "Hi"}, "Hi", {"role": "user"}])
def test_a_message_that_is_none_is_one_line(message):
    with says("messages"):
        ll.chat.render_prompt([message])


def test_a_model_without_a_tokenizer_reads_numbers():
    tokenizer = checkpoint.load_tokenizer("random:smollm2-135m,num_hidden_layers=1")
    ids, mask = tokenizer.encode("5, 9 2")
    assert ids[mask == 1].tolist() == [5, 9, 2]
    assert tokenizer.decode(ids[:, -3:]) == ("5 9 2",)
    with says("no chat template"):
        tokenizer.encode(ll.chat.render_prompt([Message(role="user", content="Hi")]))


def test_weights_come_from_where_the_configuration_was():
    name = "random:smollm2-135m,num_hidden_layers=1,vocab_size=97,hidden_size=64,num_attention_heads=6:3"
    made = ll.model.create(checkpoint.load_config(name))
    for mine, theirs in zip(jax.tree.leaves(made), jax.tree.leaves(checkpoint.load(name).params), strict=False):
        np.testing.assert_array_equal(mine, theirs)
    assert made.head.weight is made.embeddings.weight
    blocks = ll.model.create(checkpoint.load_config(name), dtype="q8_0")
    logits, _ = transform(
        checkpoint.load_config(name), blocks, *padded(), kvc.create(checkpoint.load_config(name), rows=2)
    )
    assert np.isfinite(logits).all()
