import pytest

from llama_jax import checkpoint, config
from tests.conftest import build


def small(family):
    """One layer; Qwen2 with a head of its own."""
    cfg = config.tiny(family, num_hidden_layers=1, tie_word_embeddings=family != "qwen2")
    return checkpoint.Checkpoint("tiny", cfg, build(cfg), None, "hash", "random:tiny", "float32")


@pytest.fixture(scope="package")
def llama():
    return small("llama")


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny models: a second thread of PyTorch's would only wait for the first."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
