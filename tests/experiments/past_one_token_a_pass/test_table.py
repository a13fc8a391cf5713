"""Rates, ratios, equal tokens and what passes took, by task; and the sentence that says it."""

import pytest

from llama_lab.bench.frames import show
from llama_lab.experiments.past_one_token_a_pass import table
from tests.experiments.past_one_token_a_pass.race import META, NAMES, race


def by(entries):
    return {(e["task"], e["name"]): e for e in entries}


def test_each_task_has_its_own_rates_and_ratios():
    found = by(table.table(race(), META))
    assert len(found) == 3 * len(NAMES)
    assert found["copy", "loop+lookup"]["decode"].median == pytest.approx(120, rel=0.02)
    assert found["copy", "loop+fused+lookup4"]["ratio"].value == pytest.approx(3, rel=0.02)
    assert found["open", "loop+lookup"]["ratio"].value == pytest.approx(39 / 40, rel=0.02)
    assert found["copy", "loop"]["ratio"] is found["copy", "llamacpp"]["equal"] is None
    assert all(e["equal"] for e in found.values() if e["ratio"])


def test_what_passes_took_of_their_drafts():
    found = by(table.table(race(), META))
    passes = found["copy", "loop+lookup"]["passes"]
    assert (passes["tokens_a_pass"], passes["accepted"], passes["drafted"]) == (19 / 4, 15 / 16, 1)
    passes = found["open", "loop+lookup"]["passes"]
    assert (passes["accepted"], passes["drafted"]) == (1 / 4, 1 / 4)
    assert found["open", "llamacpp"]["passes"] is None
    frame = show(found.values(), table.COLUMNS)
    assert frame.loc[("copy", "loop+lookup"), "tokens a pass"] == 4.75
    assert frame.loc[("copy", "loop+lookup"), "same tokens"] == "yes"


def test_other_tokens_are_said():
    entries = table.table(race(tokens={"loop+lookup": "other"}), META)
    assert by(entries)["copy", "loop+lookup"]["equal"] is False


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("loop+fused+lookup6", "loop+fused"),
        ("loop+lookup", "loop"),
        ("llamacpp+lookup", "llamacpp"),
        ("step+scan", "step+scan"),
    ],
)
def test_a_subject_without_its_drafts(name, without):
    assert table.plain(name) == without
