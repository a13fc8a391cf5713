"""What the rows of a contest say: lines of the table, the sentence."""

import pytest

from llama_lab.bench.frames import show
from llama_lab.experiments.fewer_bits import reading, table
from llama_lab.experiments.fewer_bits.reading import ALL, PROSE
from tests.experiments.fewer_bits.race import NAMES, entries_of, race


def test_an_entry_joins_rate_bandwidth_memory_and_quality():
    at = {e["name"]: e for e in entries_of(race())[256]}
    fused = at["loop+fused"]
    assert fused["decode"].median == pytest.approx(450, rel=0.02)
    assert fused["mbu"].median == pytest.approx(0.9, rel=0.02)  # 450 tokens/s of 100 MB at 50 GB/s
    assert fused["peak"] == [380e6, 381e6, 382e6]
    assert fused["distance"][ALL]["kl"] == pytest.approx(0.003, rel=0.1)
    assert fused["distance"][PROSE]["text"] == PROSE
    assert at["loop"]["distance"][ALL]["kl"] == 0
    assert at["llamacpp+q4_0"]["distance"][ALL]["kl"] == pytest.approx(0.3, rel=0.1)  # its own, not that of the file
    assert {e["decode"].n for e in at.values()} == {8}  # of one context
    assert entries_of(race())[1024][0]["decode"].median == pytest.approx(50, rel=0.02)


def test_who_is_compared_with_whom():
    found = entries_of(race())[256]
    assert table.rival(found, same_file=True)["name"] == "llamacpp"
    assert table.rival(found, same_file=False)["name"] == "llamacpp+q4_0"
    assert table.fastest(found)["name"] == "loop+fused"
    assert reading.read_as("llamacpp+generate") == "llamacpp"


def test_the_tables_hold_every_subject():
    made = race()
    frame = show(table.over_llamacpp(entries_of(made)[256], made, 256), table.COLUMNS)
    assert list(frame.index) == NAMES
    assert frame.loc["loop+fused", "over llama.cpp"] == pytest.approx(3.0, rel=0.02)
    assert frame.loc["loop", "KL"] == 0
    without = show(table.over_llamacpp(entries_of(made, read=False)[256], made, 256), table.COLUMNS)
    assert without["KL"].isna().all()


def test_the_probes_are_the_tables_or_the_most_of_its_trials():
    made = race()
    recorded = {"context 256": dict(max=60.0, median=33.0, min=30.0, n=6)}
    assert table.probes(dict(bandwidth_gbps=recorded), made, 256) == recorded["context 256"]
    assert table.probes({}, made, 256)["max"] == table.probes({}, made, 256)["median"] == 50.0
