"""The notebooks in a real JupyterLab, in a real browser: Run All Cells, and the playground under a person's hand.

Three of them by default; all with LLAMA_JAX_LAB=all, as `make lab-check` sets it.
"""

import hashlib
import os
from pathlib import Path

import nbformat
import pytest

from llama_jax.plumbing import paths
from llama_lab.reporting import notebooks
from tests.browser import lab

# the door, one that computes nothing itself, and one that draws nothing for want of data
SOME = ("00-start-here", "18-upgrading-jax", "19-gpu")
NAMES = [path.stem for path in notebooks.find() if os.environ.get("LLAMA_JAX_LAB") == "all" or path.stem in SOME]
BESIDE = ("14-text-generation",)  # which shows a picture that is no figure of its own
LIMIT_S = 300
pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def server(tmp_path_factory, chromium):  # without a browser none is started
    started = lab.Server(tmp_path_factory.mktemp("lab"))
    yield started
    started.stop()


@pytest.fixture
def opened(server, chromium):
    """open(name): a notebook in a page of its own; page and kernel end with the test."""
    pages = []

    def open_(name: str) -> lab.Notebook:
        pages.append(lab.Notebook(server, chromium, name))
        return pages[-1]

    yield open_
    for notebook in pages:
        notebook.close()
    server.end_kernels()


def drawn(name: str, home: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (home / "figures").glob(f"{name}*.*")}


@pytest.mark.parametrize("name", NAMES)
def test_run_all(name, server, opened):
    notebook = opened(name)
    notebook.run_all()
    notebook.wait_until_busy()
    notebook.wait_until_done(LIMIT_S)
    assert notebook.outputs(lab.TROUBLE) == []
    assert all(notebook.has_run())
    promised = notebooks.promised(paths.ROOT / "notebooks" / f"{name}.ipynb", server.home)
    expected = [file for file in promised if file.endswith(".png")]
    widths = notebook.pictures()
    assert len(widths) == len(expected) + (name in BESIDE)
    assert all(widths)
    assert drawn(name, server.home) == drawn(name, paths.ROOT)
    if name == "00-start-here":
        use_the_playground(notebook)


def use_the_playground(notebook: lab.Notebook) -> None:
    """Ask, see text grow, stop it; ask for what cannot be; ask under another placement."""
    page, text = notebook.page, notebook.page.locator(".playground-text")
    placement = page.get_by_label("placement", exact=True)
    tokens = page.get_by_label("new tokens", exact=True)
    generate, stop = (page.locator(f".jupyter-button:has-text('{name}')") for name in ("Generate", "Stop"))
    assert not stop.is_enabled()
    tokens.fill("1000")
    generate.click()
    page.wait_for_function("document.querySelector('.playground-text').textContent.length > 20", timeout=120_000)
    assert not generate.is_enabled()
    before = text.inner_text()
    page.wait_for_function(
        "n => document.querySelector('.playground-text').textContent.length > n + 10", arg=len(before), timeout=60_000
    )
    assert text.inner_text().startswith(before)
    stop.click()
    page.wait_for_selector(".playground-status:has-text('stopped')", timeout=60_000)
    status = page.locator(".playground-status").inner_text()
    assert all(words in status for words in ("first after", "tok/s", "programs compiled"))
    placement.fill("stpe")
    generate.click()
    page.wait_for_selector(".playground-message:has-text(\"Did you mean 'step'\")", timeout=30_000)
    placement.fill("step")
    tokens.fill("8")
    generate.click()
    page.wait_for_selector(".playground-status:has-text('8 tokens'):has-text('length')", timeout=120_000)
    assert page.locator(".playground-table tr").count() == 3  # its head and two answers
    assert page.locator(".playground-message").inner_text() == ""
    assert notebook.outputs(lab.TROUBLE) == []


def test_what_must_not_be_in_a_notebook_is_seen(server, opened):
    stray = "import sys, time; time.sleep(3); print('stray', file=sys.stderr)"
    broken = "from IPython.display import HTML; HTML('<img src=none.png>')"
    cells = [stray, broken, "1 / 0", "2"]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, server.home / "notebooks" / "broken.ipynb")
    notebook = opened("broken")
    notebook.run_all()
    notebook.wait_until_busy()
    notebook.wait_until_done(60)
    stray, error = notebook.outputs(lab.TROUBLE)
    assert "stray" in stray
    assert "ZeroDivisionError" in error
    assert notebook.pictures() == [0]
    assert notebook.has_run() == [True, True, True, False]


def test_nothing_is_asked_of_who_opens_it(opened):
    """No dialogue, no notification: JupyterLab would ask whether it may fetch news."""
    page = opened("19-gpu").page
    page.wait_for_timeout(3000)
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0
