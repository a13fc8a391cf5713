"""Who comes from the originals finds their names, and what stands for the others."""

import json
import re
import subprocess
import sys

import pytest

import llama_jax as ll
from llama_jax.plumbing import paths

PAGE = paths.ROOT / "docs" / "originals.md"
NOTEBOOK = paths.ROOT / "notebooks" / "originals" / "placement.ipynb"
NAME = re.compile(r"\b(ll|llama_lab)\.([a-z_]+(?:\.[A-Za-z_]+)*)")


def offered() -> list[str]:
    """Dotted names that the page says are here: in the column of ours, or in the other where ours is the same."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
    cells = [row[0] if row[1] == "the same" else row[1] for row in rows if len(row) > 1]
    return sorted({match[0] for cell in cells for match in NAME.finditer(cell)})


def test_every_name_of_the_page_is_here():
    import llama_lab

    names = offered()
    assert len(names) > 20
    for name in names:
        value = {"ll": ll, "llama_lab": llama_lab}[name.split(".")[0]]
        for part in name.split(".")[1:]:
            value = getattr(value, part)


@pytest.mark.slow
def test_the_original_notebook_runs_in_its_own_order_by_papermill(tmp_path):
    command = [sys.executable, "-m", "papermill", NOTEBOOK, tmp_path / "out.ipynb", "-p", "n_prompts", "2"]
    subprocess.run([*map(str, command), "-p", "max_tokens", "4"], check=True, timeout=900)
    cells = {cell["id"]: cell for cell in json.loads((tmp_path / "out.ipynb").read_text())["cells"]}
    (table,) = cells["described"]["outputs"]
    text = "".join(table["data"]["text/plain"])
    assert [name in text for name in ("pipeline1", "pipeline2", "pipeline3")] == [True] * 3
    assert cells["histogram"]["outputs"][-1]["data"]["image/png"]
