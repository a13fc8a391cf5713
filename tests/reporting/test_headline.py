"""What `make figures` leaves beside the published figures, and what it says meanwhile."""

import json

import pytest

from llama_lab import figures, machine
from llama_lab.bench import environment, record, recorded
from llama_lab.cli import notebooks as verbs
from llama_lab.cli import program
from llama_lab.experiments.headline import measure
from llama_lab.reporting import headline, notebooks, report
from llama_lab.reporting.notebooks import Result
from tests.experiments.headline.test_headline import MS, trials


@pytest.fixture
def measured(tmp_path):
    """A headline that was measured here: (trials, meta)."""
    subjects = [name for name in MS if not name.endswith("(again)")]
    path = tmp_path / "data" / f"{headline.NAME}.csv"
    parameters = measure.QUICK.parameters
    about = dict(baseline="step", subjects=subjects, missing=[], parameters=parameters)
    record.write(path, trials(), environment=environment.capture(), weights_hash="w", **about)
    return record.read(path)


def test_this_machine_gets_a_figure_and_a_page_of_its_own(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(headline, "published", lambda other: [])
    headline.draw(*measured, tmp_path)
    entry = figures.read_manifest(tmp_path)["figures"][f"{headline.NAME}-rates"]
    assert "loop 27.6" in entry["alt"]
    assert (tmp_path / "figures" / f"{headline.NAME}-rates.svg").is_file()
    page = report.write(tmp_path).read_text()
    assert headline.QUESTION in page
    assert "loop 27.6" in page


def test_the_published_one_stands_beside_others_and_not_beside_itself(measured, tmp_path, monkeypatch):
    for home, known in ((tmp_path, True), (tmp_path / "nothing recorded", False)):
        monkeypatch.setattr(headline.paths, "ROOT", home)
        assert bool(headline.published({**measured[1], "sha256": "another"})) == known
    monkeypatch.setattr(headline.paths, "ROOT", tmp_path)
    assert headline.published(measured[1]) == []


def test_gaps_and_the_published_machine_are_said(measured):
    data, meta = measured
    here, there = (headline.summary.table(rows, "step", meta["subjects"]) for rows in (data, trials(loop=18)))
    gap = dict(name="llamacpp", reason="It is not built.", remedy="Run `make peers`.")
    _, beside, missing = headline.lines(data, {**meta, "missing": [gap]}, here, there)
    assert beside.startswith("Beside the published machine, in tokens/s: ")
    assert "loop 27." in beside
    assert missing == "llamacpp is missing: It is not built. Run `make peers`."


def test_the_headline_is_kept_under_its_name(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(measure.Amount, "record", lambda *a: (trials(), dict(subjects=["step"])))
    data, meta = headline.obtain(measure.QUICK, tmp_path, lambda *said: found.append(said))
    assert recorded.read(headline.NAME, tmp_path)[0] == data
    assert meta["parameters"]["blocks"] == measure.QUICK.blocks
    assert {"llama_lab.experiments.headline.measure", "llama_jax.kernels", "llama_lab.peers.llamacpp"} == set(
        meta["code"]["roots"]
    )


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_figures_measures_draws_and_reports(measured, tmp_path, monkeypatch, capsys, ok, code):
    done = []

    def draw(progress):
        for line in ("into /x", "02-jit-placement: recorded", "02-jit-placement: cell 3/9 x (2 s)"):
            progress(line)
        done.append("drawn")
        return [Result("02-jit-placement", ok, 1.0, [], "Found.", "" if ok else "cell 3 failed")]

    def report_written():
        done.append("reported")
        return [tmp_path / "index.html"]

    monkeypatch.setattr(machine, "results", lambda: tmp_path)
    monkeypatch.setattr(headline, "obtain", lambda *rest: done.append("measured") or measured)
    monkeypatch.setattr(notebooks, "run", draw)
    monkeypatch.setattr(verbs, "write_report", report_written)
    assert (program()(["figures", "--json"], standalone_mode=False) or 0) == code
    said = capsys.readouterr()
    assert done == ["measured", "drawn", *(["reported"] if ok else [])]
    assert "0 min: measuring the headline here; about 9 min left, then drawing every notebook, the report" in said.err
    assert ("cell 3 failed" in said.err) is not ok
    assert json.loads(said.out.splitlines()[-1])["notebooks"][0]["ok"] is ok
