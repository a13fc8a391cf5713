"""The report: one HTML page of questions, findings, figures, a table of all subjects, machine and versions, from
manifest and data."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import markupsafe

from llama_jax import boundary, files, paths
from llama_jax.bench import environment
from llama_jax.bench.wording import within
from llama_jax.errors import UserError
from llama_jax.figures import model_label, read_manifest
from llama_jax.figures.svg import compact
from llama_jax.reporting import notebooks, overview, pages
from llama_jax.reporting.overview import Line

BEGIN, END = "<!-- findings: written by `llama-jax report` -->", "<!-- end of findings -->"
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
        figures = [
            dict(name=key, image=embed(home / "figures" / f"{key}.svg"), caption=caption(mine[key]["alt"]), **mine[key])
            for key in in_order(name, list(mine))
        ]
        data = [path.name for path in sorted((home / "data").glob(f"{name}*.csv"))]
        page = pages.path_of(name, home).relative_to(home / "docs") if pages.path_of(name, home).is_file() else None
        found.append(dict(name=name, number=name.split("-")[0], figures=figures, data=data, page=page, **about))
    return found


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
    """What a figure's description says of its axes: the first sentence. The numbers that follow are in the figure, for
    those who see it."""
    return alt.partition(". ")[0].rstrip(".") + "."


def embed(image: Path) -> markupsafe.Markup:
    """An SVG file as a data address, so that the page is one file and ids of several images cannot collide."""
    try:
        text = compact(boundary.content(image).decode())
    except FileNotFoundError:
        raise UserError(f"{image} is listed in manifest.json but missing: run `llama-jax run` again.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{image} is damaged ({error}): run `llama-jax run` again.") from None
    return markupsafe.Markup(
        "data:image/svg+xml," + urllib.parse.quote(text.replace('"', "'"), safe=" '()*+,-./:;=@_~!$")
    )


def findings(found: list[dict], shown: str = "") -> str:
    """The main findings as Markdown: question, computed answer, and the first figure of the notebook that `shown`
    lacks; then the other questions, each with its place in the page."""
    main, blocks = notebooks.saying("in_readme"), []
    others = [f"- [{s['question']}](docs/index.html#n{s['number']})" for s in found if s["name"] not in main]
    for s in (s for s in found if s["name"] in main):
        new = [f for f in s["figures"] if f["name"] not in shown][:1]
        picture = "".join(f"\n\n![{f['alt']}](figures/{f['name']}.svg)" for f in new)
        measured = f" Measured {s['created'][:10]} on {s['machine']}." if s["created"] else ""
        blocks.append(f"**{s['question']}** {s['finding']}{measured}{picture}")
    return "\n\n".join([*blocks, *(["And:", "\n".join(others)] if others else [])])


def refresh_readme(out_dir: Path, found: list[dict]) -> None:
    """Put the findings between the README's two markers, where OUT has a README that holds them."""
    path = Path(out_dir) / "README.md"
    if not path.is_file():
        return
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        files.write(path, f"{before}{BEGIN}\n{findings(found, before)}\n{END}{after}")


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


def value(middle: float, found) -> dict:
    """{value, words, interval} of a summary's or a ratio's number; no interval where a single trial has none."""
    return dict(value=f"{middle:.6g}", words=short(middle), interval=within(found, short).strip())


def short(number: float) -> str:
    """A positive number in three digits or so, without powers: 0.052, 5.24, 35.3, 772, 22,322."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.3f}"


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


def write(out_dir: Path) -> Path:
    """Write OUT/docs/index.html, and refresh the findings in OUT/README.md."""
    found = sections(out_dir)
    behind = tables(out_dir, found)
    subjects = [told(s, line) for s, path, meta in behind for line in overview.lines(path, meta)]
    machines = [machine(path, meta, Path(out_dir)) for _, path, meta in behind]
    packages = [name for name in PACKAGES if any(m["packages"][name] for m in machines)]
    about = dict(sections=found, others=others(out_dir, found), subjects=subjects, machines=machines, packages=packages)
    left_out, headline = " and ".join(overview.left_out()), notebooks.saying("headline")
    page = pages.render("report.html", **about, left_out=left_out, headline=headline)
    refresh_readme(out_dir, found)
    return files.write(Path(out_dir) / "docs" / "index.html", page)
