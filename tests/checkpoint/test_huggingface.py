import jax
import numpy as np
import pytest
import torch

from llama_jax import checkpoint, generate
from llama_jax.errors import UserError
from tests.conftest import edit_json, relative_error, save_llama

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
    loaded = checkpoint.load(str(folder))
    ids = np.random.default_rng(0).integers(3, 97, 50)
    with torch.no_grad():
        expected = reference(torch.tensor(ids)[None]).logits[0].numpy()
        text = reference.generate(
            torch.tensor(ids[:9])[None], max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    engine = generate.build(loaded, "loop")
    assert relative_error(generate.logits(engine, ids), expected) <= 1e-4
    assert list(generate.answer(engine, [ids[:9]], 32)[0].token_ids) == text[0, 9:].tolist()


def test_a_wrong_rope_would_be_caught(tmp_path):
    folder, reference = save_llama(tmp_path / "m", **VARIANTS["llama3-rope"])
    edit_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    ids = list(range(3, 60))
    with torch.no_grad():
        expected = reference(torch.tensor(ids)[None]).logits[0].numpy()
    assert relative_error(generate.logits(generate.build(checkpoint.load(str(folder)), "step"), ids), expected) > 1e-3


def test_shards_equal_one_file(tmp_path):
    folder, _ = save_llama(tmp_path / "one")
    sharded, _ = save_llama(tmp_path / "many", shards="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    one, many = checkpoint.load(str(folder)), checkpoint.load(str(sharded))
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(many.params), strict=True)
    )
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
    _, params = checkpoint.from_torch(reference.state_dict(), loaded.config)
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(loaded.params), jax.tree.leaves(params), strict=True)
    )
    with pytest.raises(UserError, match="q_proj"):
        checkpoint.from_torch({k: v for k, v in reference.state_dict().items() if "q_proj" not in k}, loaded.config)


def test_rope_of_transformers_4(tmp_path):
    folder, _ = save_llama(tmp_path / "m")
    edit_json(
        folder / "config.json", rope_parameters=..., rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}
    )
    found = checkpoint.load_config(str(folder))
    assert (found.rope_theta, found.rope_scaling.factor) == (5e5, 2.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(model_type="mamba"), "mamba"),
        (dict(attention_bias=True), "attention_bias"),
        (dict(hidden_act="gelu"), "gelu"),
        (dict(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "yarn"),
        (dict(hidden_size=...), "no hidden_size"),
        (dict(intermediate_size=48), "gate_proj.*\\[64, 32\\].*\\[48, 32\\]"),
        (dict(num_hidden_layers=3), "model.layers.2.*missing"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, words):
    folder, _ = save_llama(tmp_path / "m")
    edit_json(folder / "config.json", **changes)
    with pytest.raises(UserError, match=words):
        checkpoint.load(str(folder))


def test_damaged_folders(tmp_path):
    folder, _ = save_llama(tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="truncated"):
        checkpoint.load(str(folder))
    weights.unlink()
    with pytest.raises(UserError, match=r"no \.safetensors"):
        checkpoint.load(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match="not an object"):
        checkpoint.load(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        checkpoint.load(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"no config\.json"):
        checkpoint.load(str(folder))


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
