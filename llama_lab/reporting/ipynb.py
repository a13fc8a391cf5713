"""A notebook's file: its declared fields, read as untrusted input."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import nbformat
from nbformat.v4.rwbase import rejoin_lines
from pydantic import Field, NonNegativeInt

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import Declared
from llama_jax.plumbing.errors import UserError

PROFILES = ("quick", "full")


class Tagged(Declared):
    tags: list[str] = Field([])


class Cell(Declared):
    """A cell, as far as the runner reads it."""

    cell_type: Literal["code", "markdown", "raw"]
    source: str | list[str]
    metadata: Tagged
    outputs: list[dict[str, Any]] = Field([])


class Own(Declared):
    """The notebook's own metadata, as `notebooks` says it."""

    artifacts: list[str] = Field([])
    profiles: dict[Literal[PROFILES], dict[str, Any]] = Field({})
    needs: str | None = None
    rows: list[Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]] = Field([])
    last: bool = False
    headline: bool = False
    in_readme: bool = False
    advice: bool = False
    first_tokens: bool = False
    no_subjects: bool = False


class About(Declared):
    llama_jax: Own = Own()


class Notebook(Declared):
    """Version 4 of the format (https://nbformat.readthedocs.io/en/latest/format_description.html)."""

    nbformat: Literal[4]
    nbformat_minor: NonNegativeInt
    metadata: About
    cells: list[Cell] = Field(min_length=1)


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook. Raises UserError for any other file."""
    remedy = "Bring it back: `git checkout` it."
    try:
        content = boundary.load(path, remedy=remedy)
    except FileNotFoundError:
        raise UserError(f"No such notebook: {path}.") from None
    boundary.read(Notebook, content, str(path), remedy)
    return rejoin_lines(nbformat.from_dict(content))


def about(path: Path) -> Own:
    """The notebook's own metadata; read again only if the file has changed, because the report asks for it thousands of
    times."""
    try:
        at = path.stat()
    except OSError:
        return own(path)  # which says what is wrong
    return own(path, at.st_mtime_ns, at.st_size, at.st_ino)


@lru_cache(1024)
def own(path: Path, *state: int) -> Own:
    return Own(**read(path).metadata.get("llama_jax", {}))


def read_finding(executed: Path) -> str:
    """The text that the last code cell printed."""
    cells = [c for c in read(executed).cells if c.cell_type == "code"]
    printed = [o.get("text") for o in (cells[-1].get("outputs", []) if cells else []) if o.get("name") == "stdout"]
    return "".join(text for text in printed if isinstance(text, str)).strip()


def title(nb: nbformat.NotebookNode) -> str:
    """The first heading of a notebook; "" for none."""
    lines = (line for cell in nb.cells if cell.cell_type == "markdown" for line in cell.source.splitlines())
    return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")


def label(cell, room: int = 70) -> str:
    """What a cell is about: its first comment or line, at most `room` characters of it."""
    tags = {"parameters": "parameters", "injected-parameters": "parameters of this run"}
    first = next((line for line in cell.source.splitlines() if line.strip()), "")
    return next((tags[t] for t in cell.metadata.get("tags", []) if t in tags), first.lstrip("# ").strip()[:room])
