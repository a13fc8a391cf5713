"""The report: one HTML page from manifest and data. Two pages for those in a hurry, then a card a notebook, a table of
all subjects, machine and versions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from llama_jax.plumbing import boundary, files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import gate, summary, wording
from llama_lab.bench.wording import PART, SENTENCE, listed, points
from llama_lab.experiments.what_may_be_jitted import arguments
from llama_lab.figures import model_label, read_manifest
from llama_lab.peers import llama_bench
from llama_lab.reporting import (
    answers,
    brief,
    document,
    gains,
    keys,
    machines,
    notebooks,
    overview,
    readme,
    repeats,
    scorecard,
    structured,
    tour,
)
from llama_lab.reporting.document import Number, Table
from llama_lab.reporting.overview import Recorded
from llama_lab.sharing import contribution

POINT = re.compile(r"^- \*\*(.+?)\.\*\* (.+?)(?=\n(?:- |\n))", re.M | re.S)  # of a list: a term and what it is
ARGUMENTS = "<!-- arguments: written by `llama-jax report` -->", "<!-- end of arguments -->"  # in docs/placements.md
RECORDED = (  # page, a table of data/ that stands in it, and how
    ("files.md", "families", document.of_csv),
    ("clients.md", "clients", document.of_outcomes),
    ("clients.md", "lm-eval", document.of_csv),
    ("structured-answers.md", "structured-answers", structured.sentences),
    ("peers.md", "llama-bench", llama_bench.sentence),
)
# that decide a time
PACKAGES = ("jax", "jaxlib", "numpy", "torch", "transformers", "llama-cpp-python", "numba", "flax")


def sections(out_dir: Path) -> list[dict]:
    """One section a notebook, each with its figures, in reading order, those without data last. Raises UserError when
    nothing has been drawn yet."""
    manifest, home = read_manifest(out_dir), Path(out_dir)
    if not manifest["notebooks"]:
        raise UserError(f"No figures are recorded in {home / 'figures'}: run `llama-jax run` first.")
    made, executed = [], pages_of(home)

    def waits(name: str) -> bool:
        return not manifest["notebooks"][name]["created"]

    for name in sorted(manifest["notebooks"], key=lambda name: (waits(name), name)):
        number, entry = name.split("-")[0], manifest["notebooks"][name]
        drawn = [key for key, figure in manifest["figures"].items() if figure["notebook"] == name]
        page = next((path for path in executed if path.stem.startswith(f"{number}-")), None)
        shown, details = lead(entry["finding"])
        said = [*shown, *details]  # of what the section says so far
        about = dict(
            name=name,
            number=number,
            part="waiting" if waits(name) else "core" if notebooks.is_core(name) else "appendix",
            shown=shown,
            details=details,
            figures=[figure(key, manifest["figures"][key], home, said) for key in in_order(name, drawn)],
            data=[path.name for path in sorted((home / "data").glob(f"{name}*.csv"))],
            page=page and page.relative_to(home / "docs"),
        )
        made.append(about | entry)
    return made


def pages_of(out_dir: Path) -> list[Path]:
    """The notebooks' pages, in reading order, without those of former names."""
    moved = {notebooks.former(path.stem) for path in notebooks.sources()}
    return [path for path in sorted((Path(out_dir) / "docs" / "notebooks").glob("*.html")) if path.stem not in moved]


def lead(finding: str) -> tuple[list[str], list[str]]:
    """(what a card shows of a finding: its first sentence and, if that has no number, the first detail that has one;
    the other details)."""
    first, details = points(finding)
    wanted = (detail for detail in details if re.search(r"\d", detail) and not re.search(r"\d", first))
    number = next(wanted, None)
    return [first, *filter(None, [number])], [detail for detail in details if detail != number]


def plain(*parts: str) -> list[str]:
    """Parts of texts as they are compared."""
    return [part.rstrip(".").lower() for part in parts if part]


def figure(name: str, entry: dict, home: Path, said: list[str]) -> dict:
    """A figure of the manifest as the page shows it. caption: what its description says of its axes, the first
    sentence. told: the parts of it that the section has not `said`, to which they are added; the picture's own
    description."""
    width, height = size(home / "figures" / f"{name}.svg")
    first, _, rest = entry["alt"].rstrip(".").partition(". ")
    new = []
    for part in (first, *filter(None, (part for sentence in SENTENCE.split(rest) for part in PART.split(sentence)))):
        part = part.rstrip(".;")
        if not any(part.lower() in other or other in part.lower() for other in plain(*said, *new)):
            new.append(part)
    said += new
    told = "".join(f"{part}. " for part in filter(None, [*new[:1], "; ".join(new[1:])])).strip()
    about = dict(name=name, width=width, height=height, caption=f"{first}.", told=told)
    return about | dict(complaint="") | entry


