"""Matplotlib's SVG for light and dark pages: the same picture, in other colours where its reader's page is dark."""

from __future__ import annotations

import colorsys
import re

PAPER, INK = (0x16, 0x16, 0x15), (0xE7, 0xE7, 0xE3)  # of a dark page
COLOUR = re.compile(r"((?:fill|stroke): ?)(#[0-9a-f]{6})\b")
LEAST = 4.5  # contrast with the paper, as WCAG 2.2 asks of text: https://www.w3.org/TR/WCAG22/#contrast-minimum
GREY, PALE = 0.12, 0.85  # saturation below which a colour is a grey; lightness above which it is a background
STYLE = '<style type="text/css">'


def themed(svg: str) -> str:
    """The picture with a style for dark pages: greys are turned round, as ink and paper are, and what is too dark to be
    seen is made lighter. Pages that show it by an <img> pass the reader's choice on.

    Raises ValueError where there is no style element to put it in: then it is not Matplotlib's.
    """
    if STYLE not in svg:
        raise ValueError("no style element: not an SVG of Matplotlib's")
    rules = [
        f'[style*="{kind}{colour}"]{{{kind.strip()}{on_dark(colour)}!important}}'
        for kind, colour in sorted(set(COLOUR.findall(svg)))
        if on_dark(colour) != colour
    ]
    dark = f"@media (prefers-color-scheme:dark){{svg{{fill:{code(INK)}}}{''.join(rules)}}}"
    return svg.replace(STYLE, STYLE + dark, 1)


def on_dark(colour: str) -> str:
    """What stands for a colour (`#rrggbb`) on dark paper."""
    rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(*(c / 255 for c in rgb))
    if saturation < GREY or max(rgb) - min(rgb) < 0x10:
        return code(tuple(round(p + (i - p) * (1 - light)) for p, i in zip(PAPER, INK, strict=True)))
    if light > PALE:
        return code(tuple(round(255 * c) for c in colorsys.hls_to_rgb(hue, 1 - light + 0.08, saturation / 2)))
    while contrast(rgb, PAPER) < LEAST:
        light += 0.02
        rgb = tuple(round(255 * c) for c in colorsys.hls_to_rgb(hue, light, saturation))
    return code(rgb)


def contrast(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """Contrast ratio of two colours, 1 to 21 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def luminance(rgb: tuple[int, ...]) -> float:
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def code(rgb: tuple[int, ...]) -> str:
    return "#" + "".join(f"{c:02x}" for c in rgb)
