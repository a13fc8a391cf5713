"""Checkpoints in quantised forms: the file's own blocks, blocks made here, and never the whole model in float32."""

import threading
import weakref
from dataclasses import replace
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest

from llama_jax import checkpoint, config, generate, model, quantise
from llama_jax.block_types import LAYOUTS
from llama_jax.checkpoint import quantised, random, raw, tensors
from llama_jax.checkpoint.source import Tensor
from llama_jax.checkpoint.tensors import names
from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS, Blocks, Int8, Table, is_quantised
from tests.checkpoint.test_gguf import CONFIG, add_bytes, begun, finish, gguf_name, write
from tests.conftest import TINY, build, relative_error, same
from tests.families import write_gguf
from tests.kernels.products import random_bytes


def weights_of(params):
    return jax.tree.leaves(params, is_leaf=is_quantised)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_the_files_own_blocks_are_its_bytes_in_the_models_row_order(tmp_path, kind):
    write(tmp_path / "m.gguf", kind)
    own = checkpoint.load(str(tmp_path / "m.gguf"), "gguf")
    wide = checkpoint.load(str(tmp_path / "m.gguf"))
    assert (own.dtype, own.blocks, wide.blocks) == ("gguf", "gguf", "gguf")
    matrices = [weight.ndim == 2 for weight in weights_of(wide.params)]
    assert [isinstance(weight, Blocks) for weight in weights_of(own.params)] == matrices
    assert same(model.cast(own.params, np.float32), wide.params)
    parts = (("q", 4), ("k", 2), ("v", 0))
    qkv = [raw_of(tmp_path / "m.gguf", f"blk.1.attn_{part}.weight", heads) for part, heads in parts]
    expected = quantise.pack(np.concatenate(qkv), kind.lower())
    np.testing.assert_array_equal(own.params.layers[1].attention.qkv.data, expected.data)
    # 260 rows: 16 does not divide them
    assert own.params.embeddings.weight.shape == (CONFIG.vocab_size, CONFIG.hidden_size)


def raw_of(path, name, heads):
    """The file's bytes of a tensor, by the library's reader alone."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    size, width = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    rows = np.asarray(tensor.data).reshape(-1, int(tensor.shape[0]) // size, width)
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape) if heads else rows


def test_what_has_no_blocks_is_refused_with_the_tensor_its_type_and_the_remedy(tmp_path):
    write(tmp_path / "h.gguf", "F16")
    mine = checkpoint.Checkpoint("mine", cfg := config.tiny(), build(cfg), None, "", "here", "float32")
    stored = r"tensor model\.embed_tokens\.weight is stored as F16, not as Q4_0, Q4_1, Q5_0.*; use q8_0"
    for read, words in (
        (lambda: checkpoint.load(str(tmp_path / "h.gguf"), "gguf"), stored),
        (lambda: checkpoint.load(TINY, "gguf"), "no GGUF file.*use q8_0"),
        (lambda: generate.build(checkpoint.load(TINY), "step+gguf"), "no GGUF file.*use q8_0"),
        (lambda: generate.build(mine, "step+gguf"), "from none; use weights='q8_0'"),
    ):
        with pytest.raises(UserError, match=words):
            read()
    assert checkpoint.load(str(tmp_path / "h.gguf")).blocks == mine.blocks == "q8_0"


MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_k": "Q5_0", "ffn_up": "Q8_0", "token_embd": "Q6_K"}  # else Q4_K


def write_mixed(path, others=MIXED, **changes):
    """A file whose matrices are of several types, as llama.cpp's mixes are, in random bytes."""
    sizes = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    cfg, rng = replace(CONFIG, **(sizes | changes)), np.random.default_rng(5)
    w = begun(path, cfg, "llama")
    add_bytes(w, cfg.vocab_size)
    for name, tensor in random.open_random(cfg, 0).tensors.items():
        if len(tensor.shape) == 1:
            w.add_tensor(gguf_name(name), tensor.read())
            continue
        part = gguf_name(name).split(".")[-2]
        kind = others.get(part, "Q4_K")
        if kind.lower() not in LAYOUTS:
            data = gguf.quantize(tensor.read(), gguf.GGMLQuantizationType[kind])
        else:
            columns = LAYOUTS[kind.lower()].columns
            shape = kind.lower(), tensor.shape[0], tensor.shape[1] // columns, rng.integers(99), 0.02 / columns**0.5
            data = random_bytes(*shape).reshape(tensor.shape[0], -1)
        w.add_tensor(gguf_name(name), data, raw_dtype=gguf.GGMLQuantizationType[kind])
    finish(w)
    return cfg


