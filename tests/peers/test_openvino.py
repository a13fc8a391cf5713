"""OpenVINO GenAI on our GGUF files: llama.cpp's logits within both roundings, tokens as they come, and every way it can
be absent or fail."""

import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from unittest.mock import Mock

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.checkpoint import writer
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench.workload import Workload
from llama_lab.peers import openvino
from tests.conftest import relative_error
from tests.peers.conftest import ids_of, ours, trial

here = pytest.mark.skipif(not find_spec("openvino_genai"), reason="openvino-genai is not installed: `make peers`")
SMALL = "random:smollm2-360m,num_hidden_layers=2,vocab_size=512"
pytestmark = pytest.mark.usefixtures("one_core")
ROUNDED = 0.08  # activations in 8 bits, products in bfloat16, a cache in u8; some 0.02 was seen


def elsewhere(read, ids):
    """`read` in a thread of its own: on a processor with AMX OpenVINO leaves its thread without a configuration of
    tiles, and llama.cpp, which sets one once a thread, would be ended by the next product there."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(read, ids).result()


@pytest.fixture
def loaded(tmp_path):
    return checkpoint.load(str(writer.write(SMALL, "q4_0", tmp_path / "m.gguf").out))


@here
def test_logits_agree_and_tokens_are_the_best_of_them_one_by_one(loaded):
    ids = ids_of(loaded, 40)
    theirs = elsewhere(openvino.logits(loaded), ids)
    assert relative_error(theirs, ours(loaded, ids)) <= ROUNDED
    again = elsewhere(openvino.logits(loaded), ids)  # from the cache, and nothing of the last request
    assert np.array_equal(again, theirs)
    subject, work = peers.subject(loaded, "openvino"), Workload((ids,), new_tokens=6, length=64)
    blocks = list(subject.run(ids, work))
    assert [block.shape for block in blocks] == [(1, 1)] * 6
    best = ours(loaded, ids)[-1]
    assert best[blocks[0][0, 0]] >= best.max() - ROUNDED * np.abs(best).max()
    again = list(subject.run(ids, work))
    assert np.array_equal(np.concatenate(blocks), np.concatenate(again))
    record, _ = trial(subject, work)
    assert record.valid
    assert (record.backend, record.new_tokens, record.quantisation) == ("openvino", 6, "gguf-q4_0")


@here
def test_nothing_is_left_beside_the_file(loaded, tmp_path):
    openvino.logits(loaded)
    peers.subject(loaded, "openvino")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["m.gguf"]
    assert [path.name for path in (tmp_path / "cache" / "openvino").iterdir()] == [
        openvino.converted(tmp_path / "m.gguf", loaded.weights_hash).parent.name
    ]


@here
def test_who_leaves_early_is_not_waited_for(loaded):
    before, ids = threading.active_count(), ids_of(loaded, 8)
    tokens = peers.subject(loaded, "openvino").run(ids, Workload((ids,), new_tokens=200, length=32))
    next(tokens)
    tokens.close()
    assert threading.active_count() <= before + 1


@here
def test_a_file_that_it_cannot_read_is_a_gap_with_its_last_words(loaded, tmp_path, monkeypatch):
    import openvino_genai

    error = RuntimeError("Exception from src/x.cpp:1:\n[load_gguf] no such thing\n\n")
    monkeypatch.setattr(openvino_genai, "LLMPipeline", Mock(side_effect=error))
    with pytest.raises(peers.UnavailableError, match=r"cannot read .*m\.gguf: \[load_gguf\] no such thing"):
        peers.subject(loaded, "openvino")


@here
def test_a_damaged_file_never_reaches_its_reader_which_would_end_the_process(loaded, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match="truncated"):
        openvino.opened(path)


class Failing:
    """A pipeline that dies after two tokens."""

    def generate(self, asked, config, streamer):
        streamer.write(7)
        streamer.write([8])
        raise RuntimeError("Exception from src/x.cpp:1:\nit broke\n")


@here
def test_a_pipeline_that_fails_on_the_way_is_a_void_trial_with_its_words(loaded, monkeypatch):
    monkeypatch.setattr(openvino, "opened", lambda path: Failing())
    work = Workload((ids_of(loaded, 8),), new_tokens=4, length=32)
    record, _ = trial(peers.subject(loaded, "openvino"), work)
    assert not record.valid
    assert record.reason.endswith("it broke")
    with pytest.raises(RuntimeError, match="one row, 2 were asked for"):
        next(openvino.Pipeline(Failing()).run([1], Workload(((1,),), new_tokens=2, length=8, batch=2)))
