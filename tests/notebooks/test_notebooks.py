"""The committed notebooks. Recorded mode draws the committed figures again, byte for byte."""

import ast
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from llama_jax.plumbing import files, paths
from llama_lab import figures
from llama_lab.reporting import notebooks, pages, readme, report
from tests.conftest import TINY
from tests.figures.drawn import oldest
from tests.notebooks.conftest import hashes
from tests.reporting import markup

pytestmark = pytest.mark.timeout(1800)  # twenty notebooks, on the slowest of machines
SOURCES = notebooks.find()
OURS = ("llama_jax", "llama_lab")


@pytest.fixture(scope="session")
def redrawn(tmp_path_factory):
    """All notebooks in recorded mode, into an empty folder. What is committed was drawn so by another process, at
    another time. Once for all of xdist's workers, who share the parent of their folders."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "redrawn"
    done = out / "results.json"
    with files.alone(out):
        if not done.is_file():
            done.write_text(json.dumps(notebooks.as_json(notebooks.run(out_dir=out))))
    results = [notebooks.Result(**result) for result in json.loads(done.read_text())["notebooks"]]
    assert all(r.ok for r in results), results
    return out, results


def without_complaints(home):
    manifest = figures.read_manifest(home)
    for entry in manifest["figures"].values():
        entry.pop("complaint", None)
    return manifest


@pytest.mark.slow("always")
def test_redrawing_is_byte_identical_and_equals_what_is_recorded(redrawn):
    out, results = redrawn
    assert all(re.fullmatch(r".+\.", result.finding) for result in results)  # one line
    assert hashes(out) == hashes(paths.ROOT)
    drawn = {
        f"{name}.{kind}": sha
        for name, entry in figures.read_manifest(out)["figures"].items()
        for kind, sha in entry["sha256"].items()
    }
    assert drawn == hashes(out)
    assert without_complaints(out) == without_complaints(paths.ROOT)  # which a refactoring brings
    written = hashes(out, "docs/notebooks/*.*")
    names = {name for path in SOURCES for name in (path.stem, notebooks.former(path.stem)) if name}
    assert set(written) == {f"{name}.{kind}" for name in names for kind in ("html", "md")}
    assert written == hashes(paths.ROOT, "docs/notebooks/*.*")


@pytest.mark.slow
def test_a_processor_without_newer_instructions_draws_the_same_bytes(tmp_path):
    command = [sys.executable, "-m", "llama_lab", "run", "--recorded", "--out", tmp_path]
    subprocess.run(command, cwd=paths.ROOT, env=oldest(), check=True, capture_output=True)
    assert hashes(tmp_path) == hashes(paths.ROOT)
    assert without_complaints(tmp_path) == without_complaints(paths.ROOT)


def outputs_of(cell):
    """A cell's text, however many pieces it came in, and what it showed."""
    streams = [o.text for o in cell.get("outputs", []) if o.output_type == "stream"]
    return "".join(streams), [o.data for o in cell.get("outputs", []) if o.output_type != "stream"]


@pytest.mark.slow
def test_00_says_the_same_under_plain_papermill_and_draws_no_widget(redrawn, tmp_path):
    out, _ = redrawn
    papermill = Path(sys.executable).with_name("papermill")
    command = [papermill, "00-start-here.ipynb", tmp_path / "00.ipynb", "-p", "out_dir", out]
    subprocess.run(command, cwd=notebooks.FOLDER, check=True, capture_output=True)
    files = out / "out" / "notebooks" / "00-start-here.ipynb", tmp_path / "00.ipynb"
    ours, theirs = (nbformat.read(path, as_version=4) for path in files)
    said, again = (
        [outputs_of(cell) for cell in nb.cells if pages.LIVE not in cell.metadata.get("tags", [])]
        for nb in (ours, theirs)
    )
    assert said == again
    assert "widgets" not in theirs.metadata
    outputs = [o for cell in theirs.cells for o in cell.get("outputs", [])]
    assert not [o for o in outputs if o.get("name") == "stderr" or "widget" in str(o)]


