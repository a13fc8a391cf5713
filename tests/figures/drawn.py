"""What tests of charts share: a meta file, a run's trials, a figure's words, and that it is drawn in style."""

import os

import numpy as np
from matplotlib.colors import to_hex

from llama_lab import figures
from llama_lab.figures import style
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


NEUTRAL = {"#000000", "#ffffff", to_hex(style.GREY), to_hex(style.LIMIT_COLOUR)}


def words(figure):
    around = [text.get_text().replace("\n", " ") for text in (figure._suptitle, figure._supxlabel) if text]
    said = (text.get_text() for axes in figure.axes for text in [*axes.texts, axes.xaxis.label, axes.title])
    return " ".join([*around, *said])


def assert_drawn(figure, folder):
    """That a figure is in style and can be saved; returns the text of the SVG."""
    assert_in_style(figure)
    return figures.save(figure, "x", "nb", META, {}, "alt", folder)["svg"].read_text()


def assert_in_style(figure):
    """That a figure's title is a sentence within its width, and that each subject's label has the subject's colour."""
    title = figure._suptitle
    assert title is not None, "a figure without a headline"
    assert title.get_text().count("\n") < 2, title.get_text()
    assert len(title.get_text().split()) >= 3, title.get_text()
    box = title.get_window_extent(figure.canvas.get_renderer())
    assert box.width <= figure.bbox.width, title.get_text()
    for text in (text for axes in figure.axes for text in axes.texts):
        name = text.get_text().strip().partition(":")[0].partition(",")[0].partition(" ")[0]
        if name in style.COLOURS and to_hex(text.get_color()) not in NEUTRAL:
            assert to_hex(text.get_color()) == to_hex(figures.colour(name)), text.get_text()


def oldest() -> dict[str, str]:
    """An environment in which NumPy runs its baseline alone, as on a processor without AVX-512 and AVX2."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    here = [name for name in __cpu_dispatch__ if __cpu_features__.get(name)]
    return {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(here)}
