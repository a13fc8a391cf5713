"""The page of machines: a row each, ratios and shares, and one's own beside what is published."""

import re

import pytest

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.bench import record
from llama_lab.reporting import machines, report
from tests.reporting import markup
from tests.sharing import made

NAMES = ["eager", "step", "loop", "loop+fused", "llamacpp"]


def page(tmp_path, folder):
    return markup.checked(machines.write(tmp_path / "out", folder).read_text())


def column(table, head):
    """The words of a column, by the machine."""
    at = list(table.heads).index(head)
    return {row[0]: getattr(row[at], "words", row[at]) for row in table.rows}


@pytest.fixture
def folder(tmp_path):
    """Two machines' files; the second is faster at everything and has more instructions."""
    (tmp_path / "machines").mkdir()
    made.contributed(tmp_path).rename(tmp_path / "machines" / f"{made.MACHINE}-0.1.0+unreleased.jsonl")
    there = {**made.ENVIRONMENT, "kernels": "avx512vnni", "cpu": "C"}
    rates = {**made.RATES, "loop+fused": 100}
    path = made.contributed(tmp_path, made.rows(machine=2.0, rates=rates), environment=there)
    path.rename(tmp_path / "machines" / path.name)
    return tmp_path / "machines"


@pytest.fixture(autouse=True)
def unreleased(monkeypatch):
    monkeypatch.setattr(machines.contribution, "version", lambda packages: "0.1.0+unreleased")


def test_each_machine_is_a_row_in_ratios_and_shares(folder):
    known, refused = machines.contributed(folder)
    assert refused == []
    table = machines.ratios(known, NAMES)
    assert [*column(table, "loop").values()] == ["1.15", "1.15"]  # the machine's speed cancels
    assert [*column(table, "loop+fused").values()] == ["3.00", "5.00"]
    assert [*column(table, "step").values()] == ["1", "1"]
    assert column(table, "A/A")[made.MACHINE] == "1.00"
    assert column(table, "loop+fused over llamacpp")[made.MACHINE] == "1.50"
    assert table.heads[2] == "loop+fused over llamacpp"
    shares = machines.shares(known, NAMES)
    assert column(shares, "step")[made.MACHINE] == "50%"  # 20 tokens/s of 5e8 bytes, 20e9 bytes/s
    assert column(shares, "GB/s")[made.MACHINE] == "20.0"


def test_machines_are_told_apart_by_their_features(folder, tmp_path):
    known, _ = machines.contributed(folder)
    assert [*column(machines.by_features(known, NAMES), "loop+fused over step").values()] == ["3.00", "5.00"]
    alike = [machines.Machine(m.about | dict(features=[]), m.trials) for m in known]
    alike[1].environment["kernels"] = alike[0].environment["kernels"]
    assert [*column(machines.by_features(alike, NAMES), "loop+fused over step").values()] == ["3.00 to 5.00"]
    text = page(tmp_path, folder)
    assert "Each set of features has one machine so far, so features and machine cannot be told apart." in text
    assert text.count('<th scope="row">c-avx512vnni-2-cores</th>') == 2
    assert text.count('class="sortable"') == 3
    source = (tmp_path / "out" / "docs" / "machines.md").read_text()
    assert source.count("\n| c-avx512vnni-2-cores |") == 2
    assert [line for line in source.splitlines() if line.startswith("## ")] == [
        "## Over `step`", "## As shares of the machine's limit", "## What differs by the processor's features"
    ]  # fmt: skip
    assert not re.findall(r"https?://[^\s\"'<>)]*", text)
    assert page(tmp_path, folder) == text


def test_amx_is_said_only_where_it_is_recorded():
    assert machines.amx(["avx2", "amx-int8"]) == ", AMX"
    assert machines.amx(["avx2"]) == ""


def test_a_damaged_file_is_left_out_and_said(folder, tmp_path):
    path = next(folder.glob("a-b*"))
    path.write_bytes(path.read_bytes()[:-40])
    text = page(tmp_path, folder)
    assert '<h2 id="refused-title">Left out</h2>' in text
    assert "line 37 cannot be read" in text
    assert '<th scope="row">a-b' not in text
    assert "One set of features so far" in text
    assert "line 37 cannot be read" in (tmp_path / "out" / "docs" / "machines.md").read_text()
    text = page(tmp_path, tmp_path / "nothing")
    assert "No machine's file lies in" in text
    assert "<table" not in text


def test_the_last_measurement_of_a_machine_counts(folder):
    (here, _), _ = machines.contributed(folder)
    several = [machines.Machine(here.about | dict(measured=when), here.trials) for when in "acb"]
    assert [m.about["measured"] for m in machines.newest(several)] == ["c"]


def test_ones_own_results_stand_beside_the_published(tmp_path, monkeypatch, folder):
    """In ratios and shares; the published page says nothing of them."""
    published, results = tmp_path / "repository", tmp_path / "repository" / "results" / "here"
    made.headline(published)
    made.headline(results, made.rows(machine=2.0))
    monkeypatch.setattr(paths, "ROOT", published)
    (loop,) = [row for row in machines.beside(results).rows if row[0] == "loop"]
    assert [cell.words for cell in loop[4:]] == ["1.15", "1.15", "58%", "58%"]
    assert machines.beside(published).rows == machines.here(published) == []
    text = machines.write(results, folder).read_text()
    assert f"{made.MACHINE} (here)" in text
    assert "This machine beside the published one" in text
    assert "(here)" not in machines.write(published, folder).read_text()


def test_a_report_of_results_has_that_page_beside_it(tmp_path):
    trials, meta = record.read(paths.ROOT / "data" / "02-jit-placement.csv")
    figures.conclude("02-jit-placement", "Where?", "There.", meta, tmp_path)
    record.write(
        tmp_path / "data" / "02-jit-placement.csv", trials[:-1], environment=meta["environment"], baseline="step"
    )
    index = report.write(tmp_path)
    assert 'href="machines.html"' in index.read_text()
    text = (tmp_path / "docs" / "machines.html").read_text()
    assert text.count("<td>02-jit-placement</td>") >= 14
