"""What a notebook was given, read from the cells that ran, and what of it is refused."""

import json
import os
import subprocess
import sys

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab import machine
from llama_lab.bench import notebook

CELL = """prompts: int = 5  # questions
rate: float = 0.5  # a number
lengths: list = [10, 100]  # tokens
tail: list = [[50, 20]]  # pairs
peers: list = []  # names
depths: str = "2 16"  # text
source: str = "recorded"  # x
out_dir: str = ""  # y"""


def saved(cell):
    return json.dumps(dict(cells=[dict(metadata=dict(tags=["parameters"]), source=cell.splitlines(keepends=True))]))


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A clone that has the notebook 77-made; injected, edited → its globals(). injected: what papermill sets. edited:
    what a person wrote over the cell of parameters."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    notebook.shipped.cache_clear()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "77-made.ipynb").write_text(saved(CELL))

    def made(injected="", edited=CELL):
        cells = {"In": ["", edited]}
        if injected:
            cells["In"].append(f"# Parameters\n{injected}")
        for code in cells["In"]:
            exec(code, cells)
        return cells

    yield made
    notebook.shipped.cache_clear()


def test_what_papermill_sets_is_given_and_what_a_person_changed(kernel):
    assert notebook.given("77-made", kernel()) == {}
    assert notebook.given("77-made", kernel("prompts = 5")) == {"prompts": 5}  # though it is the default
    assert notebook.given("77-made", kernel(edited=CELL.replace("= 5", "= 7"))) == {"prompts": 7}
    again = kernel("prompts = 6\nlengths = [3]")
    again["In"].append(CELL)  # run once more, the cell of papermill's taken out
    exec(CELL, again)
    assert notebook.given("77-made", again) == {}
    assert notebook.given("77-made", {}) == notebook.given("", dict(prompts=7)) == {}  # no kernel, no notebook


@pytest.mark.parametrize(
    ("injected", "words"),
    [
        ("promts = 3", "77-made has no parameter 'promts'. Did you mean 'prompts'?"),
        ("prompts = 'three'", "77-made: parameter prompts is 'three'; it must be a whole number, such as 5."),
        ("prompts = 3.0", "it must be a whole number"),
        ("prompts = True", "it must be a whole number"),
        ("prompts = None", "it must be a whole number"),
        ("rate = 'fast'", "it must be a number, such as 0.5."),
        ("lengths = '10 100'", "it must be a list, such as [10, 100] (papermill: -y 'lengths: [10, 100]')."),
        ("lengths = ['ten']", "it must be a list, such as [10, 100]"),
        ("tail = [50, 20]", "it must be a list, such as [[50, 20]]"),
        ("depths = 4", "it must be text, such as '2 16' (papermill: -r depths TEXT)."),
        ("out_dir = 5", "parameter out_dir is 5; it must be text"),
    ],
)
def test_what_no_parameter_takes_is_one_line(kernel, injected, words):
    with pytest.raises(UserError) as error:
        notebook.check("77-made", kernel(injected))
    assert words in str(error.value)


@pytest.mark.parametrize(
    "injected", ["prompts = 3", "rate = 2", "lengths = []", "tail = [[1, 2], [3, 4]]", "peers = ['a']", "depths = '4'"]
)
def test_what_a_parameter_takes_is_let_through(kernel, injected):
    notebook.check("77-made", kernel(injected))


def test_a_persons_own_parameter_is_known_and_a_misfit_edit_is_found(kernel):
    own = f"{CELL}\nmine: int = 1  # added"
    notebook.check("77-made", kernel("mine = 2", own))
    with pytest.raises(UserError, match="mine is 'x'"):
        notebook.check("77-made", kernel("mine = 'x'", own))
    with pytest.raises(UserError, match="prompts is 'three'; it must be a whole number"):
        notebook.check("77-made", kernel(edited=CELL.replace("= 5", "= 'three'")))


def test_what_no_one_could_inject_is_let_through(kernel):
    cells = kernel()
    cells["lengths"] = [10, paths]  # in place of a placement that the set-up cell adds, run once more
    notebook.check("77-made", cells)


def test_what_only_a_measurement_depends_on_is_refused_where_recorded_data_are_drawn(kernel):
    notebook.check("77-made", kernel(), ["prompts"])
    notebook.check("77-made", kernel("prompts = 3\nsource = 'measure'"), ["prompts"])
    with pytest.raises(UserError, match="^prompts is 3, and only what is measured depends on it; leave out prompts"):
        notebook.check("77-made", kernel("prompts = 3"), ["prompts"])


def test_an_edit_that_was_saved_is_a_change_until_it_is_committed(kernel, tmp_path):
    def git(*words):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    git("init"), git("add", "."), git("commit", "-m", "x")
    edited = CELL.replace("= 5", "= 7")
    (tmp_path / "notebooks" / "77-made.ipynb").write_text(saved(f"{edited}\nnew: int = 1  # not committed yet"))
    assert notebook.shipped("77-made")["prompts"] == 5
    assert notebook.given("77-made", kernel(edited=edited)) == {"prompts": 7}
    notebook.check("77-made", kernel("new = 2", edited))
    git("add", "."), git("commit", "-m", "x")
    notebook.shipped.cache_clear()
    assert notebook.given("77-made", kernel(edited=edited)) == {}


def opened(out_dir, source="recorded"):
    return machine.opened("77-made", dict(source=source, out_dir=str(out_dir)))


def test_where_a_notebook_cannot_write_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", "/proc/missing"):
        with pytest.raises(UserError, match="^Cannot write '.*out/77-made.lock': .*") as error:
            opened(folder)
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="source is 'measured'; it must be recorded or measure"):
        opened("", "measured")
    assert opened(tmp_path / "new" / "folder") == str(tmp_path / "new" / "folder")


OPEN = """
import sys, time
from llama_lab import machine
machine.opened("77-made", dict(source="recorded", out_dir=sys.argv[1]))
print("open", flush=True)
time.sleep(600)
"""


def test_two_processes_do_not_write_one_notebook_into_one_folder(tmp_path):
    """Neither by a kernel that died is it kept."""
    other = subprocess.Popen([sys.executable, "-c", OPEN, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"^Process {other.pid} runs 77-made into '{tmp_path}'; wait for it"):
            opened(tmp_path)
        opened(tmp_path / "another")
        machine.opened("78-made", dict(source="recorded", out_dir=str(tmp_path)))
    finally:
        other.kill()
        other.communicate()
    opened(tmp_path)
    opened(tmp_path)  # its own set-up, run again
    assert (tmp_path / "out" / "77-made.lock").read_text() == str(os.getpid())