def others(out_dir: Path, known: Sequence[dict]) -> list[dict]:
    """Pages of notebooks that answer no question and so have no section: {number, page, title}."""
    home, listed = Path(out_dir) / "docs", []
    for path in sorted({*pages_of(out_dir)} - {home / s["page"] for s in known if s["page"]}):
        heading = re.search(r"<h1>(.*?)</h1>", path.read_text(encoding="utf-8"), re.S)
        title = Markup(heading[1]).striptags() if heading else path.stem
        listed.append(dict(number=path.stem.split("-")[0], page=path.relative_to(home), title=title))
    return listed


def in_order(notebook: str, figures: list[str]) -> list[str]:
    """A notebook's figures in the order in which it names its artifacts, the one that answers its question first;
    others by name."""
    source = notebooks.FOLDER / f"{notebook}.ipynb"
    artifacts = notebooks.about(source).artifacts if source.is_file() else []
    named = [Path(artifact).stem for artifact in artifacts if artifact.endswith(".svg")]  # a table may have that name
    return sorted(figures, key=lambda name: (named.index(name) if name in named else len(named), name))


def size(image: Path) -> tuple[int, int]:
    """Width and height of an SVG file in points, for the room that the page keeps. Raises UserError where there is
    none."""
    try:
        box = re.search(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', boundary.content(image).decode())
    except FileNotFoundError:
        raise UserError(f"{image} is listed in manifest.json but missing: run `llama-jax run` again.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{image} is damaged ({error}): run `llama-jax run` again.") from None
    if not box:
        raise UserError(f"{image} is damaged (an SVG without viewBox): run `llama-jax run` again.")
    return round(float(box[1])), round(float(box[2]))


def terms() -> list[dict]:
    """{id, term, meaning} of each point of docs/statistics.md; none outside a clone, where there is no such file."""
    path = paths.ROOT / "docs" / "statistics.md"
    points = POINT.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
    return [
        dict(id=document.anchor(term), term=document.inline(term), meaning=document.inline(meaning))
        for term, meaning in points
    ]


def tables(out_dir: Path, known: Sequence[dict]) -> list[Recorded]:
    """Each table behind the sections, from OUT, or from the repository where OUT has none."""
    behind = []
    for s in known:
        homes = [Path(home) / "data" for home in (paths.ROOT, out_dir)]  # OUT's own come last
        here = {path.name: path for home in homes for path in overview.tables(home, s["name"])}
        behind += [Recorded(here[name], s) for name in sorted(here)]
    return behind


def subjects(behind: Sequence[Recorded]) -> Table:
    """All subjects that were timed side by side, a line each."""
    heads = ("Subject", "Notebook", "Weights", "Model and setting", "Prompt + answer", "n", "Tokens/s",
             "First token, ms", "× baseline", "Verdict")  # fmt: skip
    rows = []
    for table in behind:
        number, question = (table.section[key] for key in ("number", "question"))
        title = Markup('<a href="#n{}" title="{}">{}</a>').format(number, question, number)
        for line in table.lines.itertuples():
            setting = " · ".join(filter(None, [named(line.model), line.words]))
            n = Number(str(line.middle.n), str(line.middle.n), f"+ {line.void} void" if line.void else "")
            middle = Number.within(line.middle.median, line.middle)
            times = (None, middle) if line.first else (middle, None)
            ratio = overview.ratio_cell(line.ratio)
            rows.append((line.subject, title, line.weights, setting, line.lengths, n, *times, ratio, line.verdict))
    return Table(heads, rows, frozenset(range(5, 9)))


def runs(behind: Sequence[Recorded]) -> dict[str, overview.Setting]:
    """Those whose answers are shown one by one, by their titles."""
    greedy = sorted(gains.runs(behind), key=lambda run: run.table.path.stem)
    return {" · ".join(filter(None, [run.table.path.stem, named(run.model), run.setting])): run for run in greedy}


def named(model: str) -> str:
    """A model's name, with all that names its file: `qwen2.5-coder-0.5b/q8_0/avx2`. Of a path only its end."""
    folder = "" if Path(model).is_absolute() else model.removeprefix("random:").partition(",")[0].rpartition("/")[0]
    return "/".join(filter(None, [folder, model_label(model)]))


def measured(section: dict, behind: Sequence[Recorded]) -> list[str]:
    """When and where each table of a section was measured, those of one machine together: one line without names where
    all are of one machine."""
    tables = [table for table in behind if table.section is section]
    places = summary.grouped(tables, lambda table: wording.machine_line(table.meta["environment"]))
    if len(places) < 2:
        return [f"{section['created']} on {section['machine']}"] if section["created"] else []
    days = {place: sorted({table.meta["created"][:10] for table in group}) for place, group in places.items()}
    return [
        f"{' to '.join(dict.fromkeys((days[place][0], days[place][-1])))} on {place}:"
        f" {', '.join(table.path.stem for table in group)}"
        for place, group in places.items()
    ]


def linked(section: dict) -> str:
    """Where the page's links to a section's notebook lead."""
    return section["page"] or f"#n{section['number']}"


def versions(behind: Sequence[Recorded], out_dir: Path) -> Table:
    """Where and with what each table was measured."""
    known = [name for name in PACKAGES if any(t.meta["environment"]["packages"].get(name) for t in behind)]
    rows = []
    for path, meta in ((table.path, table.meta) for table in behind):
        env, link = meta["environment"], Markup('<a href="../data/{0}.meta.json">{0}</a>').format(path.stem)
        commit = Markup("<code>{}</code>").format(((env.get("git") or {}).get("commit") or "unknown")[:10])
        machine = wording.machine_line(env).partition(" · jax")[0]
        system = f"{env['os'].partition('-with-')[0]}, Python {env['python']}"
        packages = [env["packages"].get(package) or "" for package in known]
        name = link if path.is_relative_to(out_dir) else path.stem
        rows.append((name, meta["created"], commit, machine, system, *packages))
    return Table(("Table", "Measured", "Commit", "Machine", "System", *known), rows)


def argument_table() -> str:
    """What jit makes of each argument, and once for each name why."""
    table = Table(arguments.SHORT, [row[:-1] for row in arguments.rows()]).markdown()
    names: dict[tuple[str, str], list[str]] = {}
    for what, known in (("static", arguments.STATIC), ("donated", arguments.DONATED)):
        for name, why in known.items():
            names.setdefault((what, why), []).append(name)
    reasons = [f"- {arguments.code(of)} {what}: {why}." for (what, why), of in names.items()]
    return "\n".join([table, "", *reasons])


def write(out_dir: Path) -> Path:
    """Write OUT/docs/index.html and the page of machines beside it, and refresh the results in OUT/README.md, the path
    in OUT/docs/README.md, the table of arguments in OUT/docs/placements.md and those of keys and tensors in
    OUT/docs/files.md."""
    known = sections(out_dir)
    behind = tables(out_dir, known)
    for section in known:
        section["measured"] = measured(section, behind)
    drawn = {f["name"]: dict(f, section=s) for s in known for f in s["figures"]}
    shared = machines.newest(machines.contributed(contribution.FOLDER)[0])
    timed = readme.with_headline(out_dir, behind)
    again = repeats.repeats(run, timed, shared) if (run := readme.with_llama_cpp(timed)) else []
    here = wording.processor(timed[0].table.meta["environment"]) if timed else ""
    places = gains.places(timed, shared, f"{machines.PAGE}.html", readme.serving(behind, linked, here))
    beside = scorecard.table(behind, partial(readme.place, link=linked))
    page = document.render(
        "report.html",
        questions=brief.questions(behind, drawn, places, beside, again),
        home=brief.machine(timed[0].table) if timed else "",
        ties=(gate.NEAR_TIE, gate.FLIP),
        sections=known,
        others=others(out_dir, known),
        subjects=subjects(behind),
        answers=answers.chart(runs(behind)),
        terms=terms(),
        machines=versions(behind, Path(out_dir)),
        left_out=listed(overview.left_out()),
    )
    readme.refresh(out_dir, known, behind, shared, again)
    document.put(Path(out_dir) / "docs" / "README.md", *keys.marks("path"), tour.index)
    document.put(Path(out_dir) / "docs" / "placements.md", *ARGUMENTS, argument_table)
    for name, table in keys.TABLES.items():
        document.put(Path(out_dir) / "docs" / "files.md", *keys.marks(name), table)
    for place, name, table in RECORDED:
        data = partial(table, paths.ROOT / "data" / f"{name}.csv")
        document.put(Path(out_dir) / "docs" / place, *keys.marks(name), data)
    machines.write(out_dir, again=again and repeats.table(again))
    return files.write(Path(out_dir) / "docs" / "index.html", page)
