import pytest


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny models: a second thread of PyTorch's would only wait for the first."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
