"""The runner of notebooks: each in a process of its own, whose failures are one line; none outlives an interruption."""

import json
import os
import signal
import subprocess
import threading

import nbformat
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab import machine
from llama_lab.reporting import drawn, execution, notebooks

SOURCE, OUT = 'source: str = "recorded"  # x', 'out_dir: str = ".."  # x'


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Write a notebook source of these cells; `own`: its metadata."""
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)

    def made(*cells, name="77-made", parameters=(SOURCE, OUT), **own):
        nb = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, ("\n".join(parameters), *cells))])
        for number, cell in enumerate(nb.cells):
            cell.id = f"cell-{number}"  # the same cells are the same file
        nb.cells[0].metadata["tags"] = ["parameters"]
        kernel = {"name": "python3", "display_name": "x", "language": "python"}
        nb.metadata = {"kernelspec": kernel, "llama_jax": own}
        nbformat.write(nb, tmp_path / f"{name}.ipynb")
        return tmp_path / f"{name}.ipynb"

    return made


@pytest.fixture
def run(make, tmp_path):
    """Make a notebook of these cells and run it: (its result, the lines of progress)."""

    def executed(*cells, artifacts=(), **options):
        make(*cells, artifacts=list(artifacts))
        lines = []
        return notebooks.run(("77",), out_dir=tmp_path, progress=lines.append, **options)[0], lines

    return executed


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
    converted = notebooks.convert(value, default)
    assert (converted, type(converted)) == (expected, type(expected))


def test_a_notebook_says_what_it_does_and_what_it_found(run, tmp_path):
    result, lines = run("# think hard\nprint('done.')")
    assert (result.ok, result.finding) == (True, "done.")
    assert any("77-made" in line and "think hard" in line and "s)" in line for line in lines)
    page = tmp_path / "docs" / "notebooks" / "77-made.html"
    written = page.read_text()
    assert ">done.</pre>" in written
    assert str(tmp_path) not in written  # where it wrote is this run's affair
    result, _ = run("# divide\n1 / 0")
    assert (result.ok, result.error) == (False, "cell 3 failed: ZeroDivisionError: division by zero")
    assert page.read_text() == written  # one that failed keeps the last


@pytest.mark.parametrize(
    ("cells", "options", "words"),
    [
        (("import sys; sys.exit(0)", "1"), dict(artifacts=["figures/77.png"]), "without writing"),
        (("import time; time.sleep(600)",), dict(limit=4), "stopped after 4 s"),
    ],
    ids=["leaves early", "hangs"],
)
def test_a_notebook_that_does_not_end_well_is_one_line(run, cells, options, words):
    result, _ = run(*cells, **options)
    assert not result.ok
    assert words in result.error


@pytest.mark.slow
def test_a_long_cell_says_how_far_it_is(run, monkeypatch):
    monkeypatch.setattr(execution, "EVERY_S", 0.2)
    code = "import time\nfrom llama_lab.bench.progress import announce\n"
    code += "for i in range(4):\n    announce('measuring', i, 4)\n    time.sleep(0.6)"
    _, lines = run(code)
    assert sum("measuring (" in line for line in lines) >= 3
    assert any(line.startswith("77-made: measuring (1/4) (") for line in lines)


def test_a_child_that_complains_a_lot_does_not_block(run):
    result, _ = run("import os; [os.write(2, b'x' * 1000 + b'\\n') for _ in range(500)]\nprint('done.')", limit=120)
    assert (result.ok, result.finding) == (True, "done.")


def test_parameters_reach_the_notebook(make, tmp_path):
    make("print(n * 2)", parameters=("n: int = 1  # x", SOURCE, OUT))
    assert notebooks.run(("77",), {"n": "21"}, source="measure", out_dir=tmp_path)[0].finding == "42"


def doubled(path):
    nb = nbformat.read(path, as_version=4)
    nb.cells.append({**nb.cells[0], "id": "another"})
    path.write_text(json.dumps(nb))


@pytest.mark.parametrize(
    ("given", "options", "damage", "words"),
    [
        ({"m": "21"}, {}, None, "77-made has no parameter 'm'"),
        ({"n": "x"}, dict(source="measure"), None, "parameter n is 'x'; it must be a whole number, such as 1"),
        ({}, dict(profile="slow"), None, "profile is 'slow'; it must be quick or full"),
        ({}, dict(profile="full"), None, "profile is 'full', which matters only for measuring; add --measure"),
        ({"source": "measured"}, {}, None, "source is 'measured'; it must be recorded or measure"),
        ({}, dict(out="file"), None, "Cannot write"),
        ({}, {}, doubled, "2 cells are tagged 'parameters'"),
    ],
    ids=["unknown", "mistyped", "no profile", "a redraw", "no source", "no folder", "two cells of parameters"],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(make, tmp_path, given, options, damage, words):
    path = make("1", parameters=("n: int = 1  # x", SOURCE, OUT))
    (tmp_path / "file").write_text("")
    if damage:
        damage(path)
    with pytest.raises(UserError, match=words) as error:
        notebooks.run(("77",), given, out_dir=tmp_path / options.pop("out", ""), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["78", "77-mad", "made"])
def test_an_unknown_notebook_is_named(make, name):
    make("1")
    with pytest.raises(UserError, match=f"No such notebook: '{name}'"):
        notebooks.find(("77", name))


@pytest.mark.slow
def test_a_measurement_goes_to_this_machines_results_and_a_redraw_to_the_repository(make, tmp_path, monkeypatch):
    """Unless another folder is named, which may be the repository itself."""
    monkeypatch.setattr(machine, "FOLDER", tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "results" / machine.name()
    code = "from llama_lab import machine\nout_dir = machine.opened('77-made', globals())\nprint(out_dir)"
    make(code, parameters=(SOURCE, 'out_dir: str = ""  # x'))
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


def test_a_notebook_whose_data_nobody_recorded_promises_nothing(make, tmp_path):
    path = make("1", artifacts=["figures/77.png"], needs="data/77.csv")
    assert notebooks.run(("77",), out_dir=tmp_path)[0].ok
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "77.csv").write_text("")
    assert notebooks.promised(path, tmp_path) == ["figures/77.png"]
    assert "without writing" in notebooks.run(("77",), out_dir=tmp_path)[0].error


def test_what_sums_up_the_others_runs_after_them(make, tmp_path):
    make("1", name="88-made")
    code = "print((Path(out_dir) / 'out/notebooks/88-made.ipynb').is_file())"
    make(code, parameters=("from pathlib import Path  # x", SOURCE, OUT), last=True)
    results = notebooks.run(out_dir=tmp_path)
    assert [(r.name, r.finding) for r in results] == [("88-made", ""), ("77-made", "True")]


def test_a_former_name_is_answered_with_todays_and_runs_nothing():
    names = [path.stem for path in notebooks.sources()]
    known = {before: name for name in names if (before := notebooks.former(name))}
    assert len(known) == len(names) - 1  # of all but 00
    assert not known.keys() & set(names)
    for before, name in known.items():
        with pytest.raises(UserError, match=f"^No such notebook: '{before}'. It is called {name} now.$"):
            notebooks.find((before,))


BESIDE = """import os, time
there = lambda: os.path.exists(out_dir + "/{other}")
open(out_dir + "/{name}", "w")
end = time.time() + 60
while source == "recorded" and not there() and time.time() < end:
    time.sleep(0.05)
