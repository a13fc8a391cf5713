"""The notebook that runs in this kernel: its given parameters compared with the shipped ones.

papermill puts the values of `-p`, `-r` and `-y` into its own cell after the parameter cell, whatever their names; a
person edits the parameter cell. Both are read from the cells that ran, which IPython keeps as `In`.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import subprocess
from collections.abc import Iterable, Mapping

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import shown
from llama_lab.bench import recorded

INJECTED = "# Parameters"  # how papermill's own cell begins
RUNNERS = ("source", "out_dir")  # where from and where to: nothing is measured with them
UNKNOWN = object()  # what a table's meta does not say
KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", list: "a list"}
UNREADABLE = (ValueError, SyntaxError, AttributeError, RecursionError, MemoryError)  # what `ast` says of what is none


def declared(code: str, typed: bool = False) -> dict[str, object]:
    """The names and values of a cell of parameters, its lines `NAME: TYPE = VALUE`. typed: only those whose value is of
    the type that stands there. Raises what `ast` does."""
    lines = [line for line in ast.parse(code).body if isinstance(line, ast.AnnAssign) and line.value is not None]
    values = [(line, ast.literal_eval(line.value)) for line in lines]
    return {
        line.target.id: value
        for line, value in values
        if not typed or ast.unparse(line.annotation) == type(value).__name__
    }


def assigned(code: str) -> list[str]:
    """The names that a cell of papermill's sets."""
    lines = [line for line in ast.parse(code).body if isinstance(line, ast.Assign)]
    return [target.id for line in lines for target in line.targets if isinstance(target, ast.Name)]


def cells(notebook: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """What the cell of parameters that ran last declares, and the names that papermill set behind it. notebook: the
    `globals()` of a kernel; of anything else nothing is known."""
    values: dict[str, object] = {}
    names: list[str] = []
    for code in notebook.get("In", ()):
        with contextlib.suppress(*UNREADABLE):
            if code.startswith(INJECTED):
                names += assigned(code)
            elif "out_dir" in (found := declared(code, typed=True)):
                values, names = found, []
    return values, list(dict.fromkeys(names))


@functools.cache
def shipped(name: str) -> dict[str, object]:
    """Parameters and default values of the notebook with that name, from the last commit, or else from the file, which
    a person may have edited. {} for an unknown name."""
    path, values = f"notebooks/{name}.ipynb", {}
    with contextlib.suppress(OSError, *UNREADABLE):
        values |= of_file((paths.ROOT / path).read_text(encoding="utf-8"))
    with contextlib.suppress(OSError, subprocess.SubprocessError, *UNREADABLE):
        git = ["git", "-C", str(paths.ROOT), "show", f"HEAD:./{path}"]
        values |= of_file(subprocess.run(git, capture_output=True, check=True, timeout=10).stdout.decode())
    return values


def of_file(text: str) -> dict[str, object]:
    tagged = [cell for cell in json.loads(text)["cells"] if "parameters" in cell["metadata"].get("tags", ())]
    return declared("".join(tagged[0]["source"])) if tagged else {}


def given(name: str, notebook: Mapping[str, object]) -> dict[str, object]:
    """Parameters of a notebook that someone chose, with their values: those that papermill set, and those whose value
    is another than the notebook of that name was shipped with."""
    _, names = cells(notebook)
    changed = [each for each, value in shipped(name).items() if each in notebook and notebook[each] != value]
    return {each: notebook[each] for each in dict.fromkeys((*names, *changed)) if each in notebook}


def check(name: str, notebook: Mapping[str, object], of_measuring: Iterable[str] = ()) -> None:
    """Raises UserError for a parameter that this notebook does not have, for a value of another type, for a source that
    is none, and, where recorded data are drawn, for a parameter `of_measuring`, on which only what is measured
    depends."""
    chosen = given(name, notebook)
    fit(name, chosen, shipped(name) | cells(notebook)[0])
    if not recorded.is_measured(notebook["source"]):
        for each in chosen.keys() & of_measuring:
            raise UserError(f"{each} is {shown(chosen[each])}, and only what is measured depends on it{remedy(each)}")


def fit(name: str, values: Mapping[str, object], known: Mapping[str, object]) -> None:
    """Raises UserError for a value that no parameter of a notebook has, or one of another type than its default."""
    for each, value in values.items():
        if each not in known:
            raise UserError(f"{name} has no parameter {each!r}.{near(each, known)}")
        if not alike(value, known[each]):
            how = {list: f" (papermill: -y '{each}: {json.dumps(known[each])}')", str: f" (papermill: -r {each} TEXT)"}
            kind = type(known[each])
            raise UserError(
                f"{name}: parameter {each} is {shown(value)}; it must be {KINDS.get(kind, kind.__name__)}, such as"
                f" {known[each]!r}{how.get(kind, '')}."
            )


def alike(value: object, example: object) -> bool:
    """Whether a value has the type of an example; so must the members of a list, where the example has some. What is no
    literal a person has made, such as a placement of their own."""
    if not isinstance(value, (*KINDS, dict, tuple, type(None))):
        return True
    if type(example) is list and type(value) is list:
        return not example or all(any(alike(each, one) for one in example) for each in value)
    return type(value) is type(example) or (type(example) is float and type(value) is int)


def differs(name: str, value: object, table: str, then: object) -> UserError:
    """What is said of a parameter that is not what a table was recorded with, or of which its meta says nothing
    (`UNKNOWN`)."""
    made = "does not say what it was recorded with" if then is UNKNOWN else f"was recorded with {shown(then)}"
    return UserError(f"{name} is {shown(value)}, and {table} {made}{remedy(name)}")


def remedy(name: str) -> str:
    return f"; leave out {name} to draw recorded data, or measure again: `-p source measure`."


def person_is_there() -> bool:
    """Whether the running cell was sent by an interactive front end, one that could ask for input.

    JupyterLab says so with each request; papermill and nbconvert say that they cannot, and a script has no kernel.
    """
    from llama_jax import render  # here: what measures has no screen

    if not render.in_jupyter():
        return False
    from IPython import get_ipython

    return bool(get_ipython().kernel.get_parent("shell").get("content", {}).get("allow_stdin"))
