"""Which code a table's times depend on, and which of it has changed since the table was recorded.

`code.toml` declares the modules at which the search for each experiment begins, and what never runs in a timed region.
The modules reached from there by imports are read as syntax trees; nothing is imported for it. A module's hash ignores
what cannot change a time: comments, layout, docstrings, imports, annotations and error messages.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from llama_jax.plumbing import paths
from llama_jax.plumbing.boundary import Declared

PACKAGES = ("llama_jax", "llama_lab")
UNKNOWN, OLDER = "recorded before code was hashed", "recorded with older code"


class Stamp(Declared):
    """A table's stamp was renewed after a change that moves no time. before, now: commits. evidence: a summary of what
    was compared."""

    why: str
    before: str
    now: str
    evidence: dict


class Code(Declared):
    """The code in a table's meta. roots: where the search for modules began. modules: the hash of each."""

    digest: str
    roots: list[str]
    modules: dict[str, str]
    restamped: list[Stamp] = Field(default_factory=list)


class Declaration(Declared):
    """`code.toml`. tables: the roots of each table."""

    not_timed: list[str]
    by_declaration: list[str]
    loads: dict[str, list[str]]
    tables: dict[str, list[str]]


@functools.cache
def declared() -> Declaration:
    return Declaration(**tomllib.loads((Path(__file__).parent / "code.toml").read_text(encoding="utf-8")))


def recorded_now(table: str, parameters: dict) -> dict | None:
    """The code for a table's meta, the values of a `Code`; None for a table that no experiment declares."""
    from llama_lab import peers

    roots = declared().tables.get(table)
    named = [peers.PEERS[name].module for name in parameters.get("peers", ()) if name in peers.PEERS]
    return roots and describe(sorted({*roots, *(f"llama_lab.peers.{module}" for module in named)}))


def describe(roots: Sequence[str]) -> dict:
    """The same for these roots."""
    known = sources()
    modules = {name: read(known[name])[1] for name in sorted(reached(roots, known))}
    together = hashlib.sha256(json.dumps(modules, sort_keys=True).encode()).hexdigest()[:16]
    return dict(digest=together, roots=list(roots), modules=modules)


def changed(meta: dict) -> list[str] | None:
    """Modules that were changed, added or removed since a table was recorded; None if its meta does not name any."""
    code = meta.get("code")
    if not code:
        return None
    then, now = code["modules"], describe(code["roots"])["modules"]
    return sorted(name for name in {*then, *now} if now.get(name) != then.get(name))


def complaint(meta: dict) -> str:
    """A few words if a table is not of today's code; "" if it is."""
    modules = changed(meta)
    return UNKNOWN if modules is None else OLDER if modules else ""


def sources() -> dict[str, Path]:
    """Dotted name → file of every module of both packages; `__init__` is its folder's."""
    files = [path for package in PACKAGES for path in (paths.ROOT / package).rglob("*.py")]
    parts = [path.relative_to(paths.ROOT).with_suffix("").parts for path in files]
    return {".".join(names).removesuffix(".__init__"): path for names, path in zip(parts, files, strict=True)}


def within(module: str, places: Iterable[str]) -> str:
    """The first of these modules and folders that a module is, or is in; "" for none."""
    return next((place for place in places if f"{module}.".startswith(f"{place}.")), "")


def reached(roots: Iterable[str], known: dict[str, Path]) -> set[str]:
    """The modules that the roots reach by imports, themselves included, without those that are never timed."""
    rules, modules = declared(), set()
    waiting = [name for name in known if within(name, roots) or any(within(root, [name]) for root in roots)]
    while waiting:
        module = waiting.pop()
        if module in modules or module not in known or within(module, rules.not_timed):
            continue
        modules.add(module)
        room = within(module, rules.by_declaration)
        parts = [name.split(".") for name in (*read(known[module])[0], *rules.loads.get(module, ()))]
        names = {".".join(p[:n]) for p in parts for n in range(1, len(p) + 1)}  # a module's folders run before it
        waiting += [name for name in names if within(name, rules.by_declaration) in ("", room)]
    return modules


def read(path: Path) -> tuple[set[str], str]:
    """(dotted names that a module imports, hash of what is left of its syntax tree under any version of Python)."""
    return read_once(path, path.stat().st_mtime_ns)


@functools.cache
def read_once(path: Path, changed_ns: int) -> tuple[set[str], str]:
    bare = Bare()
    tree = bare.visit(ast.parse(path.read_bytes()))
    return bare.imported, hashlib.sha256(repr(plain(tree)).encode()).hexdigest()[:12]


class Bare(ast.NodeTransformer):
    """A syntax tree without what cannot change a time. imported: the dotted names in the removed imports."""

    def __init__(self):
        self.imported: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        self.imported |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.imported |= {f"{node.module}.{alias.name}" for alias in node.names}

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return [self.visit(child) for child in node.orelse]
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        words = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if words else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        kept = ast.Assign([node.target], node.value) if node.value else ast.Expr(node.target)
        return self.generic_visit(kept)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        node.exc = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        error = ast.unparse(node.func).endswith("Error")
        return self.generic_visit(node.func if error else node)


def plain(node: object) -> object:
    """A syntax tree as tuples. Empty fields are left out, because newer versions of Python have more of them."""
    if isinstance(node, ast.Constant):
        return "Constant", repr(node.value)
    if isinstance(node, ast.AST):
        fields = [(name, plain(value)) for name, value in ast.iter_fields(node) if value is not None and value != []]
        return type(node).__name__, *fields
    return [plain(each) for each in node] if isinstance(node, list) else node
