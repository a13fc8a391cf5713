"""Which notebooks need not be drawn again: what they read and what they wrote is as it was the last time, in OUT."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from llama_jax.plumbing import files, paths
from llama_lab.figures import read_manifest
from llama_lab.reporting.ipynb import about

SETTINGS = ("JAX_", "LLAMA_JAX_", "NPY_", "XLA_")  # in the environment, how their names begin


def remembered(name: str, out_dir: Path) -> Path:
    """The file with the digest of a notebook's last drawing."""
    return Path(out_dir) / "out" / "drawn" / name


def remember(name: str, was_read: str, out_dir: Path, artifacts: Sequence[str]) -> None:
    """was_read: `read` before the drawing, so that what was edited meanwhile does not count as drawn."""
    files.write(remembered(name, out_dir), f"{was_read} {written(name, out_dir, artifacts)}\n")


def is_current(name: str, is_read: str, out_dir: Path, artifacts: Sequence[str]) -> bool:
    """Whether drawing a notebook, which reads what `read` says, would write what is there."""
    try:
        before = remembered(name, out_dir).read_text(errors="replace")
    except OSError:
        return False  # it was never drawn here
    return before == f"{is_read} {written(name, out_dir, artifacts)}\n"


def read(path: Path, chosen: dict, out_dir: Path) -> str:
    """Digest of all that a drawing depends on: notebook, parameters, code, data, installed packages, settings; for one
    that sums up the others, what they found."""
    code = [p for name in ("llama_jax", "llama_lab", "examples") for p in (paths.ROOT / name).rglob("*")]
    data = [p for home in {paths.ROOT, Path(out_dir)} for p in (home / "data").rglob("*")]
    around = dict(
        parameters=chosen,
        python=sys.version,
        packages=sorted(f"{each.name} {each.version}" for each in metadata.distributions()),
        settings=sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(SETTINGS)),
        others=others(path.stem, out_dir) if about(path).last else None,
    )
    return digest([path, *(p for p in code + data if "__pycache__" not in p.parts)], around)


def others(name: str, out_dir: Path) -> list[dict]:
    found = [read_manifest(home)["notebooks"] for home in (paths.ROOT, out_dir)]
    return [{other: entry for other, entry in entries.items() if other != name} for entries in found]


def written(name: str, out_dir: Path, artifacts: Sequence[str]) -> str:
    """Digest of a notebook's artifacts, executed copy and pages, and of its entries in the manifest."""
    manifest, pages = read_manifest(out_dir), Path(out_dir) / "docs" / "notebooks"
    figures = {figure: entry for figure, entry in manifest["figures"].items() if entry["notebook"] == name}
    executed = Path(out_dir) / "out" / "notebooks" / f"{name}.ipynb"
    kept = [*map(Path, artifacts), executed, *(pages / f"{name}.{kind}" for kind in ("html", "md"))]
    return digest(kept, [manifest["notebooks"].get(name), figures])


def digest(kept: Iterable[Path], around: object) -> str:
    whole = hashlib.sha256(json.dumps(around, sort_keys=True, default=str).encode())
    for path in sorted(p for p in kept if p.is_file()):
        whole.update(str(path).encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
