"""The report: one HTML page of questions, findings, figures, data and rerun commands, made from the manifest alone."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2

from llama_jax import files
from llama_jax.errors import UserError
from llama_jax.figures import read_manifest

BEGIN, END = "<!-- findings: written by `llama-jax report` -->", "<!-- end of findings -->"
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
        data = f"../data/{name}.csv" if (home / "data" / f"{name}.csv").is_file() else None
        found.append(dict(name=name, number=name.split("-")[0], figures=figures, data=data, **about))
    return found


def embed(image: Path) -> str:
    """An SVG file as a data address, so that the page is one file and ids of several images cannot collide."""
    try:
        return "data:image/svg+xml;base64," + base64.b64encode(image.read_bytes()).decode()
    except OSError:
        raise UserError(f"{image} is listed in manifest.json but missing: run `llama-jax run` again.") from None


def findings(found: list[dict], shown: str = "") -> str:
    """The findings as Markdown: question, computed answer, and the first figure of each notebook that `shown` lacks."""
    blocks = []
    for s in found:
        new = [f["name"] for f in s["figures"] if f["name"] not in shown][:1]
        picture = "".join(f"\n\n![{name}](figures/{name}.svg)" for name in new)
        measured = f" Measured {s['created'][:10]} on {s['machine']}." if s["created"] else ""
        blocks.append(f"**{s['question']}** {s['finding']}{measured}{picture}")
    return "\n\n".join(blocks)


def refresh_readme(out_dir: Path, found: list[dict]) -> None:
    """Put the findings between the README's two markers, where OUT has a README that holds them."""
    path = Path(out_dir) / "README.md"
    if not path.is_file():
        return
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        files.write(path, f"{before}{BEGIN}\n{findings(found, before)}\n{END}{after}")


def write(out_dir: Path) -> Path:
    """Write OUT/docs/index.html, and refresh the findings in OUT/README.md."""
    found = sections(out_dir)
    refresh_readme(out_dir, found)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(sections=found)
    path = Path(out_dir) / "docs" / "index.html"
    return files.write(path, page)
