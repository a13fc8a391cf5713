"""An executed notebook as Markdown, for forges that show no HTML: text, code, outputs, figures by link, the same bytes
for the same data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing import files, paths
from llama_lab.bench.wording import points
from llama_lab.figures import read_manifest
from llama_lab.reporting import ipynb, pages

LINK = re.compile(r"(\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"(^(`{3,}).*?^\2`*$)", re.M | re.S)  # of a block of code, which has no links
TICKS = re.compile(r"^`{3,}", re.M)


def path_of(name: str, out_dir: str | Path) -> Path:
    """Where a notebook's text lies: beside its page."""
    return pages.path_of(name, out_dir).with_suffix(".md")


def write(executed: Path, out_dir: str | Path) -> Path:
    """OUT/docs/notebooks/NAME.md from an executed notebook. Its figures are shown from OUT/figures."""
    name, nb, manifest = executed.stem, ipynb.read(executed), read_manifest(out_dir)
    known, homes = pages.drawn(manifest), (out_dir, paths.ROOT)
    parts = [f"# {pages.title(nb) or name}", *head(name, manifest)]
    first, *cells = pages.cells(nb)
    if first.cell_type == "markdown":
        first.source = re.sub(r"\A# .*", "", pages.opened(first.source))
    parts += [part for cell in (first, *cells) for part in cell_parts(cell, known, homes, name)]
    return files.write(path_of(name, out_dir), "\n\n".join(part for part in parts if part) + "\n")


def head(name: str, manifest: dict) -> list[str]:
    """Where else the notebook is to be seen, what it found, and on what."""
    about = manifest["notebooks"].get(name, pages.NOTHING)
    number = name.split("-")[0]
    report = f" · [in the report](../index.html#n{number})" if name in manifest["notebooks"] else ""
    return [
        f"[llama-jax](../../README.md){report} · [as a page]({name}.html)"
        f" · [the notebook](../../notebooks/{name}.ipynb), `llama-jax run {number}`",
        answer(about["finding"]) if about["finding"] else "",
        f"Measured {about['created'][:10]} on {about['machine']}." if about["created"] else "",
    ]


def answer(finding: str) -> str:
    """A finding as a quotation: how it begins, then its details as a list."""
    first, details = points(finding)
    return "\n".join([f"> {first}", *[">"] * bool(details), *(f"> - {detail}" for detail in details)])


def cell_parts(cell, known: dict, homes: Sequence[str | Path], name: str) -> list[str]:
    """A cell's text, or its code and what it left."""
    if cell.cell_type == "markdown":
        return [turned(cell.source).strip()]
    if cell.cell_type != "code" or not cell.source.strip():
        return []
    return [fenced(cell.source, "python"), *(output(out, name) for out in pages.outputs(cell, known, homes))]


def output(out: dict, name: str) -> str:
    """One output, as `pages.outputs` gives it. A table is HTML, which Markdown lets through."""
    if "figure" in out:
        kept = f"![{out['alt']}]({out['figure']})"
        return kept if out["kept"] else f"*A picture of this run: see [the page]({name}.html).*"
    if "source" in out:
        return turned(out["source"]).strip()
    return str(out["table"]) if "table" in out else fenced(out["words"], "text")


def turned(text: str) -> str:
    """The text with its links turned from `notebooks/` to `docs/notebooks/`; those in code stay."""
    parts = FENCE.split(text)
    for at in range(0, len(parts), 3):  # text, block, its fence, text, …
        parts[at] = LINK.sub(lambda found: found[1] + pages.link(found[2], ".md"), parts[at])
    return "".join(part for at, part in enumerate(parts) if at % 3 < 2)


def fenced(text: str, language: str) -> str:
    """A block of code in a fence that nothing within it ends."""
    ticks = "`" * max(3, *(len(found) + 1 for found in TICKS.findall(text)), 3)
    return f"{ticks}{language}\n{text.strip(chr(10))}\n{ticks}"