print(there())
if source == "measure":
    os.remove(out_dir + "/{name}")"""


@pytest.mark.slow
def test_two_are_drawn_side_by_side_and_measured_one_after_the_other(make, tmp_path):
    for name, other in (("77", "78"), ("78", "77")):
        make(BESIDE.format(name=name, other=other), name=f"{name}-one")
    for source, finding in (("measure", "False"), ("recorded", "True")):
        results = notebooks.run(source=source, out_dir=tmp_path)
        assert [(r.name, r.finding) for r in results] == [("77-one", finding), ("78-one", finding)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("The disk is full.")])
def test_what_is_drawn_beside_one_that_is_interrupted_is_stopped(error):
    beside = threading.Event()

    def execute(number, children):
        if number == 0:
            beside.wait(60)
            raise error
        child = subprocess.Popen(["sleep", "600"])
        children.append(child), begun.append(child), beside.set()
        return child.wait()

    begun = []
    with pytest.raises(type(error)):
        notebooks.side_by_side(execute, [(number,) for number in range(9)])
    assert 1 <= len(begun) <= 3
    assert all(child.poll() == -signal.SIGKILL for child in begun)


@pytest.fixture
def counted(run, tmp_path, monkeypatch):
    """Draw a notebook that leaves a line in a file at each execution; returns how many there are, and the result."""
    repository, log = tmp_path / "repository", tmp_path / "log"
    (repository / "llama_lab").mkdir(parents=True)
    monkeypatch.setattr(drawn.paths, "ROOT", repository)
    (tmp_path / "data").mkdir()
    code = f"from pathlib import Path\nopen({str(log)!r}, 'a').write('x')\nPath({str(tmp_path)!r}, 'shown.png').touch()"

    def drawn_again(more="", **options):
        result, _ = run(f"{code}\n{more}\nprint('done.')", artifacts=["shown.png"], **options)
        assert (result.ok, result.finding) == (True, "done.")
        return len(log.read_text())

    drawn_again.repository = repository
    return drawn_again


def test_nothing_is_drawn_again_where_nothing_has_changed(counted):
    assert [counted(), counted()] == [1, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda home, repository: (repository / "llama_lab" / "chart.py").write_text("x = 1"),
        lambda home, repository: (home / "data" / "77-made.csv").write_text("x"),
        lambda home, repository: (home / "shown.png").write_bytes(b"x"),
        lambda home, repository: (home / "shown.png").unlink(),
        lambda home, repository: (home / "docs" / "notebooks" / "77-made.html").unlink(),
        lambda home, repository: (home / "out" / "notebooks" / "77-made.ipynb").unlink(),
        lambda home, repository: (home / "out" / "drawn" / "77-made").write_bytes(b"\xff"),
    ],
    ids=["code", "data", "a figure", "no figure", "no page", "not executed", "unreadable"],
)
def test_whatever_has_changed_is_drawn_again(counted, tmp_path, change):
    counted()
    change(tmp_path, counted.repository)
    assert [counted(), counted()] == [2, 2]


def test_another_cell_parameter_or_setting_is_drawn_again(counted, monkeypatch):
    counted()
    assert counted("a = 1") == 2
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_enable_fast_math=false")
    assert counted("a = 1") == 3


def test_what_is_edited_while_it_is_drawn_is_drawn_again(counted):
    edit = f"Path({str(counted.repository)!r}, 'llama_lab', 'edited.py').open('a').write('x')"
    assert [counted(edit), counted(edit)] == [1, 2]