def test_a_file_of_mixed_types_is_read_as_it_is(tmp_path):
    """Queries, keys and values of three types in one layer; what stands in no block of ours becomes q8_0."""
    write_mixed(tmp_path / "m.gguf")
    own, wide = checkpoint.load(str(tmp_path / "m.gguf"), "gguf"), checkpoint.load(str(tmp_path / "m.gguf"))
    assert own.params.layers[1].attention.qkv.kinds == ("q4_k", "q5_0", "q6_k")
    assert (own.params.layers[0].ffn.gate_up.kinds, own.params.layers[0].ffn.down.kinds) == (
        ("q4_k", "q8_0"),
        ("q6_k",),
    )
    assert same(model.cast(own.params, np.float32), wide.params)
    assert checkpoint.requantised(own.origin) is None
    held = sum(w.nbytes for w in weights_of(own.params))  # with the rows that fill the table's last group
    assert tensors.size(own.origin, "gguf") <= held < 1.01 * tensors.size(own.origin, "gguf")


UNTIED = dict(tie_word_embeddings=False, rope_scaling=None)


@pytest.mark.parametrize("name", ["step", "step+gemv", "loop+fused"])
def test_an_embedding_without_a_head_stays_in_the_file(tmp_path, name):
    """Its rows are those of the expanded table, and no copy of it is made where the file's bytes lie at a multiple of
    64."""
    write_mixed(tmp_path / "m.gguf", **UNTIED)
    own, wide = (checkpoint.load(str(tmp_path / "m.gguf"), dtype) for dtype in ("gguf", "float32"))
    table = own.params.embeddings.weight
    assert isinstance(table, Table)
    place = own.origin.tensors["model.embed_tokens.weight"].raw.place
    assert place.offset % 64 or str(tmp_path / "m.gguf") in mapping_of(table.data.unsafe_buffer_pointer())
    np.testing.assert_array_equal(table.dequantised(), wide.params.embeddings.weight)
    ids = np.random.default_rng(1).integers(0, own.config.vocab_size, 20).tolist()
    exact = np.asarray(generate.logits(generate.build(wide, "step"), ids))
    error = relative_error(np.asarray(generate.logits(generate.build(own, name), ids)), exact)
    assert error < (1e-5 if name == "step" else 0.06)


