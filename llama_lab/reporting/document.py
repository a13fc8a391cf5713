"""Tables and pages as README, report, console and export share them: a table is made once and rendered as Markdown,
HTML or lines of a terminal; a page is a template of this folder; Markdown becomes HTML."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import jinja2
import pygments
from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from llama_jax.plumbing import files
from llama_lab.bench import wording
from llama_lab.bench.statistics import Ratio, Summary

PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")
SCROLL = '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>'  # a table within a text


@dataclass(frozen=True)
class Number:
    """A number in a table. value: what a page sorts by; words: what is shown; interval: what stands beside it."""

    value: str
    words: str
    interval: str = ""

    @classmethod
    def within(cls, middle: float, bounds: Summary | Ratio) -> Number:
        """A summary's or a ratio's number with its interval; without one where a single trial has none."""
        return cls(f"{middle:.6g}", short(middle), wording.within(bounds, short).strip())


def short(number: float) -> str:
    """A positive number in three digits or so, without powers: 0.052, 5.24, 35.3, 772, 22,322."""
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.3f}"


@dataclass(frozen=True)
class Link:
    """Words of a table that lead to a page. page: without its suffix."""

    words: str
    page: str

    def __html__(self) -> str:
        return Markup('<a href="{}.html">{}</a>').format(self.page, self.words)

    def __str__(self) -> str:
        return f"[{self.words}]({self.page}.md)"


Cell = str | Number | Link | None  # None: an empty cell. Text that is `Markup` is not escaped in HTML


@dataclass(frozen=True)
class Table:
    """numeric: indices of the columns of numbers, which are aligned to the right. The first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numeric: frozenset[int] = field(default=frozenset())

    def markdown(self) -> str:
        """The table in GitHub's Markdown, without a line break at its end."""
        rules = ["---:" if at in self.numeric else "---" for at in range(len(self.heads))]
        return "\n".join(f"| {' | '.join(map(escaped, row))} |" for row in (self.heads, rules, *self.rows))

    def inline(self) -> Table:
        """The table with its cells, which are Markdown, as HTML."""
        heads, *rows = ([*map(inline, row)] for row in (self.heads, *self.rows))
        return replace(self, heads=heads, rows=rows)


def of_csv(path: Path) -> str:
    """A table of data/ in Markdown, cells as they stand; its first column names the row."""
    heads, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    return Table(heads, rows).markdown()


def of_outcomes(path: Path) -> str:
    """A table of data/ with an outcome a line, in Markdown: a row a client, a column a feature."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    found: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        found.setdefault((line["client"], line["version"]), {})[line["feature"]] = line["outcome"]
    # in the order of the client that has most of them
    features = list(dict.fromkeys(name for outcomes in sorted(found.values(), key=len)[::-1] for name in outcomes))
    rows = [[*client, *map(outcomes.get, features)] for client, outcomes in found.items()]
    return Table(("client", "version", *(feature.replace("_", " ") for feature in features)), rows).markdown()


def escaped(cell: Cell) -> str:
    """A cell's text for Markdown, which cannot end its cell."""
    words = f"{cell.words} {cell.interval}" if isinstance(cell, Number) else str(cell or "")
    return " ".join(words.split()).replace("|", "\\|")


def decimal(value: object, digits: int, scale: float = 1) -> str:
    """A number as text; "" for what is missing, unknown or not finite."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return f"{value * scale:.{digits}f}" if known else ""


def fact(value: object, unit: str = "") -> str:
    """A value with its unit in one line; "" for what is missing or not finite."""
    missing = isinstance(value, jinja2.Undefined) or value in (None, "") or value != value or value == math.inf
    return "" if missing else " ".join(f"{value}{unit}".split())


# Pages ----------------------------------------------------------------------------------------------------------------


@cache
def templates() -> jinja2.Environment:
    loader, strict = jinja2.FileSystemLoader(Path(__file__).parent), jinja2.StrictUndefined
    escape = jinja2.select_autoescape(["html"])  # not in Markdown
    made = jinja2.Environment(loader=loader, autoescape=escape, trim_blocks=True, lstrip_blocks=True, undefined=strict)
    made.filters |= dict(points=wording.points, html=html, inline=inline, highlighted=highlighted)
    made.filters |= dict(number=decimal, fact=fact)
    made.filters["argument"] = argument
    return made


def argument(value: object) -> str:
    """A parameter's value as papermill takes it in a shell: a list in YAML with double quotes."""
    return shlex.quote(json.dumps(value) if isinstance(value, list | dict) else str(value))


def render(template: str, **values) -> str:
    """A document from a template of this folder; in HTML, text is escaped."""
    return templates().get_template(template).render(**values)


def html(source: str) -> tuple[Markup, list[tuple[str, str]]]:
    """(Markdown as HTML, [(id, words) of each heading of the second level]), its links as `link` turns them."""
    tokens, places = PARSER.parse(source), []
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            words = "".join(child.content for child in tokens[at + 1].children)
            token.attrSet("id", anchor(words))
            places.append((anchor(words), words))
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", link(child.attrGet("href")))
    text = PARSER.renderer.render(tokens, PARSER.options, {})
    return Markup(text.replace("<table>", SCROLL).replace("</table>", "</table></div>")), places


def put(path: Path, begin: str, end: str, text: Callable[[], str]) -> None:
    """Put a text between two lines of a document, where there is a document that holds them; it is made only then."""
    if path.is_file():
        before, opened, rest = path.read_text(encoding="utf-8").partition(begin)
        _, closed, after = rest.partition(end)
        if opened and closed:
            files.write(path, f"{before}{begin}\n{text()}\n{end}{after}")


def inline(source: str) -> Markup:
    """A paragraph of Markdown as HTML, without its paragraph."""
    return Markup(PARSER.renderInline(" ".join(source.split())))


def anchor(words: str) -> str:
    """The id of a place with this heading."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def link(target: str, suffix: str = ".html") -> str:
    """A link of a source in `notebooks/` as it leads from `docs/notebooks/`; to another notebook's page of that
    suffix."""
    if re.match(r"[a-z]+:|#", target):
        return target
    place, mark, part = target.partition("#")
    if "/" not in place and place.endswith(".ipynb"):
        place = place.removesuffix(".ipynb") + suffix
    else:
        place = f"../{place}" if place.startswith("../") else f"../../notebooks/{place}"
    return place + mark + part


def highlighted(code: str) -> Markup:
    """Python in colours."""
    return Markup(pygments.highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n"))
