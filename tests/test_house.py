"""Which room may know which: the walls of the two packages, read from their imports; and on which Python they stand."""

import ast
import re
import tomllib
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from importlib import metadata

import pytest
from packaging.specifiers import SpecifierSet

import llama_jax
from llama_jax.plumbing import paths
from llama_lab import bench

PACKAGES = ("llama_jax", "llama_lab")
UPWARD = {  # lazy imports of peers by the instrument, which needs none where no peer is measured
    (f"llama_lab.bench.{module}", "llama_lab.peers")
    for module in ("available", "lab", "phases", "provenance", "quality", "run")
}
ABOVE_THE_INSTRUMENT = ("experiments", "figures", "reporting", "cli", "playground")
NOT_IN_THE_MODEL = {"generate", "transforms", "decoding", "checkpoint", "kernels", "placement", "tokenizer", "chat",
                    "render"}  # fmt: skip
MODEL = {"attention", "embeddings", "ffn", "head", "kvc", "layer", "linear", "model", "norm", "quantise", "rope",
         "sampling", "taps"}  # fmt: skip
NOT_ON_A_GPU_MACHINE = ("pandas", "gguf", "papermill", "matplotlib")


def read(text: str) -> tuple[set[str], set[str]]:
    """Dotted names that a module imports: when it is imported itself, and when one of its functions runs."""
    imported = set(), set()

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.Import):
            imported[lazy].update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not read here"
            imported[lazy].update(f"{node.module}.{alias.name}" for alias in node.names)
        checked = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.orelse if checked else ast.iter_child_nodes(node):
            visit(child, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    visit(ast.parse(text), False)
    return imported


def modules() -> dict[str, str]:
    """Dotted name of each module of both packages, and its text; `__init__` is its folder's."""
    files = [path for package in PACKAGES for path in (paths.ROOT / package).rglob("*.py")]
    names = [path.relative_to(paths.ROOT).with_suffix("").parts for path in files]
    return {
        ".".join(part for part in parts if part != "__init__"): path.read_text()
        for path, parts in zip(files, names, strict=True)
    }


def resolved(module: str, imports: set[str], known: set[str]) -> set[str]:
    """Modules of the packages, and top names of others, that these imports run. A module's folders run before it, but
    the two packages' own `__init__` count for nothing: every module runs them."""
    reached = set()
    for name in imports:
        parts = name.split(".")
        if parts[0] not in PACKAGES:
            reached.add(parts[0])
            continue
        reached |= {".".join(parts[:n]) for n in range(2, len(parts) + 1)} & known
    return {name for name in reached if not f"{module}.".startswith(f"{name}.")}


def graph(lazy: bool) -> dict[str, set[str]]:
    """Each module and what it imports; if `lazy`, what its functions import too, but for what is named in `UPWARD`."""
    texts, arrows = modules(), {}
    for module, text in texts.items():
        first, later = read(text)
        up = {name for start, name in UPWARD if start == module}
        arrows[module] = resolved(module, first | (later - up if lazy else set()), set(texts))
    return arrows


def room(module: str) -> str:
    """The room of a module: package and first folder or file."""
    return ".".join(module.split(".")[:2])


def rooms(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same graph between rooms."""
    between = {}
    for module, names in imports.items():
        between.setdefault(room(module), set()).update({room(name) for name in names} - {room(module)})
    return between


def circle(imports: dict[str, set[str]]) -> set[str]:
    """The modules of one circle, none where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return set(error.args[1])
    return set()


def breaches(imports: dict[str, set[str]]) -> list[str]:
    """Arrows that go through a wall."""

    def wrong(module: str, name: str) -> bool:
        package, room, *rest = module.split(".")
        other, *others = name.split(".")[1:] or [""]
        if package == "llama_jax":
            return name.startswith("llama_lab") or (room in MODEL and other in NOT_IN_THE_MODEL)
        return (
            (room == "bench" and other in ABOVE_THE_INSTRUMENT)
            or (room == "figures" and other == "experiments")
            or (room == other == "experiments" and bool(rest and others) and rest[0] != others[0])
        )

    inside = {module: names for module, names in imports.items() if "." in module}
    return sorted(
        f"{module} imports {name}" for module, names in inside.items() for name in names if wrong(module, name)
    )


def reached(imports: dict[str, set[str]], start: str) -> set[str]:
    """All that importing a module imports."""
    imported, waiting = set(), [start]
    while waiting:
        if (name := waiting.pop()) not in imported:
            imported.add(name)
            waiting += imports.get(name, ())
    return imported


@pytest.mark.parametrize("lazy", [False, True])
def test_no_circles_and_no_holes_in_the_walls(lazy):
    imports = graph(lazy)
    assert len(imports) > 200
    assert circle(imports) == circle(rooms(imports)) == set()
    assert breaches(imports) == []


def test_the_small_package_never_names_the_laboratory():
    """Not in an import, and not in a text that is imported by name either."""
    texts = {name: text for name, text in modules().items() if name.startswith("llama_jax")}
    assert len(texts) > 50
    assert [name for name, text in texts.items() if re.search(r"\bllama_lab\b", text)] == []


def test_each_arrow_that_may_lead_up_is_lazy_and_would_close_a_circle():
    texts, imports = modules(), graph(True)
    for module, name in UPWARD:
        first, later = read(texts[module])
        assert name in later - first
        assert circle(rooms(imports | {module: imports[module] | {name}}))


def test_experiments_share_nothing():
    assert modules()["llama_lab.experiments"] == ""


def test_a_gpu_machine_needs_little():
    imports = graph(False)
    for start in ("llama_lab.experiments.gpu.measure", "llama_lab.cli.measure"):
        assert "pydantic" in reached(imports, "llama_lab.experiments.gpu.measure")
        assert not reached(imports, start) & set(NOT_ON_A_GPU_MACHINE)


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, {"a", "b", "c"}),
        ({"a": {"b"}, "b": {"b.c"}, "b.c": {"a"}, "d": set()}, {"a", "b", "b.c"}),
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, set()),
    ],
)
def test_a_circle_is_seen(imports, expected):
    assert circle(imports) == expected


