"""The same bytes on every processor: drawn with and without NumPy's code for newer instructions."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
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
def draw(out: Path) -> dict[str, str]:
    """Panels whose sizes depend on logarithms: of where a text stands that reaches beyond its axes. Without rounding
    both files differ from processor to processor."""
    figure, panels = style.new(8, 3, columns=2)
    for panel, at in zip(panels, DIFFERING[12:14], strict=True):
        panel.loglog(DIFFERING, DIFFERING**1.3, marker="o")
        panel.set_xlim(at / 3, at * 1.1)
        panel.text(at, at, "far out")
    files = figures.save(figure, "x", "nb", {**META, "code": None}, {}, "alt", out)
    return {kind: hashlib.sha256(path.read_bytes()).hexdigest() for kind, path in files.items()}


def test_a_figure_has_the_same_bytes_without_newer_instructions(tmp_path):
    drawn = subprocess.run(
        [sys.executable, "-m", __name__, tmp_path], cwd=paths.ROOT, env=oldest(), check=True, stdout=subprocess.PIPE
    )
    assert json.loads(drawn.stdout) == draw(tmp_path)


def test_what_is_drawn_is_rounded_and_the_figure_stays_as_it_was():
    outline = rounded(Outline([[1 / 3, 2 / 3], [1, 1]]), Affine2D().scale(1 / 7))
    assert (outline.vertices == np.round(outline.vertices, DECIMALS)).all()
    figure = style.new()[0]
    before = figure.draw
    with the_same_everywhere(figure):
        assert (figure.get_tightbbox().get_points() == np.round(figure.get_tightbbox().get_points(), INCHES)).all()
    assert figure.draw == before


if __name__ == "__main__":
    print(json.dumps(draw(Path(sys.argv[1]))))
