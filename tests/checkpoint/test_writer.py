"""Random weights as GGUF files: what is read again is what was written, bit for bit, and llama.cpp reads it too."""

import numpy as np
import pytest

from llama_jax import checkpoint, generate
from llama_jax.checkpoint import header, writer
from llama_jax.model import cast
from llama_jax.plumbing.errors import UserError
from llama_jax.rope import frequencies
from tests.conftest import relative_error, same

HEADS = "num_attention_heads=4,num_key_value_heads=2,head_dim=32"
SIZES = f"num_hidden_layers=2,hidden_size=64,intermediate_size=96,{HEADS}"
SMALL = f"random:smollm2-360m,{SIZES},vocab_size=512:3"
KINDS = ("q4_0", "q4_1", "q8_0")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_again_bit_for_bit(tmp_path, kind):
    made = writer.write(SMALL, kind, tmp_path / "m.gguf")
    loaded, drawn = checkpoint.load(str(made.out), "gguf"), checkpoint.load(SMALL, kind)
    assert loaded.config == drawn.config
    assert same(loaded.params, drawn.params)  # rows of queries and keys stand otherwise in the file
    assert (made.type, made.model, made.seed) == (kind, SMALL, 3)
    assert made.bytes == made.out.stat().st_size > writer.size_of(SMALL, kind)
    assert made.sha256 == loaded.weights_hash == checkpoint.gguf.hash_files([made.out])


def test_the_vocabularys_matrix_keeps_more_bits(tmp_path):
    writer.write(SMALL, "q4_0", tmp_path / "m.gguf")
    types = {name: place.kind for name, place in header.read(tmp_path / "m.gguf").tensors.items()}
    assert types["token_embd.weight"] == 8
    assert types["blk.1.ffn_down.weight"] == 2
    assert types["blk.1.ffn_norm.weight"] == 0
    assert "output.weight" not in types  # tied


@pytest.mark.parametrize("preset", ["llama-3.2-1b", "qwen2.5-0.5b", "llama-2-7b"])
def test_other_families_scalings_and_heads_of_their_own(tmp_path, preset):
    model = f"random:{preset},{SIZES},vocab_size=512"
    writer.write(model, "q8_0", tmp_path / "m.gguf")
    loaded, drawn = checkpoint.load(str(tmp_path / "m.gguf"), "gguf"), checkpoint.load(model, "q8_0")
    assert same(cast(loaded.params, np.float32), cast(drawn.params, np.float32))  # one has its embedding in the file
    assert loaded.config.tie_word_embeddings == drawn.config.tie_word_embeddings
    np.testing.assert_allclose(frequencies(loaded.config), frequencies(drawn.config), rtol=1e-6)


def test_a_larger_vocabulary_is_filled_up_and_reads_texts_as_before(tmp_path):
    model = f"random:smollm2-135m,{SIZES},vocab_size=49200"
    writer.write(model, "q4_0", tmp_path / "m.gguf")
    mine, packaged = (
        checkpoint.find(str(tmp_path / "m.gguf")).tokenizer(),
        checkpoint.find(checkpoint.DEFAULT).tokenizer(),
    )
    assert mine.encode("Why is the sky blue?") == packaged.encode("Why is the sky blue?")
    assert mine.decode([49_152, 49_199])


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", ["smollm2-360m", "llama-3.2-1b"])
def test_llama_cpp_reads_it_and_its_logits_agree(tmp_path, monkeypatch, kind, preset):
    from llama_lab.peers import llamacpp

    monkeypatch.setattr(llamacpp, "allowed_cores", lambda: [0])
    writer.write(f"random:{preset},{SIZES},vocab_size=512", kind, tmp_path / "m.gguf")
    loaded = checkpoint.load(str(tmp_path / "m.gguf"))
    ids = np.random.default_rng(0).integers(3, 512, 40).tolist()
    ours = np.asarray(generate.logits(generate.build(loaded, "step"), ids))
    theirs = llamacpp.logits(loaded)(ids)
    assert relative_error(theirs, ours) <= 0.05  # activations in 8 bits, as tests/peers/test_llamacpp.py has it
    agree = theirs.argmax(1) == ours.argmax(1)
    gap = ours.max(1) - np.take_along_axis(ours, theirs.argmax(1)[:, None], 1)[:, 0]
    assert agree.mean() >= 0.8
    assert (gap <= 0.05 * np.abs(ours).max()).all()  # where they choose otherwise it is a near-tie


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        (SMALL, "q4_2", "--type is 'q4_2'; it must be q4_0, q4_1, q8_0. Did you mean"),
        ("smollm2-135m-instruct", "q4_0", "only random weights"),
        ("random:smollm3", "q4_0", "No such preset"),
        ("random:gpt2", "q4_0", "only models of llama and qwen2 can be written, not gpt2"),
        (SMALL.replace("intermediate_size=96", "intermediate_size=100"), "q4_0", "needs a multiple of 32"),
        (f"random:smollm2-135m,{SIZES},vocab_size=40", "q4_0", "too small for a tokenizer"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, model, kind, words):
    with pytest.raises(UserError, match=words):
        writer.write(model, kind, tmp_path / "out" / "m.gguf")
    assert not (tmp_path / "out").exists()


def test_places_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(UserError, match="not a regular file"):
        writer.write(SMALL, "q4_0", tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="Cannot write"):
        writer.write(SMALL, "q4_0", tmp_path / "file" / "m.gguf")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_no_half_written_file_is_left_and_the_old_one_stays(tmp_path, monkeypatch, error):
    old = tmp_path / "m.gguf"
    old.write_text("old")
    calls, quantise = [], writer.quantise

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise error
        return quantise(*arguments)

    monkeypatch.setattr(writer, "quantise", failing)
    with pytest.raises((UserError, KeyboardInterrupt)):
        writer.write(SMALL, "q4_0", old)
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["m.gguf"]
