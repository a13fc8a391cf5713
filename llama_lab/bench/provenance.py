"""Which code a table's times depend on, and what of it has changed since the table was recorded.

The modules are those that the measuring function's own module reaches by its imports, read from their text; nothing is
imported for it. What only draws, words, counts up or keeps does not count, and neither do comments, docstrings and
layout: each module is hashed as its syntax tree without them.
"""

from __future__ import annotations

import ast
import csv
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType

from llama_jax.plumbing.boundary import Declared

HOME = Path(__file__).parents[1]
PACKAGE = HOME.name
BESIDE = ("cli", "figures", "playground", "reporting")  # rooms in which no time passes that is measured
WORDS = ("chart", "finding", "table", "wording", "summary", "standings", "statistics", "published", "progress")
KEEPING = ("record", "recorded", "journal", "seal", "provenance", "files", "boundary", "errors")
# entered where an experiment imports them or a table names what lives there: to import one later is no use of it
BY_NAME = ("activations", "kernels", "peers", "serve")
KERNELS = re.compile(r"\b(gemv|fused)\b")
# changes of code, each a module's hash before and after, that were judged to move no time, and why: such as of what is
# done after an error. Whoever declares one answers for it.
SAME_TIMES = Path("bench") / "same_times.csv"
UNKNOWN, OLDER = "recorded before code was hashed", "older than its code"


class Code(Declared):
    """What a table's meta says of its code. roots: where the search for modules began. modules: the hash of each."""

    digest: str
    roots: list[str]
    modules: dict[str, str]


def of(measure: Callable, words: Iterable[str]) -> dict | None:
    """What a table's meta says of its code, the values of a `Code`; None where no module of the package was found.

    measure: what measured it; the package's modules that it names are the roots. words: all that the table names, such
    as subjects: peers and kernels among them are roots too.
    """
    roots = sorted(named_by(measure))
    return describe(sorted({*roots, *named_in(words)})) if roots else None


def describe(roots: Sequence[str]) -> dict:
    """The same for these modules; a room stands for all in it."""
    known = sources()
    modules = {name: read(name, known[name])[1] for name in sorted(reached(roots, known))}
    together = hashlib.sha256(json.dumps(modules, sort_keys=True).encode()).hexdigest()[:16]
    return dict(digest=together, roots=list(roots), modules=modules)


def changed(meta: dict) -> list[str] | None:
    """Modules that have changed, come or gone since a table was recorded; None where its meta does not say of which
    code it is."""
    code = meta.get("code")
    if not code:
        return None
    then, now, declared = code["modules"], describe(code["roots"])["modules"], same_times()
    return sorted(name for name in {*then, *now} if now.get(name) not in alike(name, then.get(name), declared))


def same_times() -> list[dict]:
    """The declared changes: module, before, after, why."""
    path = HOME / SAME_TIMES
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def alike(module: str, hashed: str | None, declared: Sequence[dict]) -> list[str | None]:
    """This hash of a module, and those that declared changes lead to from it."""
    found = [hashed]
    for one in found:  # which grows
        changes = [change for change in declared if (change["module"], change["before"]) == (module, one)]
        found += [change["after"] for change in changes if change["after"] not in found]
    return found


def complaint(meta: dict) -> str:
    """A few words where a table is not of today's code; "" where it is."""
    found = changed(meta)
    return UNKNOWN if found is None else OLDER if found else ""


# Roots ----------------------------------------------------------------------------------------------------------------


def named_by(measure: Callable) -> set[str]:
    """Modules of the package that a function names, and those of the functions and classes that it names; functions
    beside it in a place that does not count, such as a notebook, are looked into."""
    first = inspect.unwrap(getattr(measure, "func", measure))
    found, waiting, seen = set(), [first], set()
    while waiting:
        one = waiting.pop()
        home = one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) or ""
        inside = home.removeprefix(f"{PACKAGE}.")
        if inside != home and counts(inside):
            found.add(inside)
        elif isinstance(one, FunctionType) and home == first.__module__ and one not in seen:
            seen.add(one)
            names = inspect.getclosurevars(one)
            waiting += [*names.nonlocals.values(), *names.globals.values()]
    return found


