"""Pages for people: the templates' common part, and an executed notebook as HTML that is the same for the same data."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2
import markupsafe

from llama_jax.plumbing import files, paths
from llama_lab.bench import wording
from llama_lab.figures import read_manifest
from llama_lab.reporting import ipynb

HIDDEN = ("injected-parameters",)  # cells that say where this run wrote: no two are alike
LIVE = "live"  # a cell whose output is another one each time
WIDGET = "application/vnd.jupyter.widget-view+json"
ASK = "Open the notebook (make lab) to see what this does: it is live."
EXECUTED = "Executed, with its figures: ["  # a line of the first cell
NOTHING = dict(finding="", created=None, machine=None, parameters={})  # known of a notebook that answered nothing
EMPTY = "(an empty table: there is nothing to list)"
STYLE = re.compile(r"<style.*?</style>", re.S)
ADDRESS = re.compile(r" at 0x[0-9a-f]+|\x1b\[[0-9;]*m")  # addresses of objects, and colours of a terminal


@cache
def environment() -> jinja2.Environment:
    loader, strict = jinja2.FileSystemLoader(Path(__file__).parent), jinja2.StrictUndefined
    found = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=strict)
    found.filters["points"] = wording.points
    found.filters["argument"] = lambda value: shlex.quote(str(value))  # as a shell takes it
    return found


def render(template: str, **values) -> str:
    return environment().get_template(template).render(**values)


def path_of(name: str, out_dir: str | Path) -> Path:
    """Where a notebook's page lies."""
    return Path(out_dir) / "docs" / "notebooks" / f"{name}.html"


def write(executed: Path, out_dir: str | Path) -> Path:
    """OUT/docs/notebooks/NAME.html from an executed notebook. Its figures are shown from OUT/figures, not put in
    again."""
    name, nb, manifest = executed.stem, ipynb.read(executed), read_manifest(out_dir)
    about = manifest["notebooks"].get(name, NOTHING)
    known, places, parts = drawn(manifest), [], []
    for i, cell in enumerate(cells(nb)):
        if cell.cell_type == "markdown":
            text, found = markdown(opened(cell.source) if i == 0 else cell.source, first=i == 0)
            places += found
            parts.append(dict(text=text))
        elif cell.cell_type == "code" and cell.source.strip():
            parts.append(
                dict(
                    code=highlight(cell.source), label=label(cell), outputs=outputs(cell, known, [out_dir, paths.ROOT])
                )
            )
    about = {
        "question": title(nb) or name,
        **about,
        "name": name,
        "number": name.split("-")[0],
        "reported": name in manifest["notebooks"],
    }
    return files.write(path_of(name, out_dir), render("notebook.html", parts=parts, places=places, **about))


def cells(nb) -> list:
    """A notebook's cells without those that say where this run wrote."""
    return [cell for cell in nb.cells if not set(cell.metadata.get("tags", [])) & set(HIDDEN)]


def drawn(manifest: dict) -> dict[str, tuple[str, str]]:
    """(figure, what it shows) by the digest of its PNG, which is how an executed notebook holds it."""
    return {entry["sha256"]["png"]: (name, entry["alt"]) for name, entry in manifest["figures"].items()}


def opened(source: str) -> str:
    """A notebook's first cell without its line about this page, which leads from here to here."""
    return "".join(line for line in source.splitlines(keepends=True) if not line.startswith(EXECUTED))


def title(nb) -> str:
    """The notebook's first heading, its marks taken out."""
    lines = [
        line
        for cell in nb.cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("# ")
    ]
    return lines[0].removeprefix("# ").replace("`", "") if lines else ""


def label(cell) -> str:
    """What a cell is about, for those who hear the page: its first comment, or its first line."""
    lines = [line for line in cell.source.splitlines() if line.strip()]
    return "parameters" if "parameters" in cell.metadata.get("tags", []) else lines[0].lstrip("# ").strip()[:100]


def heading(page: Path) -> str:
    """The heading of a page."""
    found = re.search(r"<h1>(.*?)</h1>", page.read_text(encoding="utf-8"), re.S)
    return markupsafe.Markup(found[1]).striptags() if found else page.stem


# Text -----------------------------------------------------------------------------------------------------------------


