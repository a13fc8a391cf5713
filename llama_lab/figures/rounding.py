"""Figures whose bytes do not depend on the processor.

NumPy has different code for each instruction set, and the results differ in the last place. That is enough to move a
point across a pixel's edge, and to change the ids in an SVG, which are hashes of coordinates. So all coordinates, and
the size of the page, are rounded where Matplotlib hands them to a renderer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.transforms import Bbox, IdentityTransform, Transform

DECIMALS = 4  # of a point or pixel: a hundredth of what can be seen, far above the last place
INCHES = 8  # decimals of the page's size
AS_THEY_ARE = IdentityTransform()


class Rounding:
    """A renderer of Matplotlib's that is given rounded coordinates. All else is the renderer's own."""

    def __init__(self, renderer):
        self.renderer = renderer

    def __getattr__(self, name: str):
        return getattr(self.renderer, name)

    def draw_path(self, gc, path: Path, transform: Transform, rgbFace=None) -> None:  # noqa: N803, Matplotlib's name
        self.renderer.draw_path(clipped(gc), rounded(path, transform), AS_THEY_ARE, rgbFace)

    def draw_markers(self, gc, marker: Path, marker_transform: Transform, path: Path, transform: Transform, *fill):
        places = rounded(path, transform)
        self.renderer.draw_markers(clipped(gc), marker, marker_transform, places, AS_THEY_ARE, *fill)

    def draw_path_collection(
        self, gc, transform: Transform, paths, transforms, offsets, placed: Transform, *more, **options
    ):
        if not len(transforms):  # else the paths are markers, scaled by these
            paths, transform = [rounded(path, transform) for path in paths], AS_THEY_ARE
        places = np.round(placed.transform(offsets), DECIMALS)
        self.renderer.draw_path_collection(
            clipped(gc), transform, paths, transforms, places, AS_THEY_ARE, *more, **options
        )

    def draw_text(self, gc, x: float, y: float, *more, **options) -> None:
        self.renderer.draw_text(clipped(gc), round(float(x), DECIMALS), round(float(y), DECIMALS), *more, **options)

    def draw_image(self, gc, x: float, y: float, *more) -> None:
        self.renderer.draw_image(clipped(gc), round(float(x), DECIMALS), round(float(y), DECIMALS), *more)


def rounded(path: Path, transform: Transform) -> Path:
    """A path in the renderer's coordinates, rounded."""
    there = transform.transform_path(path)
    places = np.round(there.vertices, DECIMALS)
    return Path._fast_from_codes_and_verts(places, there.codes, path)  # keeps what the path says of its simplification


def clipped(gc):
    """A graphics context, its clip rectangle rounded."""
    rectangle = gc.get_clip_rectangle()
    if rectangle is not None:
        gc.set_clip_rectangle(Bbox(np.round(rectangle.get_points(), DECIMALS)))
    return gc


@contextmanager
def the_same_everywhere(figure: Figure) -> Iterator[None]:
    """Figures saved inside have the same bytes on every processor."""
    draw, box = figure.draw, figure.get_tightbbox
    figure.draw = lambda renderer: draw(Rounding(renderer))
    figure.get_tightbbox = lambda *more, **options: Bbox(np.round(box(*more, **options).get_points(), INCHES))
    try:
        yield
    finally:
        del figure.draw, figure.get_tightbbox