def named_in(words: Iterable[str]) -> set[str]:
    """The peers' modules, and the room of kernels, that some words name."""
    from llama_lab import peers

    words = set(words)
    known = {f"peers.{peers.PEERS[name].module}" for word in words for name in re.split(r"[\s,'\"\[\]()]+", word)
             if name in peers.PEERS}  # fmt: skip
    return known | ({"kernels"} if any(KERNELS.search(word) for word in words) else set())


# Imports --------------------------------------------------------------------------------------------------------------


def sources() -> dict[str, Path]:
    """Name without the package's → file; `__init__` is its folder's."""
    places = {path: path.relative_to(HOME).with_suffix("").parts for path in HOME.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path for path, parts in places.items()}


def counts(module: str) -> bool:
    """Whether times may depend on a module."""
    room, last = module.partition(".")[0], module.rpartition(".")[2]
    return room not in BESIDE and module != "peers" and last not in KEEPING and last.rpartition("_")[2] not in WORDS


def reached(roots: Iterable[str], known: dict[str, Path]) -> set[str]:
    """The modules that count among those that the roots reach by imports, themselves included. known: `sources`."""
    inside = {name for root in roots for name in known if name.startswith(f"{root}.") and root in BY_NAME}
    found, waiting = set(), [*roots, *inside]
    while waiting:
        module = waiting.pop()
        if module in found or module not in known or not counts(module):
            continue
        found.add(module)
        for name, later in read(module, known[module])[0]:
            parts = name.split(".")
            # a module's folders run before it
            names = {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & known.keys()
            waiting += [n for n in names if not (later and beside(module, n))]
    return found


def beside(module: str, other: str) -> bool:
    """Whether a later import leads to a room that is entered by name alone."""
    room, there = module.partition(".")[0], other.partition(".")[0]
    # kernels are entered all together
    return there in BY_NAME and room != "experiments" and (room != there or there == "kernels")


def imports(module: str, tree: ast.Module, is_folder: bool) -> set[tuple[str, bool]]:
    """(dotted name without the package's, whether only a function imports it) of all that a module imports; so do texts
    that name a module, such as a task's: with the package's name, or a neighbour's alone."""
    folder = "" if is_folder else module.rpartition(".")[0]
    found = set()

    def visit(node: ast.AST, later: bool) -> None:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value.partition(":")[0]]
            if folder and node.value.isidentifier():
                names.append(f"{PACKAGE}.{folder}.{node.value}")
        found.update((name.removeprefix(f"{PACKAGE}."), later) for name in names if name.startswith(f"{PACKAGE}."))
        typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.orelse if typing else ast.iter_child_nodes(node):
            visit(child, later or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    visit(tree, False)
    return found


# Text -----------------------------------------------------------------------------------------------------------------


def read(module: str, path: Path) -> tuple[set[tuple[str, bool]], str]:
    """(`imports`, hash of the syntax tree, the same under every version of Python that reads it) of a module."""
    return read_once(module, path, path.stat().st_mtime_ns)


@functools.cache
def read_once(module: str, path: Path, changed_ns: int) -> tuple[set[tuple[str, bool]], str]:
    tree = bare(ast.parse(path.read_bytes()))
    hashed = hashlib.sha256(repr(plain(tree)).encode()).hexdigest()[:12]
    return imports(module, tree, path.name == "__init__.py"), hashed


def bare(tree: ast.Module) -> ast.Module:
    """A syntax tree without its docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                node.body.pop(0)
    return tree


def plain(node: object) -> object:
    """A syntax tree as tuples. What is empty is left out: newer versions of Python have more such fields."""
    if isinstance(node, ast.Constant):
        return "Constant", repr(node.value)
    if isinstance(node, ast.AST):
        fields = [(name, plain(value)) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return type(node).__name__, *fields
    return [plain(each) for each in node] if isinstance(node, list) else node
