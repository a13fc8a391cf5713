"""An executed notebook as a page, and as Markdown for forges that do not show HTML: text, code, outputs, linked
figures, the same bytes for the same data."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from llama_jax.plumbing import files, paths
from llama_lab.bench import notebook
from llama_lab.figures import read_manifest
from llama_lab.reporting import document, ipynb

HIDDEN = "injected-parameters"  # a cell that says where this run wrote: no two are alike
LIVE = "live"  # a cell whose output is another one each time
WIDGET = "application/vnd.jupyter.widget-view+json"
ASK = "Open the notebook (make lab) to see what this does: it is live."
EXECUTED = "Executed, with its figures: ["  # a line of the first cell, which leads to these pages
MOVED = {  # pages of former names: suffix → text
    ".html": '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{0}</title>'
    '<meta http-equiv="refresh" content="0; url={0}.html"></head>\n'
    '<body><p>This notebook is called <a href="{0}.html">{0}</a> now.</p></body></html>\n',
    ".md": "This notebook is called [{0}]({0}.md) now.\n",
}
NOTHING = dict(finding="", created=None, machine=None, parameters={})  # known of a notebook that answered nothing
EMPTY = "(an empty table: there is nothing to list)"
STYLE = re.compile(r"<style.*?</style>", re.S)
ADDRESS = re.compile(r" at 0x[0-9a-f]+|\x1b\[[0-9;]*m")  # addresses of objects, and colours of a terminal
LINK = re.compile(r"(\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"(^(`{3,}).*?^\2`*$)", re.M | re.S)  # of a block of code, which has no links
TICKS = re.compile(r"^`{3,}", re.M)


@dataclass(frozen=True)
class Part:
    """A part of a page.

    kind: `text` (Markdown), `code` (Python), `words` (plain), `table` (HTML), `figure` (the address of one that the
    manifest describes) or `picture` (the address of another one). label: for those who hear the page.
    """

    kind: str
    content: str
    label: str
    outputs: Sequence[Part] = ()


@dataclass(frozen=True)
class Known:
    """What outputs are told by. figures: (name, what it shows) by the digest of its PNG. homes: folders that are left
    out of what outputs say."""

    figures: dict[str, tuple[str, str]]
    homes: Sequence[str | Path]

    def anonymous(self, text: str) -> str:
        """The text without what differs between machines and runs: folders, addresses in memory."""
        for home in self.homes:
            text = text.replace(f"{home}/", "").replace(str(home), ".")
        return ADDRESS.sub("", text)


def path_of(name: str, out_dir: str | Path) -> Path:
    """A notebook's page; its Markdown is beside it."""
    return Path(out_dir) / "docs" / "notebooks" / f"{name}.html"


def write(executed: Path, out_dir: str | Path) -> Path:
    """OUT/docs/notebooks/NAME.html, and NAME.md beside it, from an executed notebook; returns the page. Figures are
    shown from OUT/figures, not put in again."""
    name, nb, manifest = executed.stem, ipynb.read(executed), read_manifest(out_dir)
    reported = manifest["notebooks"].get(name)
    about = dict(NOTHING, question=ipynb.title(nb).replace("`", "") or name, name=name, number=name.split("-")[0])
    about |= dict(reported or {}, reported=reported is not None)
    about["parameters"] = other_than_declared(nb, about["parameters"])
    figures = {entry["sha256"]["png"]: (figure, entry["alt"]) for figure, entry in manifest["figures"].items()}
    parts, page = parts_of(nb, Known(figures, [out_dir, paths.ROOT])), path_of(name, out_dir)
    places = [place for part in parts if part.kind == "text" for place in document.html(part.content)[1]]
    texts = [as_markdown(shown, name) for part in parts for shown in (part, *part.outputs)]
    files.write(page.with_suffix(".md"), document.render("notebook.md", texts=[*filter(None, texts)], **about))
    return files.write(page, document.render("notebook.html", parts=parts, places=places, **about))