def markdown(source: str, first: bool = False) -> tuple[markupsafe.Markup, list[tuple[str, str]]]:
    """(HTML, [(id, words) of each heading of the second level]). A first cell's title is left out: the page has it.

    Links are turned from `notebooks/`, where the source lies, to `docs/notebooks/`; one to a notebook leads to its
    page.
    """
    from markdown_it import MarkdownIt

    md = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens, places = md.parse(source), []
    if first and tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        tokens = tokens[3:]
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            words = "".join(child.content for child in tokens[at + 1].children)
            token.attrSet("id", anchor(words))
            places.append((token.attrGet("id"), words))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", link(child.attrGet("href")))
    text = md.renderer.render(tokens, md.options, {})
    text = text.replace("<table>", '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>')
    return markupsafe.Markup(text.replace("</table>", "</table></div>")), places


def anchor(words: str) -> str:
    """The id of a place with this heading."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def inline(source: str) -> markupsafe.Markup:
    """A paragraph of Markdown without its paragraph."""
    from markdown_it import MarkdownIt

    return markupsafe.Markup(MarkdownIt("commonmark", {"html": False}).renderInline(" ".join(source.split())))


def link(target: str, suffix: str = ".html") -> str:
    """Where a link of a notebook leads from its page; to another notebook's page of that suffix."""
    if re.match(r"[a-z]+:|#", target):
        return target
    place, mark, part = target.partition("#")
    if "/" not in place and place.endswith(".ipynb"):
        place = place.removesuffix(".ipynb") + suffix
    else:
        place = f"../{place}" if place.startswith("../") else f"../../notebooks/{place}"
    return place + mark + part


def highlight(code: str) -> markupsafe.Markup:
    from pygments import highlight as painted
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return markupsafe.Markup(painted(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n"))


# Outputs --------------------------------------------------------------------------------------------------------------


def outputs(cell, known: dict[str, tuple[str, str]], homes: Sequence[str | Path]) -> list[dict]:
    """What a cell left, in the order it did, as {figure, alt, kept}, {table}, {text} or {words}; of a live cell, where
    to see it."""
    if cell.outputs and LIVE in cell.metadata.get("tags", []):
        return [dict(words=ASK)]
    found = [shown(out, known, label(cell), homes) for out in cell.outputs if out.get("name") != "stderr"]
    return [out for out in found if out]


def shown(out, known: dict[str, tuple[str, str]], about: str, homes: Sequence[str | Path]) -> dict:
    """One output. A picture that is in the manifest is `kept`, shown from figures/ with the words that describe it;
    text has its `source` in Markdown beside it; {} for nothing."""
    data = out.get("data", {})
    if WIDGET in data:
        return dict(words=ASK)
    if "image/png" in data:
        name, alt = known.get(hashlib.sha256(base64.b64decode(data["image/png"])).hexdigest(), ("", about))
        source = f"../../figures/{name}.svg" if name else f"data:image/png;base64,{''.join(data['image/png'].split())}"
        return dict(figure=source, alt=alt, kept=bool(name))
    if "text/markdown" in data:
        source = plain(data["text/markdown"], homes)
        return dict(text=markdown(source)[0], source=source)
    if "text/html" in data and "<table" in data["text/html"]:
        found = table(plain(data["text/html"], homes))
        return dict(table=found) if found.striptags() else dict(words=EMPTY)
    words = plain(out.text if out.output_type == "stream" else data.get("text/plain", ""), homes)
    return dict(words=words.strip("\n")) if words.strip() else {}


def plain(text: str, homes: Sequence[str | Path]) -> str:
    """The text without what is another one on each machine and in each run: folders, places in memory."""
    for home in homes:
        text = text.replace(f"{home}/", "").replace(str(home), ".")
    return ADDRESS.sub("", text)


def table(text: str) -> markupsafe.Markup:
    """A data frame's HTML without its own style and the ids of a styled one, which are drawn by lot; an empty corner is
    no heading."""
    text = re.sub(r' (?:id="T_[^"]*"|border="1"|style="text-align: right;")', "", STYLE.sub("", text))
    text = re.sub(r"<th[^>]*>(?:&nbsp;)?</th>", "<td></td>", text)
    return markupsafe.Markup(re.sub(r">\s+<", "><", text).strip())
