"""The notebooks and their runner. Recorded mode draws the committed figures again, byte for byte."""

import ast
import hashlib
import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import markupsafe
import nbformat
import pytest

from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab import figures, machine
from llama_lab.reporting import execution, headline, notebooks, pages, readme, report
from tests.reporting import markup

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
    results = [notebooks.Result(**found) for found in json.loads(done.read_text())["notebooks"]]
    assert all(r.ok for r in results), results
    return out, results


def hashes(folder, what="figures/*-*.*"):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob(what))}


@pytest.mark.slow("always")
def test_redrawing_is_byte_identical_and_equals_what_is_recorded(redrawn):
    out, _ = redrawn
    assert hashes(out) == hashes(paths.ROOT)
    drawn = {
        f"{name}.{kind}": sha
        for name, entry in figures.read_manifest(out)["figures"].items()
        for kind, sha in entry["sha256"].items()
    }
    assert drawn == hashes(out)
    assert figures.read_manifest(out) == figures.read_manifest(paths.ROOT)
    written = hashes(out, "docs/notebooks/*.*")
    assert set(written) == {f"{path.stem}.{kind}" for path in SOURCES for kind in ("html", "md")}
    assert written == hashes(paths.ROOT, "docs/notebooks/*.*")


@pytest.mark.slow
def test_each_notebook_answers_in_one_sentence(redrawn):
    for r in redrawn[1]:
        assert r.finding
        assert r.finding.count("\n") == 0
        assert r.finding.endswith(".")


def said(cell):
    """A cell's outputs: its text, however many pieces it came in, and what it showed."""
    outputs = cell.get("outputs", [])
    return "".join(o.text for o in outputs if o.output_type == "stream"), [
        o.data for o in outputs if o.output_type != "stream"
    ]


