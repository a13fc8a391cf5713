"""No parameter of a notebook is passed over where recorded data are drawn: each is a field of an experiment that the
notebook makes, of which the table's meta says with what it was recorded, or what it does is done anew."""

import ast
import json
import pkgutil

import nbformat
import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import notebook
from llama_lab.bench.experiment import REDRAWN, Experiment, marks_of, name_in_notebook
from llama_lab.reporting import notebooks

SOURCES = notebooks.find()
LIVE = {  # what these do with each other parameter they do in the notebook itself, whatever is recorded
    "00-start-here": {"model", "placement", "new_tokens", "seed"},
    "19-gpu": {"model", "seed"},
}


def read(path):
    """(experiments that a notebook makes of its parameters, names that it says only what is measured depends on)."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    tree, modules, kinds, named = ast.parse("\n".join(cells)), {}, [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "from_parameters":
            kinds.append(getattr(pkgutil.resolve_name(modules[called.value.value.id]), called.value.attr))
        if isinstance(called, ast.Attribute) and called.attr == "opened":
            named = {argument.value for argument in node.args[2:]}
    return kinds, named


def parameters_of(kind):
    """Parameter of the notebook → (field, its marks)."""
    return {name_in_notebook(field, marks): (field, marks) for field, marks in marks_of(kind).items()}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_parameter_belongs_to_an_experiment(path):
    kinds, named = read(path)
    assert all(issubclass(kind, Experiment) for kind in kinds)
    taken = {name for kind in kinds for name in parameters_of(kind)} | named | {*notebook.RUNNERS}
    assert notebooks.defaults(path).keys() - taken == LIVE.get(path.stem, set())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_another_value_than_the_recorded_one_is_refused_and_the_default_is_drawn(path):
    """Of each table that is recorded, and of each of its parameters but those that drawing depends on as well."""
    known = notebooks.defaults(path)
    for kind in read(path)[0]:
        mine = {name: field for name, field in parameters_of(kind).items() if name in known.keys() - notebook.RUNNERS}
        asked = [field for field, _ in mine.values() if field not in kind.beside]
        files = sorted((paths.ROOT / "data").glob(f"{path.stem}*.meta.json"), key=lambda file: len(file.name))
        metas = [json.loads(file.read_text()) for file in files]  # the notebook's main table first
        one = object.__new__(kind)  # nothing of it is needed but what it was given
        meta = next((meta for meta in metas if {*asked} <= one.recorded_with(meta).keys()), None)
        if meta is None and kind.optional:  # nobody has recorded it
            continue
        one.check_recorded("it", meta)
        for name, (_, marks) in mine.items():
            object.__setattr__(one, "given", {name: ["another"]})
            if REDRAWN in marks:
                one.check_recorded("it", meta)
                continue
            with pytest.raises(UserError, match=f"^{name} is \\['another'\\], and it .*-p source measure"):
                one.check_recorded("it", meta)