@pytest.mark.slow
def test_00_measures_here_and_now_and_records_nothing(tmp_path, monkeypatch):
    """Random weights: no tokenizer, so its text is ids."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    given = dict(model=TINY, new_tokens=4, blocks=2, placement="chunk2+scan")
    (result,) = notebooks.run(("00",), given, source="measure", out_dir=tmp_path)
    assert result.ok, result.error
    text = (tmp_path / "out" / "notebooks" / "00-start-here.ipynb").read_text()
    assert re.search(r"→ \d+ \d+ \d+ \d+", text)
    assert "the same again: 0 programs compiled" in text
    assert "step (again)" in text
    assert not (tmp_path / "data").exists()
    assert {path.stem for path in (tmp_path / "figures").glob("*.*")} == {"00-headline-rates", "manifest"}


@pytest.mark.slow
def test_the_report_is_whole(redrawn):
    out, _ = redrawn
    page = markup.checked(report.write(out).read_text())
    for name, entry in figures.read_manifest(out)["figures"].items():
        assert all(number in page for number in re.findall(r"\d[\d.,]*\d", entry["alt"])), name  # parts stand once
        assert (out / "docs" / f"../figures/{name}.svg").is_file()
        assert f'<img src="../figures/{name}.svg"' in page, name
    assert page.count("<figure ") == len(figures.read_manifest(out)["figures"])
    assert all(f'href="notebooks/{path.stem}.html"' in page for path in SOURCES)
    assert page.count('<th scope="row">') > 200  # its own data are the repository's: nothing was measured
    assert not re.findall(r"""(?:src|href)=["']?https?:|url\(["']?https?:""", page)  # all that it shows is in it


def test_readme_and_report_are_those_of_the_recorded_data(tmp_path):
    """What `llama-jax report` would write now is what lies there, but for tables that a change of code has made old."""
    for folder in ("figures", "data", "docs/notebooks"):
        shutil.copytree(paths.ROOT / folder, tmp_path / folder)
    for text in ("README.md", "docs/README.md"):
        shutil.copy(paths.ROOT / text, tmp_path / text)
    report.write(tmp_path)
    for text in ("README.md", "docs/README.md"):
        assert (tmp_path / text).read_text() == (paths.ROOT / text).read_text()
    for page in ("index.html", "machines.html", "machines.md"):
        written, committed = (
            re.sub(r"<dt>State</dt>.*\n", "", (home / "docs" / page).read_text()) for home in (tmp_path, paths.ROOT)
        )
        assert written == committed


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_sources_are_clean(path):
    nb = nbformat.read(path, as_version=4)
    nbformat.validate(nb)
    assert nb.metadata.kernelspec.name == "python3"
    assert nb.cells[0].source.startswith("# ")
    assert nb.cells[0].source.splitlines()[0].endswith("?")
    (line,) = [line for line in nb.cells[0].source.splitlines() if line.startswith(pages.EXECUTED)]
    assert f"](../docs/notebooks/{path.stem}.md)" in line
    assert not any(c.get("outputs") or c.get("execution_count") for c in nb.cells if c.cell_type == "code")
    known = notebooks.defaults(path)
    assert {"model", "seed", "source", "out_dir"} <= set(known)
    assert known["source"] == "recorded"
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    assert all("  # " in line for line in cell.source.splitlines())
    for profile in notebooks.PROFILES:
        notebooks.parameters(path, profile, {}, "measure", paths.ROOT)


def missing(code: str) -> list[str]:
    """Names that this code takes from our packages and that are not there, in branches too that nothing runs."""
    known, absent = {}, []

    def value(node):
        """The package or module of ours that an expression stands for; None for anything else."""
        owner = known.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Attribute) and (owner := value(node.value)):
            if not hasattr(owner, node.attr):
                absent.append(f"{owner.__name__}.{node.attr}")
            owner = getattr(owner, node.attr, None)
        return owner if getattr(owner, "__package__", "").startswith(OURS) else None

    for node in ast.walk(ast.parse(code)):
        for alias in getattr(node, "names", ()):
            name = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            if name.startswith(OURS):
                try:
                    known[alias.asname or alias.name] = pkgutil.resolve_name(name)
                except (ImportError, AttributeError):
                    absent.append(name)
        value(node)
    return sorted(set(absent))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.stem)
def test_what_a_notebook_takes_from_the_package_is_there(path):
    nb = nbformat.read(path, as_version=4)
    assert missing("\n".join(cell.source for cell in nb.cells if cell.cell_type == "code")) == []


def test_a_name_that_is_gone_is_found():
    code = "import llama_jax as ll\nfrom llama_lab import bench, gone\n"
    code += "if False:\n    ll.model.Gone(bench.guard.lost, bench.Guard)"
    assert missing(code) == ["llama_jax.model.Gone", "llama_lab.bench.guard.lost", "llama_lab.gone"]


def test_artifacts_that_notebooks_promise_are_recorded():
    for path in SOURCES:
        assert all((paths.ROOT / a).is_file() for a in notebooks.promised(path, paths.ROOT))


def test_each_notebook_links_to_the_one_before_it_and_the_one_after():
    """In the cells, so that both a reader in JupyterLab and one of the page can go on, past those without data."""
    found = [path for path in SOURCES if notebooks.has_data(path)]
    for before, path, after in zip([None, *found], found, [*found[1:], None], strict=False):
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        for other in (before, after):
            assert other is None or f"({other.name})" in text, f"{path.stem} has no link to {other.stem}"
        assert not any(f"({path.name})" in text for path in SOURCES if path not in found)


def test_a_question_without_data_is_in_the_report_without_a_date(tmp_path):
    figures.conclude("77-made", "Is it so?", "Nobody has measured it yet.", None, tmp_path)
    (section,) = report.sections(tmp_path)
    assert readme.claimed([section], [], tmp_path) == ""
    page = report.write(tmp_path).read_text()
    assert "Nobody has measured it yet." in page
    assert "Measured None" not in page