def other_than_declared(nb, parameters: dict) -> dict:
    """The recorded parameters that differ from those in the notebook's cell, which are for a short run."""
    cells = [cell.source for cell in nb.cells if "parameters" in cell.metadata.get("tags", [])]
    declared = notebook.declared(cells[0]) if cells else {}
    return {name: value for name, value in parameters.items() if declared.get(name) != value}


def lead(former: str, name: str, out_dir: str | Path) -> None:
    """Write the pages of a notebook's former name, which lead to those of today's."""
    for suffix, text in MOVED.items():
        files.write(path_of(former, out_dir).with_suffix(suffix), text.format(name))


# What a notebook holds ------------------------------------------------------------------------------------------------


def parts_of(nb, known: Known) -> list[Part]:
    """The cells without those that say where this run wrote, and without the title and the line that links here."""
    cells, parts = [cell for cell in nb.cells if HIDDEN not in cell.metadata.get("tags", [])], []
    for cell in cells:
        source, label = cell.source, ipynb.label(cell, 100)
        if cell is cells[0] and cell.cell_type == "markdown":
            lines = [line for line in source.splitlines(keepends=True) if not line.startswith(EXECUTED)]
            source = re.sub(r"\A# .*", "", "".join(lines))
        if cell.cell_type == "markdown":
            parts.append(Part("text", source, label))
        elif cell.cell_type == "code" and source.strip():
            outputs = [output(out, known, label) for out in cell.outputs if out.get("name") != "stderr"]
            if cell.outputs and LIVE in cell.metadata.get("tags", []):
                outputs = [Part("words", ASK, label)]
            parts.append(Part("code", source, label, [part for part in outputs if part.content]))
    return parts


def output(out, known: Known, label: str) -> Part:
    """One output of a cell; without content for nothing."""
    data = out.get("data", {})
    if WIDGET in data:
        return Part("words", ASK, label)
    if "image/png" in data:
        name, alt = known.figures.get(hashlib.sha256(base64.b64decode(data["image/png"])).hexdigest(), ("", label))
        if name:
            return Part("figure", f"../../figures/{name}.svg", alt)
        return Part("picture", f"data:image/png;base64,{''.join(data['image/png'].split())}", label)
    if "text/markdown" in data:
        return Part("text", known.anonymous(data["text/markdown"]), label)
    if "text/html" in data and "<table" in data["text/html"]:
        table = frame(known.anonymous(data["text/html"]))
        return Part("table", table, label) if table.striptags() else Part("words", EMPTY, label)
    words = known.anonymous(out.text if out.output_type == "stream" else data.get("text/plain", ""))
    return Part("words", words.strip("\n") if words.strip() else "", label)


def frame(text: str) -> Markup:
    """A data frame's HTML without its own style and without the random ids of a styled one; an empty corner is not a
    heading."""
    text = re.sub(r' (?:id="T_[^"]*"|border="1"|style="text-align: right;")', "", STYLE.sub("", text))
    text = re.sub(r"<th[^>]*>(?:&nbsp;)?</th>", "<td></td>", text)
    return Markup(re.sub(r">\s+<", "><", text).strip())


def as_markdown(part: Part, page: str) -> str:
    """One part as Markdown. A table is HTML, which Markdown lets through. Links change from `notebooks/` to
    `docs/notebooks/`, except in code; nothing inside a code block ends its fence."""
    match part.kind:
        case "text":
            texts = FENCE.split(part.content)  # text, block, its fence, text, …
            turned = [LINK.sub(lambda m: m[1] + document.link(m[2], ".md"), text) for text in texts[::3]]
            return "".join(text + block for text, block in zip(turned, [*texts[1::3], ""], strict=True)).strip()
        case "code" | "words":
            ticks = "`" * max(3, *(len(run) + 1 for run in TICKS.findall(part.content)), 3)
            language = "python" if part.kind == "code" else "text"
            return f"{ticks}{language}\n{part.content.strip(chr(10))}\n{ticks}"
        case "figure":
            return f"![{part.label}]({part.content})"
        case "picture":
            return f"*A picture of this run: see [the page]({page}.html).*"
    return str(part.content)
