"""Matplotlib's SVG in half the bytes, for pages that hold many."""

from __future__ import annotations

import re
import urllib.parse

from llama_lab.figures.dark import themed

HEAD = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.S)
ASKED = re.compile(r"((?:href=\"|url\()#)([\w-]+)")  # where an id is referred to; colours begin with # as well
LETTER = re.compile(r'(<use href="[^"]*") transform="translate\(([\d.]+) 0\)"')  # the next one of a line of text
PLACE = re.compile(r' (?:d|x|y)="[^"]*"')
COMMAND = re.compile(r" ?([A-Zz]) ?")  # of a path
TEXT = re.compile(r'<g transform="translate\([^)]*\)')  # where a text stands
STYLE = re.compile(r' style="[^"]*"')
NUMBER = re.compile(r"-?\d+\.\d{2,}")


def compact(svg: str) -> str:
    """The same picture without metadata and idle space, with short ids, places to a tenth of a point or of a unit of a
    font."""
    svg = re.sub(r"\s+", " ", re.sub(r">\s+<", "><", HEAD.sub("", svg)))
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    short = {name: f"{i:x}_" for i, name in enumerate(dict.fromkeys(name for _, name in ASKED.findall(svg)))}
    svg = re.sub(r' id="([\w-]+)"', lambda found: f' id="{short[found[1]]}"' if found[1] in short else "", svg)
    svg = ASKED.sub(lambda found: found[1] + short[found[2]], svg)
    svg = LETTER.sub(r'\1 x="\2"', svg)
    svg = STYLE.sub(lambda found: found[0].replace(": ", ":").replace("; ", ";"), svg)
    for places in (PLACE, TEXT):
        svg = places.sub(lambda found: NUMBER.sub(lambda n: f"{round(float(n[0]), 1):g}", found[0]), svg)
    return re.sub(r' d="[^"]*"', lambda found: ' d="' + COMMAND.sub(r"\1", found[0][4:]), svg).strip()


def address(svg: str) -> str:
    """A picture for light and dark pages as a data address: a page is one file, and ids of several pictures cannot
    collide."""
    quoted = urllib.parse.quote(themed(compact(svg)).replace('"', "'"), safe=" '()*+,-./:;=>@_~!$")
    return "data:image/svg+xml," + quoted