def mapping_of(address: int) -> str:
    """The line of this process's memory map that an address is in."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
        if start <= address < end:
            return line
    raise ValueError(address)


def test_a_damaged_embedding_that_stays_in_the_file_is_refused(tmp_path):
    write_mixed(path := tmp_path / "m.gguf", **UNTIED)
    place = checkpoint.find(str(path)).tensors["model.embed_tokens.weight"].raw.place
    with open(path, "r+b") as file:
        file.seek(place.offset + place.size - 2)  # the float16 number of the last block
        file.write(np.float16(np.nan).tobytes())
    with pytest.raises(UserError, match="token_embd.weight holds NaN or infinity"):
        checkpoint.load(str(path), "gguf")


def test_what_has_no_kernel_is_named_with_what_becomes_of_it(tmp_path):
    write_mixed(tmp_path / "m.gguf", {"ffn_down": "F16", "token_embd": "BF16"})
    own = checkpoint.load(str(tmp_path / "m.gguf"), "gguf")
    layers = own.config.num_hidden_layers
    line = checkpoint.requantised(own.origin)
    assert line.startswith(f"{layers + 1} of {7 * layers + 1} matrices are stored as BF16 and F16")
    assert line.endswith("Q8_0 here, 0.53 times the bytes")  # 8.5 of 16 bits
    assert (own.params.layers[0].ffn.down.kinds, own.params.embeddings.weight.kinds) == (("q8_0",), ("q8_0",))
    assert checkpoint.load(str(tmp_path / "m.gguf")).blocks == "gguf"
    assert "stored as float" in checkpoint.requantised(checkpoint.find(TINY))


@pytest.mark.parametrize("name", ["step+gemv", "loop+fused"])
def test_kernels_compute_a_file_of_mixed_types(tmp_path, name):
    """Logits near those of the same weights in float32: what is left is the rounding of activations."""
    cfg = write_mixed(tmp_path / "m.gguf", rope_scaling=None)
    loaded = checkpoint.load(str(tmp_path / "m.gguf"))
    ids = np.random.default_rng(1).integers(0, cfg.vocab_size, 20).tolist()
    exact = np.asarray(generate.logits(generate.build(loaded, "step"), ids))
    ours = np.asarray(generate.logits(generate.build(loaded, name), ids))
    assert 1e-5 < relative_error(ours, exact) < 0.06


@pytest.mark.parametrize("family", config.FAMILIES)
@pytest.mark.parametrize("form", [f for f in FORMS if f != "gguf"])
def test_every_family_is_quantised_matrix_by_matrix(family, form):
    """From a source and from parameters alike; GPT-2's are stored [in, out]."""
    cfg = config.tiny(family, hidden_size=40, tie_word_embeddings=family == "gpt2")  # 32 divides neither 40 nor 97
    source, wide = random.open_random(cfg, 0), tensors.assemble(random.open_random(cfg, 0), "float32")
    made = tensors.assemble(source, form)
    assert same(made, checkpoint.quantised_from(wide, form))
    for ours, plain, rows in zip(weights_of(made), weights_of(wide), jax.tree.leaves(names(cfg)), strict=True):
        if plain.ndim == 1 or "wpe" in rows.names[0]:
            np.testing.assert_array_equal(ours, plain)  # norms, biases and positions stay float32
            continue
        vocabulary = any(part in rows.names[0] for part in quantised.VOCABULARY)
        assert getattr(ours, "kind", "int8") == ("q8_0" if vocabulary and form != "int8" else form)
        assert ours.shape == plain.shape
        step = np.abs(plain).max() / (7 if form.startswith("q4") and not vocabulary else 127)
        assert np.abs(np.asarray(ours.dequantised()) - np.asarray(plain)).max() <= step * 1.01


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_gguf_of_other_families_keep_their_bytes(tmp_path, family):
    """A GPT-2 file has its products [out, in], which Hugging Face stores the other way round."""
    cfg = config.tiny(family, tie_word_embeddings=family == "gpt2")
    values = {name: t.read() for name, t in random.open_random(cfg, 3).tensors.items()}
    write_gguf(tmp_path / "f.gguf", cfg, values)
    into(tmp_path / "f.gguf", tmp_path / "q.gguf")
    own, wide = checkpoint.load(str(tmp_path / "q.gguf"), "gguf"), checkpoint.load(str(tmp_path / "q.gguf"))
    assert same(model.cast(own.params, np.float32), wide.params)
    assert {w.kind for w in weights_of(own.params) if is_quantised(w)} == {"q8_0"}


