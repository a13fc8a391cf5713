"""The same model in rows of whole blocks of 256: the same logits, by us and by llama.cpp."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from llama_jax import checkpoint, config
from llama_jax.plumbing.errors import UserError
from llama_lab.experiments.compiled_kernels import widened
from llama_lab.peers import llamacpp
from tests.checkpoint import test_gguf
from tests.conftest import relative_error
from tests.peers.conftest import ids_of, one_core, ours, written  # noqa: F401 (a fixture)

NARROW = config.tiny(
    hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=2, head_dim=16, vocab_size=260
)


def made(folder):
    """(a model whose rows are no whole blocks, the same widened)."""
    test_gguf.write(folder / "narrow.gguf", "Q8_0", NARROW)
    widened.write(folder / "narrow.gguf", folder / "wide.gguf")
    return (checkpoint.load(str(folder / f"{name}.gguf")) for name in ("narrow", "wide"))


def test_the_numbers_are_the_same_and_every_row_is_whole_blocks(tmp_path):
    narrow, wide = made(tmp_path)
    assert relative_error(ours(wide, ids_of(narrow)), ours(narrow, ids_of(narrow))) < 1e-5
    size = wide.config
    assert (size.hidden_size, size.intermediate_size, size.num_attention_heads, size.head_dim) == (256, 256, 16, 16)
    matrices = [t.shape for t in wide.origin.tensors.values() if len(t.shape) > 1]
    assert all(columns % widened.COLUMNS == 0 for _, columns in matrices)
    assert wide.tokenizer.encode("ab") == narrow.tokenizer.encode("ab")


def test_the_comparison_finds_a_weight_that_stands_elsewhere(tmp_path):
    narrow, wide = made(tmp_path)
    first, *others = wide.params.layers
    turned = replace(first, ffn=replace(first.ffn, down=jnp.roll(first.ffn.down, 1, axis=1)))
    other = replace(wide, params=replace(wide.params, layers=(turned, *others)))
    assert relative_error(ours(other, ids_of(narrow)), ours(narrow, ids_of(narrow))) > 1e-4


@pytest.mark.parametrize("kind", ["qwen2", "qwen2, untied"])
def test_biases_and_a_head_of_its_own_move_along(tmp_path, kind):
    loaded = written(tmp_path, kind)
    widened.write(checkpoint.gguf_file(loaded.source), tmp_path / "wide.gguf")
    ids = ids_of(loaded)
    assert relative_error(ours(checkpoint.load(str(tmp_path / "wide.gguf")), ids), ours(loaded, ids)) < 1e-5


@pytest.mark.peers
@pytest.mark.usefixtures("one_core")
def test_llama_cpp_reads_it_too(tmp_path):
    narrow, wide = made(tmp_path)
    ids = ids_of(narrow)
    assert relative_error(llamacpp.logits(wide, exact=True)(ids), ours(narrow, ids)) < 1e-4


def test_a_family_that_is_built_otherwise_is_refused(tmp_path):
    loaded = written(tmp_path, "gpt2")
    with pytest.raises(UserError, match="only models of llama and qwen2 are widened, no gpt2"):
        widened.write(checkpoint.gguf_file(loaded.source), tmp_path / "wide.gguf")
    assert not (tmp_path / "wide.gguf").exists()
