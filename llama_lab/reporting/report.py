"""The report: one HTML page of questions, findings, figures, a table of all subjects, machine and versions, from
manifest and data."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing import boundary, files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment, wording
from llama_lab.bench.wording import clipped, opening
from llama_lab.figures import model_label, read_manifest
from llama_lab.reporting import machines, notebooks, overview, pages, readme
from llama_lab.reporting.overview import Line, value
from llama_lab.sharing import contribution

CAPTION = 320  # characters that are shown of a figure's results; the rest opens
POINT = re.compile(r"^- \*\*(.+?)\.\*\* (.+?)(?=\n(?:- |\n))", re.M | re.S)  # of a list: a term and what it is
NUMBER = re.compile(r"\d[\d,.]*(?:x|%| (?:tokens/s|ms|s|times|MB|GB|nats)\b)")
# that decide a time
PACKAGES = ("jax", "jaxlib", "numpy", "torch", "transformers", "llama-cpp-python", "numba", "flax")


def sections(out_dir: Path) -> list[dict]:
    """One section a notebook, each with its figures. Raises UserError when nothing has been drawn yet."""
    manifest, home = read_manifest(out_dir), Path(out_dir)
    if not manifest["notebooks"]:
        raise UserError(f"No figures are recorded in {home / 'figures'}: run `llama-jax run` first.")
    found, read = [], [path.stem for path in notebooks.sources()]
    order = sorted(manifest["notebooks"], key=lambda name: (read.index(name) if name in read else len(read), name))
    for name, about in ((name, manifest["notebooks"][name]) for name in order):
        mine = {key: entry for key, entry in manifest["figures"].items() if entry["notebook"] == name}
        figures = [figure(key, mine[key], home / "figures" / f"{key}.svg") for key in in_order(name, list(mine))]
        data = [path.name for path in sorted((home / "data").glob(f"{name}*.csv"))]
        page = pages.path_of(name, home).relative_to(home / "docs") if pages.path_of(name, home).is_file() else None
        found.append(dict(name=name, number=name.split("-")[0], figures=figures, data=data, page=page, **about))
    return found


def figure(name: str, entry: dict, image: Path) -> dict:
    """A figure of the manifest as the page shows it: what it shows, and what came out, in short where it is long."""
    width, height = size(image)
    said = clipped(entry["alt"], CAPTION)
    return dict(name=name, width=width, height=height, caption=caption(entry["alt"]), said=said, **entry)


def others(out_dir: Path, found: Sequence[dict]) -> list[dict]:
    """Pages of notebooks that answer no question and so have no section: {number, page, title}."""
    home, known = Path(out_dir) / "docs", {s["name"] for s in found}
    here = [path for path in sorted((home / "notebooks").glob("*.html")) if path.stem not in known]
    return [
        dict(number=path.stem.split("-")[0], page=path.relative_to(home), title=pages.heading(path)) for path in here
    ]


def in_order(notebook: str, figures: list[str]) -> list[str]:
    """A notebook's figures in the order in which it names its artifacts, the one that answers its question first;
    others by name."""
    source = notebooks.FOLDER / f"{notebook}.ipynb"
    named = notebooks.about(source).artifacts if source.is_file() else []
    told = [Path(artifact).stem for artifact in named if artifact.endswith(".svg")]  # a table may have a figure's name
    return sorted(figures, key=lambda name: (told.index(name) if name in told else len(told), name))


def caption(alt: str) -> str:
    """What a figure's description says of its axes: the first sentence. The results that follow stand below it."""
    return alt.partition(". ")[0].rstrip(".") + "."


def size(image: Path) -> tuple[int, int]:
    """Width and height of an SVG file in points, for the room that the page keeps. Raises UserError where there is
    none."""
    try:
        found = re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', boundary.content(image).decode())
    except FileNotFoundError:
        raise UserError(f"{image} is listed in manifest.json but missing: run `llama-jax run` again.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{image} is damaged ({error}): run `llama-jax run` again.") from None
    if not found:
        raise UserError(f"{image} is damaged (an SVG without viewBox): run `llama-jax run` again.")
    return round(float(found[1])), round(float(found[2]))


