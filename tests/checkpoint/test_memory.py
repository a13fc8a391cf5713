"""What loading a GGUF file takes: each weight once, some rows of it at a time, and nothing of the file afterwards."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.checkpoint import raw, tensors
from llama_jax.kernels import grouping
from llama_jax.plumbing.errors import UserError
from tests.checkpoint.test_quantised import write_mixed
from tests.conftest import python, same

MIX = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_k": "Q5_0", "ffn_up": "Q8_0", "attn_output": "F16"}  # else Q4_K
WIDE = dict(hidden_size=1024, num_attention_heads=16, num_key_value_heads=4, rope_scaling=None)
EVERY_FORM = ["float32", "bfloat16", "gguf", "q8_0", "q4_1"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    write_mixed(path := tmp_path_factory.mktemp("mixed") / "m.gguf", MIX, rope_scaling=None)
    return str(path)


@pytest.mark.parametrize("form", EVERY_FORM)
def test_pieces_of_any_size_give_the_same_weights(mixed, monkeypatch, form):
    """Rows of a llama's queries lie in pairs, head by head, and a head stays in one piece."""
    whole = checkpoint.load_params(mixed, form)
    monkeypatch.setattr(raw, "PIECE", 1)
    assert same(checkpoint.load_params(mixed, form), whole)
    monkeypatch.setattr(grouping, "compiled", lambda worth: None)
    assert same(checkpoint.load_params(mixed, form), whole)


@pytest.mark.parametrize("form", EVERY_FORM)
def test_no_more_rows_are_in_memory_than_a_piece_has(mixed, monkeypatch, form):
    """A matrix that is expanded, for float32 or because its type has no kernel, never is so whole."""
    seen, plain = [], raw.Raw.rows

    def rows(self, first=0, last=None):
        seen.append((self.place.shape, (last or self.shape[0]) - first))
        return plain(self, first, last)

    for name in ("PIECE", "MAPPED"):
        monkeypatch.setattr(raw, name, 64 * 256)
    monkeypatch.setattr(raw.Raw, "rows", rows)
    checkpoint.load_params(mixed, form)
    assert max(count for shape, count in seen if len(shape) == 2) == 64
    assert {shape[0] for shape, _ in seen} >= {256, 128, 260}


def test_what_is_there_beside_the_weights_is_a_part_of_a_matrix(tmp_path, monkeypatch):
    """Blocks become blocks in place: what Python takes beyond them is less than their largest matrix has."""
    cfg = write_mixed(tmp_path / "m.gguf", MIX, **WIDE, intermediate_size=2048)
    source = checkpoint.find(str(tmp_path / "m.gguf"))
    tensors.assemble(source, "gguf")  # what is made once a process is there
    monkeypatch.setattr(raw, "PIECE", 1 << 14)
    tracemalloc.start()
    try:
        held = tensors.bytes_of(made := tensors.assemble(source, "gguf"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held <= peak < held + 4 * cfg.hidden_size * cfg.intermediate_size
    assert len(jax.tree.leaves(made)) > 10


PEAK = """
import sys
from llama_jax import checkpoint, generate

def now(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return 1024 * int(line.split()[1])

small, large, placement = sys.argv[1:]
others = generate.build(checkpoint.load(small, "gguf"), placement)  # with it comes all that a process has once
before = now("VmRSS")
engine = generate.build(checkpoint.load(large, "gguf"), placement)
print(now("VmHWM") - before, now("VmRSS") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what a process has taken")
@pytest.mark.parametrize("placement", ["step+fused", "step+gemv"])
def test_a_model_takes_the_memory_of_its_file_once(mixed, large, placement):
    """At its peak too, mapped pages of the file among it, under a kernel that wants its layers in one piece and under
    one that does not."""
    size = large.stat().st_size
    assert size > 90e6
    peak, held = map(int, python(PEAK, mixed, large, placement)[0].split())
    assert 0.9 * size < held <= peak < 1.3 * size


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A file of about 100 MB."""
    path = tmp_path_factory.mktemp("large") / "m.gguf"
    write_mixed(path, {"ffn_down": "Q6_K", "attn_v": "Q6_K"}, **WIDE, intermediate_size=8192, num_hidden_layers=6)
    return path


@pytest.mark.parametrize("form", ["gguf", "float32"])
def test_a_file_that_becomes_shorter_is_told_and_none_that_is_gone_is_read(tmp_path, form):
    write_mixed(path := tmp_path / "m.gguf", MIX)
    source = checkpoint.find(str(path))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for change in (lambda: None, path.unlink):
        change()
        with pytest.raises(UserError, match=r"m\.gguf: tensor .* is gone; the file has changed since it was opened"):
            tensors.assemble(source, form)


def test_a_tokenizer_that_is_asked_for_again_is_read_again(mixed):
    source = checkpoint.find(mixed)
    first = source.tokenizer()
    assert source.tokenizer() == first
    assert first.encode("ab")
    assert np.array_equal(first.encode("a b"), checkpoint.load(mixed).tokenizer.encode("a b"))


def test_a_mistake_in_the_tokenizer_is_said_before_one_in_the_weights(mixed):
    source = checkpoint.find(mixed)
    for tensors_of in (source.tensors, {}):
        with pytest.raises(UserError, match="no tokenizer"):
            checkpoint.read(replace(source, tokenizer=Mock(side_effect=UserError("no tokenizer")), tensors=tensors_of))
