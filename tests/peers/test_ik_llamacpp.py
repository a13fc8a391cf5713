"""ik_llama.cpp on our GGUF files: llama.cpp's logits within the rounding of activations, and every way it can be
absent."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.checkpoint import writer
from llama_lab import peers
from llama_lab.bench.workload import Workload
from llama_lab.peers import ik_llamacpp, llamacpp
from tests.conftest import relative_error
from tests.peers.conftest import answer, ids_of, trial
from tests.peers.test_llamacpp import QUANTISED

here = pytest.mark.skipif(
    not find_spec("ik_llama_cpp") or not find_spec("llama_cpp"), reason="ik_llama.cpp is not built: `make peers`"
)
SMALL = "random:smollm2-360m,num_hidden_layers=2,vocab_size=512"
pytestmark = pytest.mark.usefixtures("one_core")


@here
@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0"])
def test_logits_are_llama_cpps_for_prompts_below_and_above_32_tokens(tmp_path, kind):
    """Matrices in Q4_1 are read in pieces, because more than 31 tokens at once came out wrong."""
    loaded = checkpoint.load(str(writer.write(SMALL, kind, tmp_path / "m.gguf").out))
    for count in (20, 40, 70):
        ids = ids_of(loaded, count)
        assert relative_error(ik_llamacpp.logits(loaded)(ids), llamacpp.logits(loaded)(ids)) <= QUANTISED


@here
def test_both_libraries_in_one_process_make_the_same_tokens_and_the_same_again(plain):
    work = Workload((ids_of(plain, 20), ids_of(plain, 12)), new_tokens=8, length=32)
    for prompt in (0, 1, 0):
        theirs, mine = (answer(plain, name, work, prompt) for name in ("llamacpp", "ik-llamacpp"))
        assert np.array_equal(theirs, mine)


@here
def test_several_rows_and_a_decode_that_fails_are_void_trials(plain, monkeypatch):
    subject, ids = peers.subject(plain, "ik-llamacpp"), ids_of(plain, 8)
    several, _ = trial(subject, Workload((ids,), new_tokens=4, length=32, batch=2))
    monkeypatch.setattr(ik_llamacpp.library(), "llama_decode", lambda *_: -3)
    failed, _ = trial(subject, Workload((ids,), new_tokens=4, length=32))
    assert (several.valid, failed.valid) == (False, False)
    assert "one row, 2 were asked for" in several.reason  # and not the end of the process
    assert "llama_decode failed with code -3" in failed.reason


@here
def test_threads_and_cache_are_those_of_llama_cpp(plain, monkeypatch):
    given, ik = [], ik_llamacpp.library()
    make = ik.llama_init_from_model
    monkeypatch.setattr(ik, "llama_init_from_model", lambda model, s: given.append(s) or make(model, s))
    monkeypatch.setattr(llamacpp, "allowed_cores", lambda: [0, 1])
    subject = peers.subject(plain, "ik-llamacpp")
    subject.run.__self__.room(64, 1)
    (settings,) = given
    assert (settings.n_threads, settings.n_threads_batch, settings.n_ubatch) == (2, 2, llamacpp.MICRO_BATCH)
    assert (settings.flash_attn, settings.type_k, settings.type_v) == (True, 1, 1)
    assert (subject.backend, subject.identity["quantisation"]) == ("ik_llama.cpp", "gguf-f32")
    assert "AVX512_VNNI = " in ik_llamacpp.instructions()


@here
def test_a_file_that_it_refuses_is_a_gap_with_its_own_words(plain, tmp_path):
    path = tmp_path / "F32.gguf"
    assert plain.weights_hash  # before the file is another
    path.write_bytes(path.read_bytes().replace(b"smollm", b"nobody"))
    with pytest.raises(peers.UnavailableError, match=r"cannot read .*F32\.gguf"):
        peers.subject(plain, "ik-llamacpp")


def test_a_library_that_cannot_be_loaded_is_a_gap(monkeypatch):
    monkeypatch.setitem(sys.modules, "ik_llama_cpp", None)
    with pytest.raises(peers.UnavailableError, match="cannot be loaded"):
        ik_llamacpp.library.__wrapped__()