@pytest.mark.slow
def test_00_says_the_same_under_plain_papermill_and_draws_no_widget(redrawn, tmp_path):
    out, _ = redrawn
    papermill = Path(sys.executable).with_name("papermill")
    done = subprocess.run(
        [papermill, "00-start-here.ipynb", tmp_path / "00.ipynb", "-p", "out_dir", out],
        cwd=notebooks.FOLDER,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = (
        nbformat.read(path, as_version=4)
        for path in (out / "out" / "notebooks" / "00-start-here.ipynb", tmp_path / "00.ipynb")
    )
    assert [said(cell) for cell in ours.cells] == [said(cell) for cell in theirs.cells]
    assert "widgets" not in theirs.metadata
    outputs = [o for cell in theirs.cells for o in cell.get("outputs", [])]
    assert not [o for o in outputs if o.get("name") == "stderr" or "widget" in str(o)]


@pytest.mark.slow
def test_00_measures_here_and_now_and_records_nothing(tmp_path, monkeypatch):
    """Random weights: no tokenizer, so its text is ids."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    tiny = (
        "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
        "head_dim=16,vocab_size=97"
    )
    given = dict(model=tiny, new_tokens=4, blocks=2, placement="chunk2+scan")
    (result,) = notebooks.run(("00",), given, source="measure", out_dir=tmp_path)
    assert result.ok, result.error
    said = (tmp_path / "out" / "notebooks" / "00-start-here.ipynb").read_text()
    assert re.search(r"→ \d+ \d+ \d+ \d+", said)
    assert "the same again: 0 programs compiled" in said
    assert "step (again)" in said
    assert not (tmp_path / "data").exists()
    assert {path.stem for path in (tmp_path / "figures").glob("*.*")} == {"00-headline-rates", "manifest"}


@pytest.mark.slow
def test_the_report_is_whole(redrawn):
    out, _ = redrawn
    page = markup.checked(report.write(out).read_text())
    for name, entry in figures.read_manifest(out)["figures"].items():
        assert str(markupsafe.escape(entry["alt"])) in page, name
        assert (out / "docs" / f"../figures/{name}.svg").is_file()
        assert f'<img src="../figures/{name}.svg"' in page, name
    assert page.count("<figure ") == len(figures.read_manifest(out)["figures"])
    assert all(f'href="notebooks/{path.stem}.html"' in page for path in SOURCES)
    assert page.count('<th scope="row">') > 200  # its own data are the repository's: nothing was measured
    assert not re.findall(r"https?://[^\s\"'<>)]*", page)


def test_readme_and_report_are_those_of_the_recorded_data(tmp_path):
    """What `llama-jax report` would write now is what lies there."""
    shutil.copytree(paths.ROOT / "figures", tmp_path / "figures")
    shutil.copytree(paths.ROOT / "data", tmp_path / "data")
    shutil.copytree(paths.ROOT / "docs" / "notebooks", tmp_path / "docs" / "notebooks")
    shutil.copy(paths.ROOT / "README.md", tmp_path)
    report.write(tmp_path)
    assert (tmp_path / "README.md").read_text() == (paths.ROOT / "README.md").read_text()
    for page in ("index.html", "machines.html"):
        assert (tmp_path / "docs" / page).read_text() == (paths.ROOT / "docs" / page).read_text()
    said = (tmp_path / "README.md").read_text()
    for name, manifest in figures.read_manifest(paths.ROOT)["notebooks"].items():
        assert (manifest["question"] in said) == (name != headline.NAME)  # the claim answers that one


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


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        ("3", 1, 3),
        ("1e-4", 0.5, 1e-4),
        (2, 0.5, 2.0),
        ("7", "name", "7"),
        ("[8, 16]", [1], [8, 16]),
        ("True", False, True),
    ],
)
def test_parameters_take_the_type_of_their_default(value, default, expected):
    found = notebooks.convert("nb", "p", value, default)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "default"), [("1e3", 1), ("x", 1), ("1", True), ("True", 1), (None, 1), ("3", [1]), (5, "text")]
)
def test_mistyped_parameters_are_refused(value, default):
    with pytest.raises(UserError, match="must be"):
        notebooks.convert("nb", "p", value, default)


def make(folder, *cells, artifacts=(), parameters='source: str = "recorded"  # x\nout_dir: str = ".."  # x'):
    """A notebook source of its own."""
    nb = nbformat.v4.new_notebook()
    nb.cells = [
        nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *map(nbformat.v4.new_code_cell, cells),
    ]
    nb.metadata = {
        "kernelspec": {"name": "python3", "display_name": "x", "language": "python"},
        "llama_jax": {"artifacts": list(artifacts)},
    }
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


def test_a_run_leaves_a_page_and_one_that_failed_keeps_the_last(own, tmp_path):
    own("# think\nprint('done.')")
    page = tmp_path / "docs" / "notebooks" / "77-made.html"
    written = page.read_text()
    assert ">done.</pre>" in written
    assert str(tmp_path) not in written  # where it wrote is this run's affair
    own("1 / 0")
    assert page.read_text() == written


def test_progress_names_notebook_cell_and_elapsed(own):
    result, said = own("# think hard\nprint('done.')")
    assert result.ok
    assert result.finding == "done."
    assert any("77-made" in line and "think hard" in line and "s)" in line for line in said)


@pytest.mark.slow
def test_a_long_cell_says_how_far_it_is(own, monkeypatch):
    monkeypatch.setattr(execution, "EVERY_S", 0.2)
    code = "import time\nfrom llama_lab.bench.progress import announce\n"
    code += "for i in range(4):\n    announce('measuring', i, 4)\n    time.sleep(0.6)"
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
    make(
        tmp_path, "print(n * 2)", parameters='n: int = 1  # x\nsource: str = "recorded"  # x\nout_dir: str = ".."  # x'
    )
    result = notebooks.run(("77",), {"n": "21"}, source="measure", out_dir=tmp_path)[0]
    assert result.finding == "42"
    with pytest.raises(UserError, match="add --measure"):
        notebooks.run(("77",), {"n": "21"}, out_dir=tmp_path)


WRITES = "import llama_jax as ll\nout_dir = out_dir or machine.home(source)\nprint(out_dir)"


@pytest.mark.slow
def test_a_measurement_goes_to_this_machines_results_and_a_redraw_to_the_repository(tmp_path, monkeypatch):
    """Unless another folder is named, which may be the repository itself."""
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    monkeypatch.setattr(machine, "FOLDER", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "results" / machine.name()
    make(tmp_path, WRITES, parameters='source: str = "recorded"  # x\nout_dir: str = ""  # x')
    for given, source, out, expected in (
        ({}, "measure", None, here),
        ({"source": "measure"}, "recorded", None, here),
        ({}, "measure", tmp_path / "x", tmp_path / "x"),
        ({"out_dir": str(tmp_path / "y")}, "measure", None, tmp_path / "y"),
        ({}, "recorded", here, here),
        ({}, "measure", ".", tmp_path),
    ):
        (result,) = notebooks.run(("77",), given, source, out_dir=out)
        assert (result.ok, result.finding) == (True, str(expected))
        assert (expected / "docs" / "notebooks" / "77-made.html").is_file()


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


def test_what_sums_up_the_others_runs_after_them(tmp_path, monkeypatch):
    make(tmp_path, "1")
    (tmp_path / "77-made.ipynb").rename(tmp_path / "88-made.ipynb")
    make(
        tmp_path,
        "print((Path(out_dir) / 'out/notebooks/88-made.ipynb').is_file())",
        parameters='from pathlib import Path  # x\nsource: str = "recorded"  # x\nout_dir: str = ".."  # x',
    )
    nb = nbformat.read(tmp_path / "77-made.ipynb", as_version=4)
    nb.metadata["llama_jax"]["last"] = True
    nbformat.write(nb, tmp_path / "77-made.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    results = notebooks.run(out_dir=tmp_path)
    assert [(r.name, r.finding) for r in results] == [("88-made", ""), ("77-made", "True")]


@pytest.mark.slow
def test_two_are_drawn_side_by_side_and_measured_one_after_the_other(tmp_path, monkeypatch):
    for name, other in (("77", "78"), ("78", "77")):
        make(
            tmp_path,
            f"""import os, time
there = lambda: os.path.exists(out_dir + "/{other}")
open(out_dir + "/{name}", "w")
end = time.time() + 60
while source == "recorded" and not there() and time.time() < end:
    time.sleep(0.05)
print(there())
if source == "measure":
    os.remove(out_dir + "/{name}")""",
        )
        (tmp_path / "77-made.ipynb").rename(tmp_path / f"{name}-one.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    for source, found in (("measure", "False"), ("recorded", "True")):
        results = notebooks.run(source=source, out_dir=tmp_path)
        assert [(r.name, r.finding) for r in results] == [("77-one", found), ("78-one", found)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("The disk is full.")])
def test_what_is_drawn_beside_one_that_is_interrupted_is_stopped(error):
    beside = threading.Event()

    def one(number, children):
        if number == 0:
            beside.wait(60)
            raise error
        child = subprocess.Popen(["sleep", "600"])
        children.append(child), begun.append(child), beside.set()
        return child.wait()

    begun = []
    with pytest.raises(type(error)):
        notebooks.side_by_side(one, [(number,) for number in range(9)])
    assert 1 <= len(begun) <= 3
    assert all(child.poll() == -signal.SIGKILL for child in begun)


def test_one_may_be_read_after_another_than_its_number_says(tmp_path, monkeypatch):
    def named(name, **own):
        make(tmp_path, "1")
        nb = nbformat.read(tmp_path / "77-made.ipynb", as_version=4)
        nb.metadata["llama_jax"].update(own)
        nbformat.write(nb, tmp_path / f"{name}.ipynb")
        (tmp_path / "77-made.ipynb").unlink()

    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    named("01-first"), named("02-second"), named("03-late", after="01-first"), named("04-summary", last=True)
    assert [path.stem for path in notebooks.sources()] == ["01-first", "03-late", "02-second", "04-summary"]
    named("03-late", after="01-frist")
    with pytest.raises(UserError) as error:
        notebooks.sources()
    assert str(error.value).startswith("03-late.ipynb: after is '01-frist', which is no notebook.")
    assert "01-first" in str(error.value)


def test_each_notebook_links_to_the_one_before_it_and_the_one_after():
    """In the cells, so that both a reader in JupyterLab and one of the page can go on."""
    for before, path, after in zip([None, *SOURCES], SOURCES, [*SOURCES[1:], None], strict=False):
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        for other in (before, after):
            assert other is None or f"({other.name})" in text, f"{path.stem} has no link to {other.stem}"


def test_a_question_without_data_is_in_the_report_without_a_date(tmp_path):
    figures.conclude("77-made", "Is it so?", "Nobody has measured it yet.", None, tmp_path)
    (section,) = report.sections(tmp_path)
    link = "[Is it so?](docs/index.html#n77)"
    assert readme.block([section | dict(name="08-fewer-bits")], [], tmp_path) == f"- {link} Nobody has measured it yet."
    assert readme.block([section], [], tmp_path) == f"Asked as well: {link}"
    page = report.write(tmp_path).read_text()
    assert "Nobody has measured it yet." in page
    assert "Measured None" not in page
