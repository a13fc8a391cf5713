"""The file of a notebook: what is none is one line that names field and value."""

import json

import nbformat
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.reporting import ipynb, notebooks

GOOD = nbformat.v4.new_notebook(
    cells=[nbformat.v4.new_code_cell("blocks: int = 3", metadata={"tags": ["parameters"]})],
    metadata={"llama_jax": {"artifacts": ["data/a.csv"], "profiles": {"full": {"blocks": 9}}}},
)


def written(tmp_path, change=lambda nb: None):
    nb = json.loads(nbformat.writes(GOOD))
    change(nb)
    path = tmp_path / "03-a.ipynb"
    path.write_text(json.dumps(nb))
    return path


def test_a_notebook_is_read_as_the_library_reads_it(tmp_path):
    path = written(tmp_path)
    assert ipynb.read(path) == nbformat.read(path, as_version=4)
    assert ipynb.about(path).profiles == {"full": {"blocks": 9}}
    assert notebooks.defaults(path) == {"blocks": 3}


CHANGES = {  # words of the complaint → what is wrong
    "has no cells": lambda nb: nb.pop("cells"),
    "cells is": lambda nb: nb.update(cells=[]),
    "cells.0 is 1": lambda nb: nb.update(cells=[1]),
    "has no cells.0.source": lambda nb: nb["cells"][0].pop("source"),
    "cells.0.source": lambda nb: nb["cells"][0].update(source=None),
    "cells.0.cell_type is 'cod'": lambda nb: nb["cells"][0].update(cell_type="cod"),
    "cells.0.metadata.tags is 5": lambda nb: nb["cells"][0]["metadata"].update(tags=5),
    "cells.0.outputs": lambda nb: nb["cells"][0].update(outputs={}),
    "metadata is": lambda nb: nb.update(metadata=[]),
    "nbformat is 3": lambda nb: nb.update(nbformat=3),
    "metadata.llama_jax is": lambda nb: nb["metadata"].update(llama_jax=[]),
    "artifacts is 'a'": lambda nb: nb["metadata"]["llama_jax"].update(artifacts="a"),
    "profiles.slow": lambda nb: nb["metadata"]["llama_jax"].update(profiles={"slow": {}}),
    "rows.0 is 'os'": lambda nb: nb["metadata"]["llama_jax"].update(rows=["os"]),
    "last is 1": lambda nb: nb["metadata"]["llama_jax"].update(last=1),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_is_no_notebook_is_one_line(tmp_path, words):
    with pytest.raises(UserError, match="03-a.ipynb") as caught:
        ipynb.read(written(tmp_path, CHANGES[words]))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "[" * 200_000, "{", "null", "NaN", "\0"])
def test_what_is_no_json_is_one_line(tmp_path, text):
    path = tmp_path / "03-a.ipynb"
    path.write_text(text)
    with pytest.raises(UserError, match="03-a.ipynb"):
        ipynb.read(path)


@pytest.mark.parametrize(
    "source", ["blocks: int = f()", "blocks: int = (", "a.b: int = 3", "x: int = " + "-" * 9_000 + "1"]
)
def test_parameters_that_are_no_values_are_one_line(tmp_path, source):
    with pytest.raises(UserError, match="its parameter cell cannot be read"):
        notebooks.defaults(written(tmp_path, lambda nb: nb["cells"][0].update(source=source)))