def into(path, out, kind=gguf.GGMLQuantizationType.Q8_0):
    """The same file with its matrices quantised by the gguf library."""
    reader = gguf.GGUFReader(path)
    w = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kinds = field.types
            w.add_key_value(name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for t in reader.tensors:
        values = np.array(t.data).reshape(tuple(reversed(t.shape)))
        if values.ndim == 2 and "position" not in t.name:
            w.add_tensor(t.name, gguf.quantize(np.ascontiguousarray(values, np.float32), kind), raw_dtype=kind)
        else:
            w.add_tensor(t.name, values)
    finish(w)


def test_blocks_of_the_wanted_kind_are_kept_and_not_rounded_again(tmp_path):
    write(tmp_path / "m.gguf", "Q8_0")
    assert same(*(checkpoint.load(str(tmp_path / "m.gguf"), form).params for form in ("gguf", "q8_0")))


def test_another_form_is_read_again_from_the_source_and_shared():
    loaded = checkpoint.load(TINY, "bfloat16")
    blocks = loaded.weights("q8_0")
    assert loaded.weights("q8_0") is blocks
    assert loaded.weights("bfloat16") is loaded.params
    expected = checkpoint.load(TINY, "q8_0").params  # of the float32 values, not of the bfloat16 ones
    assert same(blocks, expected)
    assert not replace(loaded, params=expected).forms  # another model's forms are not this one's


def test_weights_that_are_quantised_already_are_not_quantised_otherwise():
    cfg = config.tiny()
    mine = checkpoint.Checkpoint("mine", cfg, checkpoint.quantised_from(build(cfg), "int8"), None, "", "here", "int8")
    with pytest.raises(UserError, match="quantised as int8 already; load the model as float32 or as q8_0"):
        generate.build(mine, "step+gemv")
    assert isinstance(generate.build(mine, "step").params.layers[0].ffn.down, Int8)


@pytest.mark.parametrize("form", [f for f in FORMS if f != "gguf"])
def test_no_two_tensors_are_there_in_float32_at_a_time(form, monkeypatch):
    cfg, alive, most, lock = config.tiny(num_hidden_layers=4), weakref.WeakSet(), [], threading.Lock()

    class Tracked(np.ndarray):
        __hash__ = object.__hash__

    def watched(tensor):
        def read():
            with lock:
                values = np.array(tensor.read()).view(Tracked)
                alive.add(values)
                most.append(sum(v.size for v in alive if v.ndim == 2))
            return values

        return Tensor(tensor.shape, read)

    source = random.open_random(cfg, 0)
    largest = max(np.prod(t.shape) for t in source.tensors.values())
    joined = (cfg.num_attention_heads + 2 * cfg.num_key_value_heads) * cfg.head_dim * cfg.hidden_size
    made = tensors.assemble(replace(source, tensors={k: watched(t) for k, t in source.tensors.items()}), form)
    assert max(most) <= max(largest, joined, 2 * cfg.intermediate_size * cfg.hidden_size)
    assert len(most) > 30
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(made)) < 2 * cfg.num_parameters


def test_the_files_own_blocks_are_never_expanded(tmp_path, monkeypatch):
    write(tmp_path / "m.gguf", "Q4_0")
    monkeypatch.setattr(raw, "dequantize", lambda *a: pytest.fail("expanded"))
    loaded = checkpoint.load(str(tmp_path / "m.gguf"), "gguf")
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(loaded.params)) < 0.7 * CONFIG.num_parameters


@pytest.mark.parametrize("form", ["gguf", "q8_0", "q4_1", "int8"])
def test_the_size_that_is_checked_is_the_size_that_comes(tmp_path, monkeypatch, form):
    write(tmp_path / "m.gguf", "Q4_1")
    source = checkpoint.find(str(tmp_path / "m.gguf"))
    real = sum(leaf.nbytes for leaf in jax.tree.leaves(tensors.assemble(source, form)))
    assert tensors.size(source, form) == pytest.approx(real, rel=0.03)  # but for padded rows and the scales of int8
    monkeypatch.setattr(memory, "free", lambda device: real // 2)
    monkeypatch.setattr(memory, "SMALL", 0)
    with pytest.raises(UserError, match="choose a smaller model"):
        checkpoint.load(str(tmp_path / "m.gguf"), form)


def test_weights_go_back_under_their_names_expanded():
    cfg = config.tiny("gpt2")
    wide = build(cfg)
    back = tensors.named(cfg, checkpoint.quantised_from(wide, "q8_0"))
    for name, values in tensors.named(cfg, wide).items():
        assert back[name].shape == values.shape
        np.testing.assert_allclose(back[name], values, atol=np.abs(values).max() / 250)
    assert set(checkpoint.to_torch(cfg, checkpoint.quantised_from(wide, "int8"))) > set(back)


def test_the_packaged_model_in_its_own_blocks(packaged, tmp_path, monkeypatch):
    own = packaged.weights("gguf")
    assert packaged.blocks == "gguf"
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(own)) == pytest.approx(96.6e6, rel=0.01)
    for i in (0, 29):
        mine, theirs = own.layers[i], packaged.params.layers[i]
        np.testing.assert_array_equal(mine.attention.qkv.dequantised(), theirs.attention.qkv)
        np.testing.assert_array_equal(mine.ffn.gate_up.dequantised(), theirs.ffn.gate_up)
    ids = np.array([0, 5, 49151])
    np.testing.assert_array_equal(own.embeddings.weight[ids], packaged.params.embeddings.weight[ids])
