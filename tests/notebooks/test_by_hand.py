"""Notebooks without our runner: plain papermill from the repository's root (`test_notebooks` has it from theirs), and
the kernel that `make lab` gives."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from llama_jax.plumbing import paths
from llama_lab.reporting import notebooks
from tests.notebooks.conftest import hashes

PAPERMILL = Path(sys.executable).with_name("papermill")


@pytest.mark.slow
def test_plain_papermill(tmp_path):
    done = subprocess.run(
        [PAPERMILL, "notebooks/15-upgrading-jax.ipynb", tmp_path / "out.ipynb", "-p", "out_dir", tmp_path],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert hashes(tmp_path, "figures/15-*.*") == hashes(paths.ROOT, "figures/15-*.*")
    assert notebooks.read_finding(tmp_path / "out.ipynb").endswith(".")


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