def cards(found: Sequence[dict]) -> list[dict]:
    """What the page begins with: the headline and the findings `in_readme`, each with how it begins, its first number
    and its first figure."""
    shown = [contribution.HEADLINE, *notebooks.saying("in_readme")]
    return [
        dict(s, begins=opening(s["finding"]), key=key_number(opening(s["finding"])), picture=s["figures"][0]["name"])
        for s in found
        if s["name"] in shown and s["figures"]
    ]


def key_number(text: str) -> str:
    """The first number of a sentence that has a unit, with it: `8.48x`, `54%`, `328.6 tokens/s`; "" where there is
    none."""
    found = NUMBER.search(text)
    return found[0] if found else ""


def terms() -> list[dict]:
    """{id, term, meaning} of each point of docs/statistics.md; none outside a clone, where there is no such file."""
    path = paths.ROOT / "docs" / "statistics.md"
    found = POINT.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [dict(id=pages.anchor(term), term=term, meaning=pages.inline(meaning)) for term, meaning in found]


def tables(out_dir: Path, found: Sequence[dict]) -> list[tuple[dict, Path, dict]]:
    """(section, table, its meta) of each table behind the sections, from OUT, or from the repository where OUT has
    none."""
    known = []
    for s in found:
        homes = [Path(home) / "data" for home in (paths.ROOT, out_dir)]
        # OUT's own replace the others
        here = {path.name: path for home in homes for path in overview.tables(home, s["name"])}
        known += [(s, here[name], overview.about(here[name])) for name in sorted(here)]
    return known


def told(s: dict, line: Line) -> dict:
    """A line of the table of all subjects as words, numbers beside those that are sorted by."""
    setting = " · ".join(filter(None, [model_label(line.model), line.words]))
    middle = value(line.middle.median, line.middle)
    ratio = line.ratio and line.ratio.n and value(line.ratio.value, line.ratio)
    return dict(
        number=s["number"],
        question=s["question"],
        subject=line.subject,
        weights=line.weights,
        setting=setting,
        lengths=line.lengths,
        rate=middle if line.unit == overview.RATE else None,
        first=middle if line.unit == overview.FIRST else None,
        ratio=ratio,
        verdict=line.verdict,
        n=line.middle.n,
        void=line.void,
    )


def machine(path: Path, meta: dict, out_dir: Path) -> dict:
    """Where and with what a table was measured."""
    env = meta["environment"]
    commit, system = (env.get("git") or {}).get("commit"), f"{env['os'].partition('-with-')[0]}, Python {env['python']}"
    return dict(
        table=path.stem,
        here=path.is_relative_to(out_dir),
        created=meta["created"],
        commit=(commit or "unknown")[:10],
        machine=environment.machine_line(env).partition(" · jax")[0],
        system=system,
        packages={p: env["packages"].get(p) for p in PACKAGES},
    )


def unplain(found: Sequence[dict]) -> list[str]:
    """`03-jit-placement's finding: its first sentence has 31 words, more than 20`, a line a complaint."""
    said = ((s["name"], s["finding"]) for s in found if s["finding"])
    return [f"{name}'s finding: {complaint}" for name, finding in said for complaint in wording.complaints(finding)]


def write(out_dir: Path) -> Path:
    """Write OUT/docs/index.html and the page of machines beside it, and refresh the results in OUT/README.md; a finding
    that does not begin in plain words is told on standard error."""
    found = sections(out_dir)
    for line in unplain(found):
        print(line, file=sys.stderr)
    behind = tables(out_dir, found)
    subjects = [told(s, line) for s, path, meta in behind for line in overview.lines(path, meta)]
    measured = [machine(path, meta, Path(out_dir)) for _, path, meta in behind]
    packages = [name for name in PACKAGES if any(m["packages"][name] for m in measured)]
    page = pages.render(
        "report.html",
        sections=found,
        others=others(out_dir, found),
        cards=cards(found),
        subjects=subjects,
        terms=terms(),
        machines=measured,
        packages=packages,
        left_out=" and ".join(overview.left_out()),
    )
    readme.refresh(out_dir, found, behind)
    machines.write(out_dir)
    return files.write(Path(out_dir) / "docs" / "index.html", page)