@pytest.mark.parametrize(
    ("module", "name", "hole"),
    [
        ("llama_lab.bench.run", "llama_lab.experiments.kv_cache.measure", True),
        ("llama_lab.bench.run", "llama_lab.cli", True),
        ("llama_lab.bench.run", "llama_lab.playground.view", True),
        ("llama_lab.bench.run", "llama_lab.peers", False),
        ("llama_lab.bench.run", "llama_jax.generate", False),
        ("llama_lab.experiments.kv_cache.measure", "llama_lab.experiments.growth.measure", True),
        ("llama_lab.experiments.kv_cache.chart", "llama_lab.experiments.kv_cache.table", False),
        ("llama_lab.experiments.kv_cache.chart", "llama_lab.experiments.kv_cache", False),
        ("llama_lab.experiments.kv_cache.chart", "llama_lab.bench", False),
        ("llama_lab.figures.marks", "llama_lab.experiments.growth", True),
        ("llama_lab.reporting.tour", "llama_lab.experiments.kv_cache.finding", False),
        ("llama_jax.layer", "llama_jax.transforms", True),
        ("llama_jax.layer", "llama_jax.norm", False),
        ("llama_jax.layer", "jax", False),
        ("llama_jax.generate", "llama_lab.activations", True),
    ],
)
def test_a_hole_in_a_wall_is_seen(module, name, hole):
    assert breaches({module: {name}, name: set()}) == [f"{module} imports {name}"] * hole


def test_imports_and_lazy_imports_are_distinguished():
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
        from llama_jax.checkpoint import gguf
        return lambda: __import__("x")
"""
    first, later = read(text)
    assert first == {"typing.TYPE_CHECKING", "llama_lab.bench.guard", "llama_jax.model", "numpy.linalg", "json"}
    assert later == {"llama_jax.checkpoint.gguf"}
    known = {"llama_lab.bench", "llama_lab.bench.guard", "llama_lab.bench.gate", "llama_jax.model"}
    inside = {"llama_lab.bench.guard", "llama_jax.model"}
    assert resolved("llama_lab.bench.gate", first, known) == {*inside, "typing", "numpy", "json"}
    assert reached({"a": {"b"}, "b": {"pandas"}, "c": {"d"}}, "a") == {"a", "b", "pandas"}


def test_every_name_that_is_offered_is_there():
    for package in (llama_jax, bench):
        assert [name for name in package.__all__ if getattr(package, name, None) is None] == []


def test_tools_follow_every_name_that_the_package_offers_lazily():
    """The block that only type checkers read names all that `__getattr__` finds, and from where."""
    tree = ast.parse(modules()["llama_jax"])
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    named = {(node.module, alias.name) for node in block.body for alias in node.names}
    assert {(f"llama_jax.{home}", name) for name, home in llama_jax.HOME.items()} <= named


def refused_by(version: str, pins: Sequence[str]) -> list[str]:
    """Of pinned packages that are installed here, those that do not run on a version of Python."""
    asked = {name: metadata.metadata(name).get("Requires-Python") for name in pins}
    return [name for name, wanted in asked.items() if wanted and not SpecifierSet(wanted).contains(version)]


def test_every_locked_package_runs_on_the_oldest_python_that_is_promised():
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    lines = (paths.ROOT / "requirements.txt").read_text().splitlines()
    pins = [line.partition("==")[0] for line in lines if "==" in line]
    assert len(pins) > 100
    assert refused_by(oldest, pins) == []
    assert "jax" in refused_by("3.8.0", pins)
