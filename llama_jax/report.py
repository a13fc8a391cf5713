"""The report: one HTML page of questions, findings, figures, data and rerun commands, made from the manifest alone."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import jinja2

from llama_jax.bench.record import replace
from llama_jax.errors import UserError
from llama_jax.figures import read_manifest

TEMPLATE = Path(__file__).with_name("report.html")


def sections(out_dir: Path) -> list[dict]:
    """One section a notebook, each with its figures. Raises UserError when nothing has been drawn yet."""
    manifest, home = read_manifest(out_dir), Path(out_dir)
    if not manifest["notebooks"]:
        raise UserError(f"No figures are recorded in {home / 'figures'}: run `llama-jax run` first.")
    found = []
    for name, about in sorted(manifest["notebooks"].items()):
        figures = [dict(name=key, image=embed(home / "figures" / f"{key}.svg"), **entry)
                   for key, entry in sorted(manifest["figures"].items()) if entry["notebook"] == name]  # fmt: skip
        data = next((home / "data" / f"{name}.csv" for _ in [0] if (home / "data" / f"{name}.csv").is_file()), None)
        found.append(
            dict(name=name, number=name.split("-")[0], figures=figures, data=data and os.path.relpath(data, home / "docs"), **about)
        )
    return found


def embed(image: Path) -> str:
    """An SVG file as a data address, so that the page is one file and ids of several images cannot collide."""
    try:
        return "data:image/svg+xml;base64," + base64.b64encode(image.read_bytes()).decode()
    except OSError:
        raise UserError(f"{image} is listed in manifest.json but missing: run `llama-jax run` again.") from None


def write(out_dir: Path) -> Path:
    """Write OUT/docs/index.html."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(sections=sections(out_dir))
    path = Path(out_dir) / "docs" / "index.html"
    replace(path, page)
    return path
