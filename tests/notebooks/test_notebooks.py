"""The notebooks and their runner. Recorded mode draws the committed figures again, byte for byte."""

import hashlib
import json
import shutil

import markupsafe
import nbformat
import pytest

from llama_jax import figures, notebooks, paths, report
from llama_jax.errors import UserError

SOURCES = notebooks.find()


@pytest.fixture(scope="module")
def redrawn(tmp_path_factory):
    """All notebooks in recorded mode, twice, each time into an empty folder."""
    runs = []
    for _ in range(2):
        out = tmp_path_factory.mktemp("out")
        results = notebooks.run(out_dir=out)
        assert all(r.ok for r in results), results
        runs.append((out, results))
    return runs


def hashes(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((folder / "figures").glob("*-*.*"))}


@pytest.mark.slow
def test_redrawing_is_byte_identical_and_equals_what_is_recorded(redrawn):
    (one, _), (two, _) = redrawn
    assert hashes(one) == hashes(two)
    assert hashes(one) == hashes(paths.ROOT)
    drawn = {f"{name}.{kind}": sha for name, entry in figures.read_manifest(one)["figures"].items() for kind, sha in entry["sha256"].items()}
    assert drawn == hashes(one)
    assert figures.read_manifest(one) == figures.read_manifest(paths.ROOT)


@pytest.mark.slow
def test_each_notebook_answers_in_one_sentence(redrawn):
    for _, results in redrawn:
        for r in results:
            assert r.finding
            assert r.finding.count("\n") == 0
            assert r.finding.endswith(".")


@pytest.mark.slow
def test_the_report_is_whole(redrawn):
    out = redrawn[0][0]
    page = report.write(out).read_text()
    for name, entry in figures.read_manifest(out)["figures"].items():
        assert f'alt="{markupsafe.escape(entry["alt"])}"' in page, name
    assert page.count("<figure>") == len(figures.read_manifest(out)["figures"])
    for outside in ("http://", "https://", "<script"):
        assert outside not in page


def test_readme_and_report_are_those_of_the_recorded_data(tmp_path):
    """What `llama-jax report` would write now is what lies there."""
    shutil.copytree(paths.ROOT / "figures", tmp_path / "figures")
    shutil.copytree(paths.ROOT / "data", tmp_path / "data")
    shutil.copy(paths.ROOT / "README.md", tmp_path)
    report.write(tmp_path)
    assert (tmp_path / "README.md").read_text() == (paths.ROOT / "README.md").read_text()
    assert (tmp_path / "docs" / "index.html").read_text() == (paths.ROOT / "docs" / "index.html").read_text()
    for manifest in figures.read_manifest(paths.ROOT)["notebooks"].values():
        assert manifest["finding"] in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_sources_are_clean(path):
    nb = nbformat.read(path, as_version=4)
    nbformat.validate(nb)
    assert nb.metadata.kernelspec.name == "python3"
    assert nb.cells[0].source.startswith("# ")
    assert nb.cells[0].source.splitlines()[0].endswith("?")
    assert not any(c.get("outputs") or c.get("execution_count") for c in nb.cells if c.cell_type == "code")
    known = notebooks.defaults(path)
    assert {"model", "seed", "source", "out_dir"} <= set(known)
    assert known["source"] == "recorded"
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    assert all("  # " in line for line in cell.source.splitlines())
    for profile in notebooks.PROFILES:
        notebooks.parameters(path, profile, {}, "measure", paths.ROOT)


def test_artifacts_that_notebooks_promise_are_recorded():
    for path in SOURCES:
        assert all((paths.ROOT / a).is_file() for a in notebooks.promised(path, paths.ROOT))


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [("3", 1, 3), ("1e-4", 0.5, 1e-4), (2, 0.5, 2.0), ("7", "name", "7"), ("[8, 16]", [1], [8, 16]), ("True", False, True)],
)
def test_parameters_take_the_type_of_their_default(value, default, expected):
    found = notebooks.convert("nb", "p", value, default)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(("value", "default"), [("1e3", 1), ("x", 1), ("1", True), ("True", 1), (None, 1), ("3", [1]), (5, "text")])
def test_mistyped_parameters_are_refused(value, default):
    with pytest.raises(UserError, match="must be"):
        notebooks.convert("nb", "p", value, default)


