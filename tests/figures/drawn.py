"""What tests of charts share: a meta file, a run's trials, a figure's words, and that it is drawn the same twice."""

import numpy as np

from llama_jax import figures
from tests.bench.test_record import trial

META = {
    "environment": {"cpu": "C", "cores": 2, "ram_bytes": 2**34, "packages": {"jax": "1"}, "python": "3"},
    "created": "2026-01-01T00:00:00Z",
    "sha256": "d",
}


def trials():
    rng = np.random.default_rng(0)
    made = [
        trial(n, b, (10, 20, 30 + rng.random())) for n in ("eager", "step", "step (again)", "loop") for b in range(6)
    ]
    return made + [
        trial(n, phase="cold", compiled=3, trace_ns=10**8, lower_ns=10**8, backend_ns=10**9)
        for n in ("eager", "step", "loop")
    ]


def words(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in [*axes.texts, axes.xaxis.label, axes.title])


def assert_same_twice(draw, folder):
    """That what `draw` draws is the same bytes twice; returns the text of the SVG."""
    files = [figures.save(draw(), "x", "nb", META, {}, "alt", folder / str(i)) for i in range(2)]
    for kind in ("svg", "png"):
        assert files[0][kind].read_bytes() == files[1][kind].read_bytes()
    return files[0]["svg"].read_text()
