"""Which room may know which: the walls of the package, read from its imports."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

import llama_jax
from llama_jax.plumbing import paths
from llama_lab import bench, figures

PACKAGE = paths.ROOT / "llama_jax"
UPWARD = {  # lazy imports that lead up, (module, what it imports), and why they may
    ("generate", "activations.generation"): "who taps nothing needs none",
    ("model.quantise", "kernels.gemv"): "a machine without kernels never needs it",
    ("bench.available", "peers"): "who measures no peer needs none",
    ("bench.phases", "peers"): "as above",
    ("bench.provenance", "peers"): "as above",
    ("bench.quality", "peers"): "as above",
    ("bench.requests", "peers"): "as above",
    ("bench.run", "peers"): "as above",
}
ABOVE_THE_INSTRUMENT = ("experiments", "figures", "reporting", "cli", "playground")
BELOW_THE_MODEL = ("model", "errors", "values", "config", "files", "paths")
NOT_ON_A_BARE_MACHINE = ("pydantic", "pandas")


def read(text: str) -> tuple[set[str], set[str]]:
    """Dotted names that a module imports: as it is imported itself, and when one of its functions runs."""
    found = set(), set()

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found[lazy].update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not read here"
            found[lazy].update(f"{node.module}.{alias.name}" for alias in node.names)
        checked = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.orelse if checked else ast.iter_child_nodes(node):
            visit(child, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    visit(ast.parse(text), False)
    return found


def modules() -> dict[str, str]:
    """Name without the package's → text; `__init__` is its folder's."""
    places = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path.read_text() for path, parts in places.items()}


def resolved(module: str, imports: set[str], known: set[str]) -> set[str]:
    """Modules of the package, and top names of other packages, that these imports run: a module's folders run first."""
    found = set()
    for name in imports:
        if not name.startswith("llama_jax"):
            found.add(name.partition(".")[0])
            continue
        parts = name.split(".")[1:]
        found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & known
    return {name for name in found if not f"{module}.".startswith(f"{name}.")}


def graph(lazy: bool) -> dict[str, set[str]]:
    """Module → what it imports; if `lazy`, what its functions import too, but for what is named in `UPWARD`."""
    texts, found = modules(), {}
    for module, text in texts.items():
        first, later = read(text)
        up = {f"llama_jax.{name}" for start, name in UPWARD if start == module}
        found[module] = resolved(module, first | (later - up if lazy else set()), set(texts))
    return found


def rooms(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same graph between top-level names."""
    found = {}
    for module, names in imports.items():
        room = module.partition(".")[0]
        found.setdefault(room, set()).update({name.partition(".")[0] for name in names} - {room})
    return found


def circle(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, none where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def breaches(imports: dict[str, set[str]]) -> list[str]:
    """Arrows that go through a wall."""

    def wrong(module: str, name: str) -> bool:
        (room, *rest), (other, *others) = module.split("."), name.split(".")
        return (
            (room == "bench" and other in ABOVE_THE_INSTRUMENT)
            or (room == "figures" and other == "experiments")
            or (room == other == "experiments" and bool(rest and others) and rest[0] != others[0])
            or (room == "model" and name in imports and other not in BELOW_THE_MODEL)
        )

    arrows = ((module, name) for module, names in imports.items() for name in names)
    return sorted(f"{module} imports {name}" for module, name in arrows if wrong(module, name))


def reached(imports: dict[str, set[str]], start: str) -> set[str]:
    """All that importing a module imports."""
    found, waiting = set(), [start]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += imports.get(name, ())
    return found


@pytest.mark.parametrize("lazy", [False, True])
def test_no_circles_and_no_holes_in_the_walls(lazy):
    imports = graph(lazy)
    assert len(imports) > 200
    assert circle(imports) == circle(rooms(imports)) == breaches(imports) == []


def test_each_arrow_that_may_lead_up_is_lazy_and_would_close_a_circle():
    texts, imports = modules(), graph(True)
    for module, name in UPWARD:
        first, later = read(texts[module])
        assert f"llama_jax.{name}" in later - first
        assert circle(rooms(imports | {module: imports[module] | {name}}))


def test_experiments_share_nothing():
    assert modules()["experiments"] == ""


def test_a_bare_machine_needs_neither_pydantic_nor_pandas():
    imports = graph(False)
    start = "experiments.gpu.measure"
    assert "jax" in reached(imports, start)
    assert not reached(imports, start) & set(NOT_ON_A_BARE_MACHINE)


@pytest.mark.parametrize(
    ("imports", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, {"a", "b", "c"}),
        ({"a": {"b"}, "b": {"b.c"}, "b.c": {"a"}, "d": set()}, {"a", "b", "b.c"}),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, set()),
    ],
)
def test_a_circle_is_found(imports, found):
    assert set(circle(imports)) == found


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("bench.run", "experiments.kv_cache.measure"),
        ("bench.run", "cli"),
        ("bench.run", "playground.view"),
        ("experiments.kv_cache.measure", "experiments.growth.measure"),
        ("figures.marks", "experiments.growth"),
        ("model.layer", "transforms"),
        ("model", "bench.guard"),
    ],
)
def test_a_hole_in_a_wall_is_found(module, name):
    assert breaches({module: {name}, name: set()}) == [f"{module} imports {name}"]


def test_what_is_allowed_is_no_hole():
    allowed = {
        "experiments.kv_cache.chart": {
            "experiments.kv_cache",
            "experiments.kv_cache.table",
            "bench",
            "figures",
            "peers",
        },
        "model.layer": {"model.norm", "config", "jax"},
        "bench.run": {"peers", "generate"},
        "figures.marks": {"bench.record"},
        "reporting.tour": {"experiments.kv_cache.finding", "figures"},
    }
    assert breaches(allowed | {name: set() for names in allowed.values() for name in names - {"jax"}}) == []


def test_imports_are_told_apart():
    text = """
from typing import TYPE_CHECKING
import llama_lab.bench.guard
try:
    from llama_jax import model
except ImportError:
    pass
if TYPE_CHECKING:
    from llama_lab.peers import torch
else:
    import numpy.linalg
class A:
    import json
    def method(self):
        from llama_jax.model import attention
        return lambda: __import__("x")
"""
    first, later = read(text)
    assert first == {"typing.TYPE_CHECKING", "llama_lab.bench.guard", "llama_jax.model", "numpy.linalg", "json"}
    assert later == {"llama_jax.attention"}
    known = {"bench", "bench.guard", "bench.gate", "model"}
    assert resolved("bench.gate", first, known) == {"bench.guard", "model", "typing", "numpy", "json"}
    assert reached({"a": {"b"}, "b": {"pandas"}, "c": {"d"}}, "a") == {"a", "b", "pandas"}


def test_every_name_that_is_offered_is_there():
    for package in (llama_jax, bench, figures):
        assert [name for name in package.__all__ if getattr(package, name, None) is None] == []
