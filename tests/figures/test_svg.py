"""A picture for light and dark pages: in the dark its colours can be told from the paper and nothing else changes; in
fewer bytes it is the same picture."""

import re
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.figures import style, svg

DRAWN = (
    '<svg><defs><style type="text/css">*{}</style></defs><path style="fill: #ffffff; stroke: #332288"/><path'
    ' style="fill: none; stroke: #ffff00"/></svg>'
)


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def test_paper_and_ink_change_places():
    assert svg.on_dark("#ffffff") == svg.code(svg.PAPER)
    assert svg.on_dark("#000000") == svg.code(svg.INK)
    greys = [svg.on_dark(f"#{grey:02x}{grey:02x}{grey:02x}") for grey in (0, 0x55, 0x99, 0xEE)]
    assert greys == sorted(greys, reverse=True)


@pytest.mark.parametrize("colour", [*figures.PALETTE.values(), *figures.COLOURS.values(), *style.OTHERS, "#b00020"])
def test_every_colour_of_the_style_can_be_seen_on_dark_paper(colour):
    assert svg.contrast(rgb(svg.on_dark(colour.lower())), svg.PAPER) >= svg.LEAST


def test_what_can_be_seen_keeps_its_colour_and_a_pale_background_becomes_a_dark_one():
    assert svg.on_dark("#e69f00") == "#e69f00"
    assert svg.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert svg.contrast(rgb(svg.on_dark("#fde0dd")), svg.INK) >= 4.5


def test_rules_are_of_the_colours_that_are_there_and_for_dark_pages_alone():
    found = svg.themed(DRAWN)
    (rules,) = re.findall(r"@media \(prefers-color-scheme:dark\)\{(.*?)\}\}", found)
    assert re.findall(r'\[style\*="(\w+: #\w+)"\]', rules) == ["fill: #ffffff", "stroke: #332288"]
    assert found.replace(f"@media (prefers-color-scheme:dark){{{rules}}}}}", "") == DRAWN


def test_a_picture_of_another_program_is_refused():
    with pytest.raises(ValueError, match="no style element"):
        svg.themed("<svg><path/></svg>")


PICTURES = [path for n in ("02", "06", "11") for path in sorted((paths.ROOT / "figures").glob(f"{n}-*.svg"))]


def parts(text):
    """(how many elements of each kind, their styles, ids asked for, ids there are)."""
    elements = list(ElementTree.fromstring(text).iter())
    kinds = [e.tag.rpartition("}")[2] for e in elements]
    drawn = {kind: kinds.count(kind) for kind in ("path", "use", "g", "clipPath", "rect")}
    styles = [e.get("style") for e in elements if e.get("style")]
    asked = set(re.findall(r"(?:href=\"|url\()#([\w-]+)", text))
    return drawn, styles, asked, {e.get("id") for e in elements if e.get("id")}


@pytest.mark.parametrize("path", PICTURES, ids=[p.stem for p in PICTURES])
def test_a_compact_picture_draws_the_same(path):
    before = path.read_text(encoding="utf-8")
    after = svg.compact(before)
    (drawn, styles, _, _), (drawn_after, styles_after, asked, there) = parts(before), parts(after)
    assert drawn == drawn_after
    plain = [re.sub(r"([:;]) ", r"\1", re.sub(r"url\(#[^)]*\)", "url", " ".join(s.split()))) for s in styles]
    assert plain == [re.sub(r"url\(#[^)]*\)", "url", s) for s in styles_after]  # colours begin with # as ids do
    assert asked <= there
    assert len(after) < 0.8 * len(before)
    places, places_after = (
        [float(n) for d in re.findall(r' d="([^"]*)"', text) for n in re.findall(r"-?\d+(?:\.\d+)?", d)]
        for text in (before, after)
    )
    assert len(places) == len(places_after)
    assert max(abs(a - b) for a, b in zip(places, places_after, strict=True)) <= 0.0501


def test_letters_keep_their_places():
    text = (
        '<svg><use xlink:href="#a-1" transform="translate(61.28125 0)"/><use xlink:href="#a-1"'
        ' transform="translate(3 0.0625)"/>'
    )
    expected = '<svg><use href="#0_" x="61.3"/><use href="#0_" transform="translate(3 0.0625)"/>'
    assert svg.compact(text + '<path id="a-1"/></svg>') == expected + '<path id="0_"/></svg>'


def test_an_embedded_picture_is_the_compact_one_for_light_and_dark():
    address = svg.address(PICTURES[0].read_text(encoding="utf-8"))
    assert '"' not in address
    assert "<" not in address
    text = urllib.parse.unquote(address.partition(",")[2])
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "[style*='fill:#ffffff']" in text  # as the compact picture spells it
