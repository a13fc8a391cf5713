"""llama.cpp's own quantiser: the same model in another type, kept in one piece, made anew when damaged, a gap where it
fails."""

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_jax import checkpoint
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import llamacpp, requantised
from tests.checkpoint import test_gguf
from tests.conftest import relative_error
from tests.peers.conftest import ids_of, ours, trial

NAMES = ("llamacpp+q8_0", "llamacpp+q4_0")

here = pytest.mark.peers


pytestmark = pytest.mark.usefixtures("one_core")


@pytest.fixture
def loaded(tmp_path):
    test_gguf.write(tmp_path / "m.gguf", "Q4_1")
    return checkpoint.load(str(tmp_path / "m.gguf"))


def kinds(path):
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


@here
@pytest.mark.parametrize("name", NAMES)
def test_the_same_model_in_another_type(loaded, name):
    kind, path = name.partition("+")[2], llamacpp.weights_of(loaded, name)
    assert path != Path(loaded.source)
    before, after = kinds(loaded.source), kinds(path)
    assert before.keys() == after.keys()
    layers = {after[k] for k in after if k.startswith("blk.") and not k.endswith("norm.weight")}
    assert layers == {kind.upper()}
    ids = ids_of(loaded, 24)
    theirs, limit = llamacpp.logits(loaded, name)(ids), {"q8_0": 0.03, "q4_0": 0.3}[kind]
    assert relative_error(theirs, ours(loaded, ids)) < limit  # Q8_0 holds what Q4_1 said; Q4_0 rounds it once more
    again = checkpoint.load(str(path))  # what it holds, computed by us: the rest is llama.cpp's rounding of activations
    assert relative_error(theirs, ours(again, ids)) < 0.03
    known = peers.subject(loaded, name).identity
    assert (known["quantisation"], known["dtype"], known["weights_hash"]) == (f"gguf-{kind}", kind, loaded.weights_hash)
    # norms, and Q4_0's head
    assert known["weight_bytes"] == pytest.approx({"q8_0": 34 / 32, "q4_0": 18 / 32}[kind], rel=0.3)


@here
@pytest.mark.parametrize("kind", requantised.FILE_TYPES)
def test_every_type_is_read_and_gives_llama_cpps_logits(tmp_path, kind):
    """Weights as its own quantiser rounds them: nothing else of what we read is llama.cpp's."""
    test_gguf.write(tmp_path / "source.gguf", "F32")
    requantised.quantise(tmp_path / "source.gguf", tmp_path / "m.gguf", kind, threads=1, every=True)
    loaded = checkpoint.load(str(tmp_path / "m.gguf"))
    assert {name for name in kinds(loaded.source).values() if name != "F32"} == {kind.upper()} - {"F32"}
    ids = ids_of(loaded)
    assert relative_error(llamacpp.logits(loaded)(ids), ours(loaded, ids)) < 0.03  # 1.6% was seen, of activations
    known = llamacpp.identity(loaded, Path(loaded.source))
    weights, width = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]
    assert (known["dtype"], known["quantisation"]) == (kind, f"gguf-{kind}")
    assert known["weight_bytes"] == pytest.approx(width / weights, rel=0.05)  # norms are float32


@here
def test_eight_bits_hold_what_four_said_and_four_others_do_not(loaded):
    """Q4_1 has a smallest value beside each scale; Q4_0 has none, and rounds once more."""
    truth = checkpoint.load(loaded.source).params.layers[0].ffn.down
    wide, coarse = (checkpoint.load(str(llamacpp.weights_of(loaded, name))).params.layers[0].ffn.down for name in NAMES)
    assert relative_error(wide, truth) < 0.01
    assert 0.02 < relative_error(coarse, truth) < 0.2


@here
def test_it_is_made_once_and_anew_where_it_is_damaged(loaded, monkeypatch):
    made, quantise = [], requantised.quantise
    monkeypatch.setattr(requantised, "quantise", lambda *arguments: made.append(arguments) or quantise(*arguments))
    path = llamacpp.weights_of(loaded, "llamacpp+q4_0")
    whole = path.read_bytes()
    assert llamacpp.weights_of(loaded, "llamacpp+q4_0") == path
    assert len(made) == 1
    status = path.stat()
    # the second is no longer and no older
    for damage in (whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], b""):
        path.write_bytes(damage)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert llamacpp.weights_of(loaded, "llamacpp+q4_0").read_bytes() == whole
    path.with_suffix(".sha256").unlink()  # as after a run that was stopped between the two
    assert llamacpp.weights_of(loaded, "llamacpp+q4_0").read_bytes() == whole
    path.unlink()
    assert llamacpp.weights_of(loaded, "llamacpp+q4_0").read_bytes() == whole
    assert len(made) == 6
    # nothing half-made
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([path.name, path.with_suffix(".sha256").name])


@here
def test_another_file_of_the_same_name_is_another_model(loaded, tmp_path):
    path = llamacpp.weights_of(loaded, "llamacpp+q8_0")
    test_gguf.write(tmp_path / "m.gguf", "Q8_0")
    other = llamacpp.weights_of(checkpoint.load(loaded.source), "llamacpp+q8_0")
    assert other != path
    assert other.read_bytes() != path.read_bytes()


@here
def test_a_quantiser_that_fails_is_a_gap_with_its_words(loaded, tmp_path):
    source = Path(loaded.source)
    assert loaded.weights_hash  # before the file is another
    source.write_bytes(source.read_bytes()[:-5000])
    with pytest.raises(peers.UnavailableError, match="made no q4_0 of .*m.gguf: .+") as caught:
        peers.subject(loaded, "llamacpp+q4_0")
    assert caught.value.remedy
    assert not list((tmp_path / "cache" / "requantised").iterdir())


def test_a_quantiser_that_dies_or_a_cache_that_cannot_be_written_is_a_gap(tmp_path, monkeypatch):
    monkeypatch.setattr(
        requantised, "CHILD", "import os, sys; print('assert failed', file=sys.stderr, flush=True); os.abort()"
    )
    monkeypatch.setattr(requantised.metadata, "version", lambda name: "0")
    with pytest.raises(peers.UnavailableError, match="assert failed"):
        requantised.obtain(tmp_path / "m.gguf", "0" * 64, "q4_0", 1)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "file"))
    with pytest.raises(peers.UnavailableError, match="cannot be written") as caught:
        requantised.obtain(tmp_path / "m.gguf", "0" * 64, "q4_0", 1)
    assert "LLAMA_JAX_CACHE" in caught.value.remedy


@here
def test_greedy_tokens_are_repeated_and_the_trial_is_approximate(loaded):
    work = Workload((ids_of(loaded, 24),), new_tokens=8, length=32)
    for name in NAMES:
        first, second = (trial(peers.subject(loaded, name), work) for _ in "ab")
        assert np.array_equal(first[1], second[1])
        judged = protocol.Reference(loaded, work).judge(*first)
        assert judged.valid
        assert json.loads(judged.model_dump_json())["quantisation"] == f"gguf-{name.partition('+')[2]}"
