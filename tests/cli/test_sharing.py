"""`contribute`, `verify results`, `merge` and `report` on the command line."""

import json

import pytest

from llama_jax.plumbing import paths
from llama_lab import machine
from llama_lab.sharing import contribution
from tests.sharing import made
from tests.sharing.test_merging import journal


@pytest.fixture
def here(tmp_path, monkeypatch):
    """This machine is the made one, and nothing lies in its repository."""
    monkeypatch.setattr(machine, "name", lambda: made.MACHINE)
    monkeypatch.setattr(machine, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(contribution, "FOLDER", tmp_path / "machines")
    monkeypatch.setattr(contribution.doctor, "examine", lambda: made.DOCTOR)
    monkeypatch.setattr(contribution, "version", lambda packages: "0.1.0")
    return machine.results()


def told(out):
    return json.loads(out.splitlines()[-1])


def test_it_is_shown_then_written_then_verified(call, document, here, tmp_path):
    made.headline(here)
    code, out, err = call("contribute")
    assert code == 0
    assert "nothing was written; --yes writes it" in err
    assert '"doctor": {' in out
    assert "6 rows of step (again)" in out
    assert not (tmp_path / "machines").exists()
    written, _ = document("contribute", "--yes", "--json")
    path = tmp_path / "machines" / f"{made.MACHINE}-0.1.0.jsonl"
    assert written == {"ok": True, "machine": made.MACHINE, "rows": 36, "problems": [], "path": str(path),
                       "written": True}  # fmt: skip
    assert call("verify", "results", path)[:2] == (0, f"{made.MACHINE}, 36 rows: sound\n")
    path.write_bytes(path.read_bytes()[:-9])
    code, out, err = call("verify", "results", path, "--json")
    assert code == 1
    (problem,) = told(out)["problems"]
    assert problem["file"] == path.name
    assert "line 37 cannot be read" in problem["reason"]
    assert problem["reason"] in err


def test_what_would_not_pass_is_not_written(call, here, tmp_path):
    made.headline(here, made.rows(rates={**made.RATES, "step (again)": 10}))
    code, out, err = call("contribute", "--yes", "--json")
    assert code == 1
    assert "the machine was not quiet" in err
    assert not told(out)["ok"]
    assert not told(out)["written"]
    assert not (tmp_path / "machines").exists()


def test_merge_says_what_it_put_together(document, tmp_path):
    files = [journal(tmp_path / "a.jsonl"), journal(tmp_path / "b.jsonl", made.rows(machine=2.0), cpu="C")]
    out = tmp_path / "both.csv"
    said, _ = document("merge", *files, "--out", out, "--json")
    assert said == {"out": str(out), "runs": 2, "machines": [made.MACHINE, "c-avx2-2-cores"], "rows": 72}
    assert out.is_file()


def test_report_writes_the_published_page_and_ones_own(call, here, monkeypatch):
    written = []
    monkeypatch.setattr("llama_lab.reporting.report.write", lambda out: written.append(out) or out / "docs")
    assert told(call("report", "--json")[1]) == {"path": str(paths.ROOT / "docs"), "results": None}
    (here / "figures").mkdir(parents=True)
    (here / "figures" / "manifest.json").write_text("{}")
    assert told(call("report", "--json")[1]) == {"path": str(paths.ROOT / "docs"), "results": str(here / "docs")}
    call("report", "--out", here)
    assert written == [paths.ROOT, paths.ROOT, here, here]
