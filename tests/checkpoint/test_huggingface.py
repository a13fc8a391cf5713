import json
import os
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from llama_jax import checkpoint, generate
from llama_jax.plumbing.errors import UserError
from tests.conftest import continuation, edit_json, relative_error, same, save_llama, torch_logits


@pytest.fixture
def folder(hub_folder, tmp_path):
    """A copy of the small model's folder."""
    return shutil.copytree(hub_folder[0], tmp_path / "m")


VARIANTS = {
    "tied-gqa": {},
    "untied": dict(tie_word_embeddings=False),
    "multi-head": dict(num_key_value_heads=4),
    "wide-heads": dict(head_dim=16),
    "llama3-rope": dict(
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    ),
    "linear-rope": dict(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_equal_transformers(tmp_path, variant):
    folder, reference = save_llama(tmp_path / "m", **VARIANTS[variant])
    ids, engine = np.random.default_rng(0).integers(3, 97, 50), generate.build(checkpoint.load(str(folder)), "loop")
    assert relative_error(generate.logits(engine, ids), torch_logits(reference, ids)) <= 1e-4
    assert generate.answer(engine, [ids[:9]], 32)[0].token_ids == continuation(reference, ids[:9], 32)


def test_a_wrong_rope_would_be_caught(tmp_path):
    folder, reference = save_llama(tmp_path / "m", **VARIANTS["llama3-rope"])
    edit_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    ids, engine = list(range(3, 60)), generate.build(checkpoint.load(str(folder)), "step")
    assert relative_error(generate.logits(engine, ids), torch_logits(reference, ids)) > 1e-3


def test_shards_equal_one_file(tmp_path):
    folder, _ = save_llama(tmp_path / "one")
    sharded, _ = save_llama(tmp_path / "many", shards="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert same(checkpoint.load_params(str(folder)), checkpoint.load_params(str(sharded)))
    next(iter(sorted(sharded.glob("*.safetensors")))).unlink()
    with pytest.raises(UserError, match="shard .* is missing"):
        checkpoint.load(str(sharded))


def test_bfloat16_is_bit_exact(tmp_path):
    folder, reference = save_llama(tmp_path / "m")
    reference.bfloat16().save_pretrained(folder)
    ours = checkpoint.load(str(folder), "bfloat16").params.layers[0].attention.o
    theirs = reference.state_dict()["model.layers.0.self_attn.o_proj.weight"]
    np.testing.assert_array_equal(np.asarray(ours).view(np.uint16), theirs.view(torch.uint16).numpy())


def test_a_state_dict_makes_the_same_model(hub_folder):
    folder, reference = hub_folder
    loaded = checkpoint.load(str(folder))
    assert same(checkpoint.from_torch(reference.state_dict(), loaded.config)[1], loaded.params)
    with pytest.raises(UserError, match="q_proj"):
        checkpoint.from_torch({k: v for k, v in reference.state_dict().items() if "q_proj" not in k}, loaded.config)


def test_rope_of_transformers_4(tmp_path):
    folder, _ = save_llama(tmp_path / "m")
    scaling = {"type": "linear", "factor": 2.0}
    edit_json(folder / "config.json", rope_parameters=..., rope_theta=5e5, rope_scaling=scaling)
    config = checkpoint.load_config(str(folder))
    assert (config.rope_theta, config.rope_scaling.factor) == (5e5, 2.0)


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_weights, "truncated"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json"),
        (
            lambda folder: shutil.copy(folder / "model.safetensors", folder / "other.safetensors"),
            "in another file",
        ),
    ],
)
def test_damaged_folders(folder, damage, words):
    damage(folder)
    with pytest.raises(UserError, match=words):
        checkpoint.load(str(folder))


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias",
                                  "model.layers.0.self_attn.q_norm.weight", "score.weight"])  # fmt: skip
def test_a_tensor_that_the_model_has_not_is_named(folder, name):
    save_file(load_file(folder / "model.safetensors") | {name: torch.ones(8)}, folder / "more.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        UserError, match=rf"it has tensor {re.escape(name)}, which a llama model of 2 layers does not have"
    ):
        checkpoint.load(str(folder))


def test_frequencies_that_old_folders_hold_are_computed_here(folder):
    before = checkpoint.load_params(str(folder))
    constant = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(load_file(folder / "model.safetensors") | constant, folder / "more.safetensors")
    (folder / "model.safetensors").unlink()
    assert same(before, checkpoint.load_params(str(folder)))


