"""Matplotlib's SVG for light and dark pages, the same picture in other colours on dark pages; and in half the bytes,
for pages with many."""

from __future__ import annotations

import colorsys
import re
import urllib.parse

PAPER, INK = (0x16, 0x16, 0x15), (0xE7, 0xE7, 0xE3)  # of a dark page
COLOUR = re.compile(r"((?:fill|stroke): ?)(#[0-9a-f]{6})\b")
LEAST = 4.5  # contrast with the paper, as WCAG 2.2 asks of text: https://www.w3.org/TR/WCAG22/#contrast-minimum
GREY, PALE = 0.12, 0.85  # saturation below which a colour is a grey; lightness above which it is a background
HEADER = '<style type="text/css">'
HEAD = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.S)
ASKED = re.compile(r"((?:href=\"|url\()#)([\w-]+)")  # where an id is referred to; colours begin with # as well
LETTER = re.compile(r'(<use href="[^"]*") transform="translate\(([\d.]+) 0\)"')  # the next one of a line of text
PLACE = re.compile(r' (?:d|x|y)="[^"]*"')
COMMAND = re.compile(r" ?([A-Zz]) ?")  # of a path
TEXT = re.compile(r'<g transform="translate\([^)]*\)')  # where a text stands
STYLE = re.compile(r' style="[^"]*"')
NUMBER = re.compile(r"-?\d+\.\d{2,}")


def themed(svg: str) -> str:
    """The picture with a style for dark pages: greys are inverted, like ink and paper, and colours too dark to be seen
    are lightened. Pages that show it by an <img> pass the reader's choice on.

    Raises ValueError if there is no style element to put it in: then it is not Matplotlib's.
    """
    if HEADER not in svg:
        raise ValueError("no style element: not an SVG of Matplotlib's")
    rules = [
        f'[style*="{kind}{colour}"]{{{kind.strip()}{on_dark(colour)}!important}}'
        for kind, colour in sorted(set(COLOUR.findall(svg)))
        if on_dark(colour) != colour
    ]
    dark = f"@media (prefers-color-scheme:dark){{svg{{fill:{code(INK)}}}{''.join(rules)}}}"
    return svg.replace(HEADER, HEADER + dark, 1)


def on_dark(colour: str) -> str:
    """The replacement for a colour (`#rrggbb`) on dark pages."""
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


def compact(svg: str) -> str:
    """The same picture without metadata and idle space, with short ids, places to a tenth of a point or of a unit of a
    font."""
    svg = re.sub(r"\s+", " ", re.sub(r">\s+<", "><", HEAD.sub("", svg)))
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    short = {name: f"{i:x}_" for i, name in enumerate(dict.fromkeys(name for _, name in ASKED.findall(svg)))}
    svg = re.sub(r' id="([\w-]+)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", svg)
    svg = ASKED.sub(lambda m: m[1] + short[m[2]], svg)
    svg = LETTER.sub(r'\1 x="\2"', svg)
    svg = STYLE.sub(lambda m: m[0].replace(": ", ":").replace("; ", ";"), svg)
    for places in (PLACE, TEXT):
        svg = places.sub(lambda m: NUMBER.sub(lambda n: f"{round(float(n[0]), 1):g}", m[0]), svg)
    return re.sub(r' d="[^"]*"', lambda m: ' d="' + COMMAND.sub(r"\1", m[0][4:]), svg).strip()


def address(svg: str) -> str:
    """A picture for light and dark pages as a data address: a page is one file, and ids of several pictures cannot
    collide."""
    quoted = urllib.parse.quote(themed(compact(svg)).replace('"', "'"), safe=" '()*+,-./:;=>@_~!$")
    return "data:image/svg+xml," + quoted
