"""A picture in fewer bytes, for a page that holds it, is the same picture."""

import re
import urllib.parse
import xml.etree.ElementTree as ElementTree

import pytest

from llama_jax.plumbing import paths
from llama_lab.figures import svg as pictures
from llama_lab.figures.svg import compact

PICTURES = sorted((paths.ROOT / "figures").glob("0[389]-*.svg"))


def parts(svg):
    """(how many elements of each kind, their styles, ids asked for, ids there are)."""
    elements = list(ElementTree.fromstring(svg).iter())
    kinds = [e.tag.rpartition("}")[2] for e in elements]
    drawn = {kind: kinds.count(kind) for kind in ("path", "use", "g", "clipPath", "rect")}
    styles = [e.get("style") for e in elements if e.get("style")]
    asked = set(re.findall(r"(?:href=\"|url\()#([\w-]+)", svg))
    return drawn, styles, asked, {e.get("id") for e in elements if e.get("id")}


@pytest.mark.parametrize("path", PICTURES, ids=[p.stem for p in PICTURES])
def test_a_compact_picture_draws_the_same(path):
    before = path.read_text(encoding="utf-8")
    after = compact(before)
    (drawn, styles, _, _), (drawn_after, styles_after, asked, there) = parts(before), parts(after)
    assert drawn == drawn_after
    plain = [re.sub(r"([:;]) ", r"\1", re.sub(r"url\(#[^)]*\)", "url", " ".join(s.split()))) for s in styles]
    assert plain == [re.sub(r"url\(#[^)]*\)", "url", s) for s in styles_after]  # colours begin with # as ids do
    assert asked <= there
    assert len(after) < 0.8 * len(before)
    places, places_after = (
        [float(n) for d in re.findall(r' d="([^"]*)"', svg) for n in re.findall(r"-?\d+(?:\.\d+)?", d)]
        for svg in (before, after)
    )
    assert len(places) == len(places_after)
    assert max(abs(a - b) for a, b in zip(places, places_after, strict=True)) <= 0.0501


def test_letters_keep_their_places():
    text = (
        '<svg><use xlink:href="#a-1" transform="translate(61.28125 0)"/><use xlink:href="#a-1"'
        ' transform="translate(3 0.0625)"/>'
    )
    expected = '<svg><use href="#0_" x="61.3"/><use href="#0_" transform="translate(3 0.0625)"/>'
    assert compact(text + '<path id="a-1"/></svg>') == expected + '<path id="0_"/></svg>'


def test_an_embedded_picture_is_the_compact_one_for_light_and_dark():
    address = pictures.address(PICTURES[0].read_text(encoding="utf-8"))
    assert '"' not in address
    assert "<" not in address
    text = urllib.parse.unquote(address.partition(",")[2])
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "[style*='fill:#ffffff']" in text  # as the compact picture spells it