def test_the_hub_is_asked_only_by_name_and_may_be_unreachable():
    with pytest.raises(UserError, match="hub .*could not be reached.*nobody/nothing-here") as caught:
        checkpoint.load("nobody/nothing-here")
    assert "\n" not in str(caught.value)


def test_a_hub_model_is_read_from_the_hub_cache(tmp_path, monkeypatch):
    """The hub's own folder layout, as an earlier download left it."""
    from huggingface_hub import constants

    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "abc"
    save_llama(snapshot)
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert checkpoint.load_config("owner/tiny").hidden_size == 32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(model_type="mamba"), "mamba"),
        (dict(attention_bias=True), "q_proj.bias is missing"),
        (dict(hidden_act="gelu"), "gelu"),
        (dict(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "yarn"),
        (dict(hidden_size=...), "no hidden_size"),
        (dict(intermediate_size=48), "gate_proj.*\\[64, 32\\].*\\[48, 32\\]"),
        (dict(num_hidden_layers=3), "model.layers.2.*missing"),
        (dict(model_type=["llama"]), r"model_type \['llama'\] is not supported"),
        *(
            ({field: value}, re.escape(f"{field} is {value!r}"))
            for field, values in dict(
                hidden_size=(None, "32", 2**63, 32.0, True),
                num_hidden_layers=(999_999_999, -1),
                num_attention_heads=(0, [4]),
                rms_norm_eps=("small", -1e-5),
                max_position_embeddings=(2**31,),
                tie_word_embeddings=("yes",),
                attention_bias=(0, []),
            ).items()
            for value in values
        ),
        (dict(num_attention_heads=5, num_key_value_heads=5, head_dim=...), "5 heads cannot share a width of 32 evenly"),
        (dict(num_key_value_heads=3), "4 query heads cannot share 3 key heads evenly"),
        (dict(head_dim=7), "a head has 7"),
        (dict(rope_parameters="linear"), "it holds 'linear'"),
        (dict(rope_parameters={"rope_theta": 0}), "rope_theta is 0"),
        (dict(rope_parameters={"rope_type": "linear"}), "needs a factor"),
        (dict(rope_parameters={"rope_type": ["linear"]}), r"rope_type is \['linear'\]"),
        (dict(rope_parameters={**VARIANTS["llama3-rope"]["rope_parameters"], "high_freq_factor": 1.0}), "less than"),
        (dict(hidden_act={"name": "silu"}), "hidden_act is"),
        (dict(rope_parameters=""), "it holds ''"),
    ],
)
def test_a_configuration_that_does_not_fit_is_named(folder, changes, words):
    edit_json(folder / "config.json", **changes)
    with pytest.raises(UserError, match=words) as caught:
        checkpoint.load(str(folder))
    assert str(folder) in str(caught.value)


DOCUMENTS = [
    (b"", "is not JSON"),
    (b"{", "is not JSON"),
    (b"[]", r"it holds \[\]"),
    (b"[" * 200_000, "is not JSON"),
    (b'{"a":' * 200_000, "is not JSON"),
    (b"\xff\xfe{}", "is not JSON"),
    (b'{"hidden_size": NaN}', "is not JSON"),
    (b"null", "it holds None"),
    (b'{"model_type": "llama"' + b" " * (64 << 20), "at most 67,108,864 are read"),
]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json",
                                  "chat_template.jinja", "model.safetensors.index.json"])  # fmt: skip
@pytest.mark.parametrize("what", ["folder", "pipe", "loop"])
def test_what_is_no_file_is_not_waited_for_nor_passed_over(folder, packaged, name, what):
    small = dict(version="1.0", added_tokens=[], model={"type": "BPE", "vocab": {"a": 0}, "merges": []})
    (folder / "tokenizer.json").write_text(json.dumps(small))
    (folder / name).unlink(missing_ok=True)
    {"folder": Path.mkdir, "pipe": os.mkfifo, "loop": lambda path: path.symlink_to(path)}[what](folder / name)
    with pytest.raises(UserError, match=rf"not a regular file|Cannot read .*{name}|{name} .*is missing"):
        checkpoint.load(str(folder))


INDICES = [  # of shards, which are files of the folder
    ({"a": "../m/model.safetensors"}, "weight_map: a is '../m/model.safetensors'"),
    ({"a": "/etc/passwd"}, "weight_map: a is"),
    ({"a": "model.safetensors\n"}, "weight_map: a is"),
    ({"a": 3}, "weight_map: a is 3"),
    ({"a": ["model.safetensors"]}, "weight_map: a is"),
    ({"a": "absent.safetensors"}, "the shard absent.safetensors named in .* is missing"),
    ([], r"weight_map: it holds \[\]"),
    ({}, r"no \.safetensors file"),
]


