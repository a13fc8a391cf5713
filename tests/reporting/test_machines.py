"""The page of machines: a row each, ratios and shares, versions, and one's own beside what is published."""

import re

import pytest

from llama_jax.plumbing import paths
from llama_lab.bench import record
from llama_lab.reporting import machines, report, versions
from tests.sharing import made


def page(tmp_path, folder):
    return machines.write(tmp_path / "out", folder).read_text()


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
    names = machines.columns(known)
    assert names == ["eager", "step", "loop", "loop+fused", "llamacpp"]
    here, there = (machines.row(m, names) for m in known)
    assert here["ratios"]["loop"]["words"] == there["ratios"]["loop"]["words"] == "1.15"  # the machine's speed cancels
    assert (here["ratios"]["loop+fused"]["words"], there["ratios"]["loop+fused"]["words"]) == ("3.00", "5.00")
    assert here["ratios"]["step"]["words"] == "1"
    assert float(here["shares"]["step"]["value"]) == pytest.approx(
        20 * 5e8 / 20e9, rel=1e-2
    )  # tokens/s, bytes, bytes/s
    assert here["over"]["words"] == "1.50"
    assert here["control"]["words"] == "1.00"


def test_the_page_tells_machines_apart_by_their_features(folder, tmp_path):
    text = page(tmp_path, folder)
    assert text.count("One set so far") == 0
    assert text.count('<th scope="row">c-avx512vnni-2-cores</th>') == 2
    assert re.search(r"<th scope=\"row\">avx512vnni</th>.*<td>5\.00</td>", text)
    assert text.count('class="sortable"') == 3
    assert len(text) < 200_000
    addresses = set(re.findall(r"https?://[^\s\"'<>)]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_a_damaged_file_is_left_out_and_said(folder, tmp_path):
    path = next(folder.glob("a-b*"))
    path.write_bytes(path.read_bytes()[:-40])
    text = page(tmp_path, folder)
    assert '<h2 id="refused-title">Left out</h2>' in text
    assert "line 37 cannot be read" in text
    assert '<th scope="row">a-b' not in text
    assert "One set so far" in text


def test_no_file_is_said(tmp_path):
    text = page(tmp_path, tmp_path / "nothing")
    assert "No machine's file lies in" in text
    assert "<table" not in text


def test_the_same_files_make_the_same_bytes(folder, tmp_path):
    assert page(tmp_path, folder) == page(tmp_path, folder)


def test_one_version_is_said_to_be_one(folder):
    known, _ = machines.contributed(folder)
    found = versions.drawn(known)
    assert found["words"].startswith("One version so far, 0.1.0+unreleased: nothing can be compared yet.")
    assert found["image"].startswith("data:image/svg+xml,")
    assert "step 50%" in found["alt"]
    assert versions.drawn([]) is None


def test_versions_stand_in_their_order_and_the_last_measurement_of_one_counts(folder):
    (here, _), _ = machines.contributed(folder)
    at = [("0.9.0", "a"), ("0.10.0", "b"), ("0.10.0+unreleased", "c"), ("0.10.0", "z")]
    several = [machines.Machine(**{**vars(here), "version": v, "measured": when}) for v, when in at]
    found = versions.points(several)[here.name]
    assert list(found) == ["0.9.0", "0.10.0", "0.10.0+unreleased"]
    assert versions.drawn(several)["words"].startswith("Each release adds its point; of 3 versions")
    assert len(machines.newest(several)) == 1


def test_ones_own_results_stand_beside_the_published(tmp_path, monkeypatch, folder):
    """In ratios and shares; the published page says nothing of them."""
    published, results = tmp_path / "repository", tmp_path / "repository" / "results" / "here"
    made.headline(published)
    made.headline(results, made.rows(machine=2.0))
    monkeypatch.setattr(paths, "ROOT", published)
    (loop,) = [one for one in machines.beside(results) if one["subject"] == "loop"]
    assert loop["ratio"]["words"] == loop["published_ratio"]["words"] == "1.15"
    assert loop["share"]["words"] == loop["published_share"]["words"] == "58%"
    assert machines.beside(published) == machines.here(published) == []
    text = machines.write(results, folder).read_text()
    assert f"{made.MACHINE} (here)" in text
    assert "This machine beside the published one" in text
    assert "(here)" not in machines.write(published, folder).read_text()


def test_a_report_of_results_has_that_page_beside_it(tmp_path, monkeypatch):
    trials, meta = record.read(paths.ROOT / "data" / "03-jit-placement.csv")
    from llama_lab import figures

    figures.conclude("03-jit-placement", "Where?", "There.", meta, tmp_path)
    record.write(
        tmp_path / "data" / "03-jit-placement.csv", trials[:-1], environment=meta["environment"], baseline="step"
    )
    index = report.write(tmp_path)
    assert 'href="machines.html"' in index.read_text()
    text = (tmp_path / "docs" / "machines.html").read_text()
    assert text.count("<td>03-jit-placement</td>") >= 14
