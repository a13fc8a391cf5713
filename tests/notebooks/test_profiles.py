"""The quick profile is a part of the full one: what it measures is in that too, in no smaller amount."""

import pytest

from llama_lab.experiments.headline import measure
from llama_lab.reporting import notebooks

SOURCES = notebooks.find()


def within(quick, full):
    """Whether a parameter's quick value is a part of its full one: no greater number, no other members. Of members
    that are [place, number], at the same place no greater number."""
    if isinstance(quick, list):
        if any(isinstance(one, list) for one in quick):
            amounts = dict(full)
            return all(place in amounts and number <= amounts[place] for place, number in quick)
        return set(quick) <= set(full)
    if isinstance(quick, str):
        return set(quick.split()) <= set(full.split())
    return quick <= full


def beyond(path):
    quick, full = notebooks.defaults(path), notebooks.about(path).profiles.get("full", {})
    return [name for name, value in full.items() if not within(quick[name], value)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_quick_is_within_full(path):
    own = notebooks.about(path)
    assert own.profiles.get("quick", {}) == {}  # the cell of parameters is the quick profile
    assert set(own.profiles.get("full", {})) <= set(notebooks.defaults(path))
    assert beyond(path) == []


@pytest.mark.parametrize(
    ("quick", "full", "inside"),
    [
        (3, 3, True),
        (4, 3, False),
        ([32, 64], [32, 48, 64], True),
        ([32, 160], [32, 192], False),
        ([], ["a"], True),
        ("2 16", "2 4 16", True),
        ("2 12", "2 4 16", False),
        ("", "random:gpt2", True),
        ([[50, 20]], [[10, 9], [50, 200]], True),
        ([[50, 20]], [[50, 10]], False),
        ([[60, 1]], [[50, 10]], False),
        (False, True, True),
        (1.5, 1.0, False),
    ],
)
def test_what_is_no_part_is_found(quick, full, inside):
    assert within(quick, full) is inside


def test_a_headline_has_processes_and_blocks_enough():
    amounts = [notebooks.about(p).profiles["full"] for p in SOURCES if notebooks.about(p).headline]
    amounts = [(full["processes"], full["blocks"]) for full in amounts]
    amounts.append((measure.FULL.processes, measure.FULL.blocks))
    assert amounts
    assert all(processes >= 5 and blocks >= 20 for processes, blocks in amounts)
    assert measure.QUICK.blocks <= measure.FULL.blocks
    assert measure.QUICK.processes <= measure.FULL.processes
    assert measure.QUICK.new_tokens == measure.FULL.new_tokens