def safetensors(header, data=b"", size=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header) if size is None else size) + header + data


def tensor(dtype="F32", shape=(2,), offsets=(0, 8)):
    return dict(dtype=dtype, shape=shape, data_offsets=offsets)


WEIGHTS = [
    *(
        (content, "truncated or damaged")
        for content in (
            b"",
            safetensors({}, size=2**63),
            safetensors({}, size=2**20),
            safetensors(b'{"a":' * 100_000),
            safetensors({"a": tensor()}),
            safetensors({"a": tensor()}, b"\0" * 9),
            *(safetensors({"a": tensor(shape=shape)}, b"\0" * 8) for shape in ((3,), (-2,), (2**62, 4))),
            safetensors({"a": tensor(), "b": tensor(offsets=(4, 12))}, b"\0" * 12),
        )
    ),
    *(
        (safetensors({"a": tensor(kind, shape)}, b"\0" * 8), f"a has the unsupported type {kind}")
        for kind, shape in (("I32", (2,)), ("C64", (1,)), ("F8_E4M3", (8,)), ("BOOL", (8,)))
    ),
    (safetensors(b'{"a": %s, "a": %s}' % ((json.dumps(tensor()).encode(),) * 2), b"\0" * 8), "duplicate name"),
]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        *(("config.json", content, f"config.json.* {words}") for content, words in DOCUMENTS),
        *(("model.safetensors.index.json", json.dumps({"weight_map": w}).encode(), words) for w, words in INDICES),
        *(("model.safetensors", content, words) for content, words in WEIGHTS),
    ],
)
def test_a_file_whose_content_is_none_is_named(folder, name, content, words):
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        checkpoint.load(str(folder))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_weight_that_is_no_number_is_refused(tmp_path, dtype):
    folder, model = save_llama(tmp_path / "m")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 5] = float("inf")
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    for form in ("float32", "q8_0"):
        with pytest.raises(UserError, match=r"model\.layers\.1\.mlp\.down_proj\.weight holds NaN or infinity"):
            checkpoint.load(str(folder), form)


VOCABULARY = {"a": 0, "b": 1, "ab": 2}


def words(folder, definition=None, **parts):
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": ["a b"]}
    given = dict(version="1.0", added_tokens=[], model=model) if definition is None else definition
    (folder / "tokenizer.json").write_bytes(given if isinstance(given, bytes) else json.dumps(given).encode())
    for name, content in parts.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return checkpoint.find(str(folder)).tokenizer()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (b"", "not a tokenizer"),
        (b"null", "not a tokenizer"),
        (b"[" * 200_000, "not a tokenizer"),
        (b"\xff", "not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": "abc", "merges": []}}, "not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": 97}, "merges": []}}, "reach id 97; .* has 97 tokens"),
        ({"model": {"type": "BPE", "vocab": {"a": 2**31}, "merges": []}}, "reach id 2147483648"),
    ],
)
def test_a_tokenizer_that_is_none(folder, definition, message):
    with pytest.raises(UserError, match=message):
        words(folder, definition)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (dict(tokenizer_config={"eos_token": 3}), "eos_token"),
        (dict(tokenizer_config={"bos_token": {"content": None}}), "bos_token"),
        (dict(tokenizer_config={"chat_template": 3}), "chat_template"),
        (dict(tokenizer_config={"chat_template": {"default": "x"}}), "chat_template"),
        (dict(tokenizer_config=[]), r"tokenizer_config.json: it holds \[\]"),
        (dict(generation_config={"eos_token_id": "2"}), "eos_token_id"),
        (dict(generation_config={"eos_token_id": [1, None]}), "eos_token_id"),
        (dict(generation_config={"eos_token_id": -1}), "eos_token_id"),
        (dict(generation_config={"eos_token_id": 2**63}), "eos_token_id"),
        (dict(generation_config={"eos_token_id": [1, 97]}), "reach id 97; .* has 97 tokens"),
    ],
)
def test_the_neighbours_of_a_tokenizer_are_read_as_declared(folder, parts, message):
    with pytest.raises(UserError, match=message) as caught:
        words(folder, **parts)
    assert str(folder) in str(caught.value)


def test_of_several_templates_the_default_is_taken(folder):
    several = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    assert words(folder, tokenizer_config={"chat_template": several}).chat_template == "b"