def make(folder, *cells, artifacts=(), parameters='source: str = "recorded"  # x\nout_dir: str = ".."  # x'):
    """A notebook source of its own."""
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(nbformat.v4.new_code_cell, cells)]
    nb.metadata = {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}, "llama_jax": {"artifacts": list(artifacts)}}
    nbformat.write(nb, folder / "77-made.ipynb")


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)

    def run(*cells, **options):
        make(tmp_path, *cells, artifacts=options.pop("artifacts", ()))
        said = []
        return notebooks.run(("77",), out_dir=tmp_path, progress=said.append, **options)[0], said

    return run


def test_a_failing_cell_is_one_line(own):
    result, _ = own("# divide\n1 / 0")
    assert not result.ok
    assert result.error == "cell 3 failed: ZeroDivisionError: division by zero"


def test_progress_names_notebook_cell_and_elapsed(own):
    result, said = own("# think hard\nprint('done.')")
    assert result.ok
    assert result.finding == "done."
    assert any("77-made" in line and "think hard" in line and "s)" in line for line in said)


def test_a_long_cell_says_how_far_it_is(own, monkeypatch):
    monkeypatch.setattr(notebooks, "EVERY_S", 0.2)
    code = "import time\nfrom llama_jax.bench.progress import announce\nfor i in range(4):\n    announce('measuring', i, 4)\n    time.sleep(0.6)"
    _, said = own(code)
    assert sum("measuring (" in line for line in said) >= 3
    assert any(line.startswith("77-made: measuring (1/4) (") for line in said)


def test_a_notebook_that_leaves_early_is_caught(own):
    result, _ = own("import sys; sys.exit(0)", "open('figures/77.png', 'w')", artifacts=["figures/77.png"])
    assert not result.ok
    assert "without writing" in result.error


def test_a_notebook_that_hangs_is_stopped(own):
    result, _ = own("import time; time.sleep(600)", limit=4)
    assert not result.ok
    assert "stopped after 4 s" in result.error


def test_parameters_reach_the_notebook(own, tmp_path):
    make(tmp_path, "print(n * 2)", parameters='n: int = 1  # x\nsource: str = "recorded"  # x\nout_dir: str = ".."  # x')
    result = notebooks.run(("77",), {"n": "21"}, source="measure", out_dir=tmp_path)[0]
    assert result.finding == "42"
    with pytest.raises(UserError, match="add --measure"):
        notebooks.run(("77",), {"n": "21"}, out_dir=tmp_path)


def test_a_child_that_complains_a_lot_does_not_block(own):
    result, _ = own("import os; [os.write(2, b'x' * 1000 + b'\\n') for _ in range(500)]\nprint('done.')", limit=120)
    assert result.ok
    assert result.finding == "done."


def test_an_out_folder_that_cannot_be_is_named(own, tmp_path):
    (tmp_path / "file").write_text("")
    make(tmp_path, "1")
    with pytest.raises(UserError, match="Cannot write"):
        notebooks.run(("77",), out_dir=tmp_path / "file")


def test_two_parameter_cells_are_refused(tmp_path, monkeypatch):
    make(tmp_path, "1")
    nb = nbformat.read(tmp_path / "77-made.ipynb", as_version=4)
    nb.cells.append({**nb.cells[0], "id": "another"})
    (tmp_path / "77-made.ipynb").write_text(json.dumps(nb))
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    with pytest.raises(UserError, match="2 cells are tagged"):
        notebooks.run(("77",))


def test_a_notebook_whose_data_nobody_recorded_promises_nothing(tmp_path, monkeypatch):
    make(tmp_path, "1", artifacts=["figures/77.png"])
    nb = nbformat.read(tmp_path / "77-made.ipynb", as_version=4)
    nb.metadata["llama_jax"]["needs"] = "data/77.csv"
    nbformat.write(nb, tmp_path / "77-made.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    assert notebooks.run(("77",), out_dir=tmp_path)[0].ok
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "77.csv").write_text("")
    assert notebooks.promised(tmp_path / "77-made.ipynb", tmp_path) == ["figures/77.png"]
    assert "without writing" in notebooks.run(("77",), out_dir=tmp_path)[0].error


def test_a_question_without_data_is_in_the_report_without_a_date(tmp_path):
    figures.conclude("77-made", "Is it so?", "Nobody has measured it yet.", None, tmp_path)
    (section,) = report.sections(tmp_path)
    assert report.findings([section]) == "**Is it so?** Nobody has measured it yet."
    page = report.write(tmp_path).read_text()
    assert "Nobody has measured it yet." in page
    assert "Measured None" not in page
