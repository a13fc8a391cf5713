"""Notebooks without our runner: plain papermill from the repository's root (`test_notebooks` has it from theirs), and
the kernel that `make lab` gives."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

from llama_jax.plumbing import paths
from llama_lab.bench import AGAIN, record
from llama_lab.reporting import notebooks
from tests.conftest import TINY
from tests.notebooks.conftest import hashes

PAPERMILL = Path(sys.executable).with_name("papermill")


@pytest.mark.slow
def test_plain_papermill(tmp_path):
    done = subprocess.run(
        [PAPERMILL, "notebooks/18-upgrading-jax.ipynb", tmp_path / "out.ipynb", "-p", "out_dir", tmp_path],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    drawn = hashes(tmp_path)
    assert drawn
    assert drawn == hashes(paths.ROOT, "figures/18-*.*")
    assert notebooks.read_finding(tmp_path / "out.ipynb").endswith(".")


def milled(number, out, *words, **how):
    """A papermill of a notebook in recorded mode, started."""
    (source,) = (paths.ROOT / "notebooks").glob(f"{number}-*.ipynb")
    command = [PAPERMILL, source, out / "executed.ipynb", "--no-progress-bar", "-p", "out_dir", out, *words]
    out.mkdir(exist_ok=True)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)


def complaint(process):
    """The last line of a papermill that failed, "" where it ended well; no line of a traceback through our files."""
    said, _ = process.communicate(timeout=600)
    assert str(paths.ROOT / "llama_") not in said
    return said.strip().splitlines()[-1] if process.returncode else ""


@pytest.mark.slow
def test_four_run_at_once_into_four_folders_and_two_never_into_one(tmp_path):
    """One that is killed lets go of its folder."""
    folders = [tmp_path / str(i) for i in range(4)]
    assert [complaint(one) for one in [milled("17", folder) for folder in folders]] == [""] * 4
    assert all(hashes(folder) == hashes(paths.ROOT, "figures/17-*.*") for folder in folders)
    waiting = tmp_path / "17-growth.ipynb"
    cells = ['source: str = "recorded"\nout_dir: str = ""']
    cells += ["import time\nfrom llama_lab import machine\nmachine.opened('17-growth', globals())", "time.sleep(600)"]
    nb = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nb.cells[0].metadata["tags"] = ["parameters"]
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "x", "language": "python"}
    nbformat.write(nb, waiting)
    command = [PAPERMILL, waiting, tmp_path / "executed.ipynb", "-p", "out_dir", folders[0]]
    lock = folders[0] / "out" / "17-growth.lock"
    before, env = lock.read_text(), {**os.environ, "PYTHONPATH": str(paths.ROOT)}
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        while lock.read_text() in ("", before):
            assert first.poll() is None
            time.sleep(0.1)
        assert complaint(milled("17", folders[0])).startswith(f"UserError: Process {lock.read_text()} runs 17-growth")
    finally:
        first.kill()
        first.wait()
    assert complaint(milled("17", folders[0])) == ""


@pytest.mark.slow
def test_what_it_was_given_and_cannot_answer_is_one_line(tmp_path):
    """At the latest where the table is read; nothing is drawn."""
    cases = {
        ("-p", "answers", "9"): "UserError: answers is 9, and 17-growth was recorded with 4; leave out answers",
        ("-p", "anwers", "9"): "UserError: 17-growth has no parameter 'anwers'. Did you mean 'answers'",
        ("-p", "answers", "many"): "UserError: 17-growth: parameter answers is 'many'; it must be a whole number",
        ("-y", "layers: [3, deep]"): "UserError: 17-growth: parameter layers is [3, 'deep']; it must be a list",
        ("-p", "out_dir", "/proc/none"): "UserError: Cannot write '/proc/none/out/17-growth.lock'",
    }
    for words, line in cases.items():
        assert complaint(milled("17", tmp_path, *words)).startswith(line)
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_a_list_is_measured_as_it_was_given(tmp_path, monkeypatch):
    """As `docs/usage.md` gives one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a lock of its own: something may be measured here
    few = [word for name in ("each", "blocks") for word in ("-p", name, "1")]
    words = ["-p", "source", "measure", "-y", "{placements: [loop, loop+lookup], peers: []}", "-r", "model", TINY, *few]
    assert complaint(milled("08", tmp_path, *words, "-p", "passage_tokens", "20", "-p", "new_tokens", "8")) == ""
    trials, meta = record.read(tmp_path / "data" / "08-past-one-token-a-pass.csv")
    assert meta["parameters"]["placements"] == ["loop", "loop+lookup"]
    assert {t.subject.removesuffix(AGAIN) for t in trials} == {"loop", "loop+lookup"}


class Kernel:
    """The kernel python3 as `make lab` finds it, in a folder of its own."""

    def __init__(self, folder):
        env = {**os.environ, "PYTHONPATH": f"{folder}:{paths.ROOT}", "IPYTHONDIR": str(folder / "ipython")}
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=env, cwd=str(folder))

    def run(self, code: str) -> str:
        """What a cell writes, its errors included."""
        outputs = []

        def keep(message):
            content = message["content"]
            outputs.append(content.get("text") or "\n".join(content.get("traceback", [])))

        self.client.execute_interactive(textwrap.dedent(code), timeout=120, allow_stdin=False, output_hook=keep)
        return "".join(outputs)


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PATH", str(paths.ROOT / ".jupyter"))
    started = Kernel(tmp_path)
    yield started
    started.client.stop_channels()
    started.manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_the_labs_kernel_loads_an_edited_module_anew_and_says_nothing_by_itself(kernel, tmp_path):
    (tmp_path / "mine.py").write_text("def words():\n    return 'before'\n")
    assert kernel.run("from mine import words\nprint(words())") == "before\n"
    (tmp_path / "mine.py").write_text("def words():\n    return 'after the edit'\n")
    assert kernel.run("print(words())") == "after the edit\n"


@pytest.mark.slow
def test_an_edit_of_the_package_itself_reaches_the_next_cell(kernel, tmp_path):
    """Its classes are registered with JAX when a module is loaded: loading it again must not fail."""
    shutil.copytree(paths.ROOT / "llama_jax", tmp_path / "llama_jax", ignore=shutil.ignore_patterns("__pycache__"))
    ask = "print(ll.answer(ll.bind(cfg, checkpoint.params, ll.parse('step')), [[1, 2, 3]], 4)[0].token_ids)"
    begin = """
        import llama_jax as ll
        from llama_jax.plumbing import paths
        assert paths.ROOT.name != {root!r}, paths.ROOT
        checkpoint = ll.load("random:smollm2-135m,num_hidden_layers=1,hidden_size=64,intermediate_size=64,"
                             "num_attention_heads=2,num_key_value_heads=1,head_dim=16,vocab_size=97")
        cfg = checkpoint.config
        """
    before = kernel.run(textwrap.dedent(begin.format(root=paths.ROOT.name)) + ask)
    assert before.startswith("(")
    module, best = tmp_path / "llama_jax" / "sampling.py", "return jnp.argmax(logits, axis=-1).astype(jnp.int32)"
    text = module.read_text()
    assert best in text
    module.write_text(text.replace(best, f"{best.replace('argmax', 'argmin')}  # worst"))
    after = kernel.run(ask)
    assert after.startswith("(")
    assert after != before
