"""A figure in the dark: its colours can be told from the paper, and nothing else changes."""

import re

import matplotlib.pyplot as plt
import pytest

from llama_lab import figures
from llama_lab.figures import dark, style
from tests.figures.drawn import META

DRAWN = (
    '<svg><defs><style type="text/css">*{}</style></defs><path style="fill: #ffffff; stroke: #332288"/><path'
    ' style="fill: none; stroke: #ffff00"/></svg>'
)


def test_paper_and_ink_change_places():
    assert dark.on_dark("#ffffff") == dark.code(dark.PAPER)
    assert dark.on_dark("#000000") == dark.code(dark.INK)
    greys = [dark.on_dark(f"#{grey:02x}{grey:02x}{grey:02x}") for grey in (0, 0x55, 0x99, 0xEE)]
    assert greys == sorted(greys, reverse=True)


@pytest.mark.parametrize("colour", [*figures.PALETTE.values(), *figures.COLOURS.values(), *style.OTHERS, "#b00020"])
def test_every_colour_of_the_style_can_be_seen_on_dark_paper(colour):
    found = dark.on_dark(colour.lower())
    assert dark.contrast(tuple(int(found[i : i + 2], 16) for i in (1, 3, 5)), dark.PAPER) >= dark.LEAST


def test_what_can_be_seen_already_keeps_its_colour():
    assert dark.on_dark("#e69f00") == "#e69f00"
    assert dark.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)


def test_a_pale_background_becomes_a_dark_one():
    found = dark.on_dark("#fde0dd")
    assert dark.contrast(tuple(int(found[i : i + 2], 16) for i in (1, 3, 5)), dark.INK) >= 4.5


def test_rules_are_of_the_colours_that_are_there_and_for_dark_pages_alone():
    found = dark.themed(DRAWN)
    (rules,) = re.findall(r"@media \(prefers-color-scheme:dark\)\{(.*?)\}\}", found)
    assert re.findall(r'\[style\*="(\w+: #\w+)"\]', rules) == ["fill: #ffffff", "stroke: #332288"]
    assert found.replace(f"@media (prefers-color-scheme:dark){{{rules}}}}}", "") == DRAWN


def test_a_picture_of_another_program_is_refused():
    with pytest.raises(ValueError, match="no style element"):
        dark.themed("<svg><path/></svg>")


def test_a_saved_figure_has_both(tmp_path):
    figure, axes = style.new()
    axes.plot([1, 2], color="#332288")
    paths = figures.save(figure, "x", "nb", META, {}, "alt", tmp_path)
    plt.close("all")
    text = paths["svg"].read_text()
    assert text.count("@media (prefers-color-scheme:dark)") == 1
    assert '[style*="stroke: #332288"]' in text
