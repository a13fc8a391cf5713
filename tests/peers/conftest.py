import numpy as np
import pytest

from llama_jax import checkpoint, config, generate
from llama_jax.checkpoint.tensors import named
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.peers import llamacpp, openvino
from tests import families
from tests.checkpoint import test_gguf
from tests.conftest import build


def small(family="llama", **changes):
    """One layer; Qwen2 with a head of its own."""
    shape = dict(num_hidden_layers=1, tie_word_embeddings=family != "qwen2") | changes
    cfg = config.tiny(family, **shape)
    return checkpoint.Checkpoint("tiny", cfg, build(cfg), None, "hash", "random:tiny", "float32")


def trial(subject, work, prompt=0, phase="warm"):
    return protocol.trial(subject, work, prompt, run="", block=0, order=0, process=0, phase=phase)


def tokens(run, ids, work):
    """[n B]"""
    return np.concatenate(list(run(list(ids), work)))


def answer(loaded, name, work, prompt=0):
    subject = peers.subject(loaded, name)
    return tokens(subject.run, subject.encode(work.prompts[prompt]), work)


def some_ids(count, vocabulary=97, seed=0):
    return tuple(np.random.default_rng(seed).integers(3, vocabulary, count).tolist())


def written(folder, kind):
    """A small random checkpoint in a GGUF file of its family, or of Llama in a type."""
    path = folder / f"{kind.replace(', ', '-')}.gguf"
    if kind in families.MODELS:
        cfg, params = checkpoint.from_torch(families.made(kind))
        families.write_gguf(path, cfg, named(cfg, params))
    else:
        test_gguf.write(path, kind)
    return checkpoint.load(str(path))


def ours(loaded, ids):
    return np.asarray(generate.logits(generate.build(loaded, "step"), ids))


def ids_of(loaded, count=40):
    return some_ids(count, loaded.config.vocab_size)


@pytest.fixture
def plain(tmp_path):
    """A model in float32."""
    return written(tmp_path, "F32")


@pytest.fixture(scope="package")
def llama():
    return small()


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny models: a second thread of PyTorch's would only wait for the first."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_core(monkeypatch, tmp_path):
    """llama.cpp's threads wait for each other by spinning, which takes for ever on cores that other tests use; one
    waits for none. What is made of a file lies in a cache of the test's own."""
    for module in (llamacpp, openvino):
        monkeypatch.setattr(module, "allowed_cores", lambda: [0])
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    yield
    openvino.PIPELINE.clear()
