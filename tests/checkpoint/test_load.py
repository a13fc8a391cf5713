import dataclasses
import re

import numpy as np
import pytest

from llama_jax import checkpoint, config
from llama_jax.checkpoint import random
from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("smollm2-135m-instrct", "Did you mean 'smollm2-135m-instruct'"),
        ("random:llama-3.2-2b", "llama-3.2-1b"),
        ("random:smollm2-135m:x", "SEED"),
        ("random:smollm2-135m,num_hidden_layer=2", "Did you mean 'num_hidden_layers'"),
        ("random:smollm2-135m,num_hidden_layers=two", "whole number above 0"),
        ("random:smollm2-135m,num_hidden_layers=0", "whole number above 0"),
        ("random:smollm2-135m,num_attention_heads=8", "evenly"),
        ("random:gpt2,num_hidden_layers=999999999", "num_hidden_layers is 999999999; .*less than or equal to 10000"),
        ("random:gpt2,num_hidden_layers=-1", "whole number above 0"),
        ("random:gpt2,hidden_size=²", "whole number above 0"),
        ("random:gpt2,hidden_size=" + "9" * 5000, "whole number above 0"),
        ("random:gpt2,hidden_size=2097152", "hidden_size is 2097152"),
        ("random:gpt2,hidden_size=1048576,intermediate_size=1048576", "weights as float32 need .* GB"),
        ("random:gpt2,max_position_embeddings=2147483648", "max_position_embeddings is 2147483648"),
        ("random:smollm2-135m,head_dim=63", "a head has 63"),
        ("random:gpt2:" + "9" * 5000, "SEED"),
        ("random:gpt2:²", "SEED"),
        ("random:" + "x" * 5000, "No such preset"),
        ("./nowhere.gguf", "No such file"),
        ("/nowhere/at/all", "No such file"),
    ],
)
def test_no_such_model(name, words):
    with pytest.raises(UserError, match=words):
        checkpoint.load(name)


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("random:smollm2-135m", "float8", "float8"),
        (  # the largest model that may be declared
            "random:smollm2-135m,num_hidden_layers=10000,hidden_size=1048576,intermediate_size=1048576",
            "q8_0",
            "the weights as q8_0 need",
        ),
    ],
)
def test_a_model_is_refused_before_anything_is_made_for_it(name, dtype, words):
    with pytest.raises(UserError, match=words):
        checkpoint.load(name, dtype)


def test_random_weights_follow_their_seed():
    a, b, c = (
        random.open_random(config.tiny(), seed).tensors["model.layers.0.mlp.up_proj.weight"].read()
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    assert a.std() == pytest.approx(0.02, rel=0.1)
    assert checkpoint.find("random:smollm2-135m:1").hash() != checkpoint.find("random:smollm2-135m").hash()


def test_every_preset_opens():
    for name, preset in config.PRESETS.items():
        assert checkpoint.load_config(f"random:{name}") == preset
        assert f"random:{name}" in checkpoint.models()


def test_too_little_memory_is_said_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 10**9)
    with pytest.raises(
        UserError, match=r"float32 need 27\.0 GB and 1\.0 GB are free; its smallest form is q4_0 \(3\.\d GB\): choose"
    ):
        checkpoint.load("random:llama-2-7b")
    with pytest.raises(UserError, match=r"float32 need .* free; it fits as bfloat16 .*--dtype bfloat16") as caught:
        checkpoint.load("random:smollm2-360m")
    fit = re.findall(r"(\w+) \(", str(caught.value))
    assert {*fit} >= {"bfloat16", "q8_0", "q4_0", "int8"}
    monkeypatch.setattr(memory, "free", lambda device: 10**8)
    with pytest.raises(UserError, match=r"it fits as gguf \(0\.1 GB\) or .*dtype='gguf'"):
        checkpoint.load()


def test_the_memory_of_the_device_that_takes_the_weights_counts(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "free", lambda device: asked.append(device) or 10**9)
    device = object()
    with pytest.raises(UserError, match=r"1\.0 GB are free"):
        checkpoint.load("random:llama-2-7b", device=device)
    assert asked == [device]


def test_a_preset_with_changed_sizes():
    small = "random:smollm2-135m,num_hidden_layers=2,vocab_size=97"
    assert checkpoint.load_config(small) == dataclasses.replace(
        config.PRESETS["smollm2-135m"], num_hidden_layers=2, vocab_size=97
    )
    assert checkpoint.find(small).hash() != checkpoint.find(small + ":1").hash()
