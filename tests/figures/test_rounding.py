"""The same bytes on every processor: drawn with and without NumPy's code for newer instructions."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from matplotlib.transforms import Affine2D

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.figures import style
from llama_lab.figures.rounding import DECIMALS, INCHES, rounded, the_same_everywhere
from tests.figures.drawn import META, oldest

# of these the logarithms of AVX-512 and of the baseline differ in the last place
DIFFERING = np.array([9, 10, 12, 18, 20, 22, 24, 38, 45, 46, 64, 67, 73, 77, 78, 99, 100, 102, 158, 172, 174]) / 7


@style.styled
def panels() -> Figure:
    """Panels whose sizes depend on logarithms: of where a text stands that reaches beyond its axes."""
    figure, axes = style.new(22, 22, columns=4, lines=5)
    for panel, at in zip(axes.flat, DIFFERING, strict=False):
        panel.loglog(DIFFERING, DIFFERING**1.3, marker="o")
        panel.set_xlim(at / 3, at * 1.1)
        panel.text(at, at, "far out")
    return figure


def drawn_in(out: Path, environment: dict[str, str]) -> dict[str, str]:
    subprocess.run([sys.executable, "-m", __name__, out], cwd=paths.ROOT, env=environment, check=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (out / "figures").glob("x.*")}


def test_a_figure_has_the_same_bytes_without_newer_instructions(tmp_path):
    assert drawn_in(tmp_path / "new", {**os.environ}) == drawn_in(tmp_path / "old", oldest())


def test_what_is_drawn_is_rounded_and_the_figure_stays_as_it_was():
    outline = rounded(Outline([[1 / 3, 2 / 3], [1, 1]]), Affine2D().scale(1 / 7))
    assert (outline.vertices == np.round(outline.vertices, DECIMALS)).all()
    figure = style.new()[0]
    before = figure.draw
    with the_same_everywhere(figure):
        assert (figure.get_tightbbox().get_points() == np.round(figure.get_tightbbox().get_points(), INCHES)).all()
    assert figure.draw == before


if __name__ == "__main__":
    figures.save(panels(), "x", "nb", {**META, "code": None}, {}, "alt", sys.argv[1])
