"""The style of all figures, and `save`: every figure the same bytes for the same data, listed in the manifest.

Colours: Okabe & Ito's palette for colour-blind readers (https://jfly.uni-koeln.de/color/), one colour per subject
everywhere (COLOURS): XLA's programs are violet to navy, compiled kernels vermilion or orange, llama.cpp green, PyTorch
purple. Labels and markers also distinguish subjects, never colour alone. A figure's title is its finding.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from pydantic import Field

from llama_jax.plumbing import boundary, files
from llama_jax.plumbing.boundary import Declared
from llama_lab.bench import AGAIN, provenance, wording
from llama_lab.bench.wording import probed
from llama_lab.figures.rounding import the_same_everywhere
from llama_lab.figures.svg import themed

PALETTE = {
    "black": "#000000", "orange": "#E69F00", "sky": "#56B4E9", "green": "#009E73",
    "yellow": "#F0E442", "blue": "#0072B2", "vermilion": "#D55E00", "purple": "#CC79A7",
}  # fmt: skip
COLOURS = {  # a subject's in every figure: placements from violet to navy, by how much of a token is one program
    "eager": "#7F7F7F", "ops": "#B39DDB", "layer": "#8E63C7", "split": "#5E2CA5", "step": PALETTE["blue"],
    "step+donate": PALETTE["sky"], "chunk8": "#3F5FBF", "loop": "#0B2545",
    "fused": PALETTE["vermilion"], "gemv": PALETTE["orange"],  # compiled kernels under any placement
    "llamacpp": PALETTE["green"], "ik-llamacpp": "#66C2A5", "ollama": "#8C7A00", "openvino": "#8C510A",
    "torch": PALETTE["purple"], "transformers": PALETTE["purple"], "flax": "#882255",
}  # fmt: skip
RUNTIMES = ("llamacpp", "ik-llamacpp", "ollama", "openvino", "torch", "transformers", "flax")
OTHERS = ("#44AA99", "#999933", "#AA4499", "#332288", "#117733", "#BB5566")  # Tol's, for one's own placements
STAGES = dict(zip(("trace", "lower", "compile", "run"), OTHERS, strict=False))  # parts of time: no subject's
STYLE = {
    "font.size": 11, "font.family": "DejaVu Sans", "svg.fonttype": "path", "figure.facecolor": "white",
    "figure.constrained_layout.use": True, "legend.frameon": False, "axes.titlesize": 11,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.alpha": 0.25,
}  # fmt: skip
LIMIT_COLOUR, GREY = "#B00020", "#555555"
TITLE = 13  # points of a headline
ARITHMETIC = re.compile(r"(?<!or )(arithmetic|compute) limit")  # a limit that bandwidth does not set
UNSIGNED = {"Software": None}  # of a PNG: Matplotlib would write its version


def colour(subject: str) -> str:
    """The subject's colour, the same in every figure. Subjects outside COLOURS get the colour of their kernels, of the
    placement that they are a variant of (`step+scan`, `step exact`, `step (again)`) or of their runtime
    (`torch-compile`); your own placement gets a stable colour."""
    name = subject.removesuffix(AGAIN).partition(" ")[0]
    kernels = next((k for k in ("fused", "gemv") if f"+{k}" in name), "")
    runtime = next((r for r in RUNTIMES if name.startswith(r)), "")
    for known in (kernels, name, name.partition("+")[0], runtime):
        if known in COLOURS:
            return COLOURS[known]
    return OTHERS[zlib.crc32(name.encode()) % len(OTHERS)]


def model_label(name: str) -> str:
    """A model's name short enough for a figure: `random:gpt2,num_hidden_layers=2` →
    `gpt2, other sizes, random weights`."""
    preset, _, changes = name.removeprefix("random:").partition(",")
    notes = ["other sizes"] * bool(changes) + ["random weights"] * name.startswith("random:")
    return ", ".join([Path(preset).name, *notes])


def save(
    figure: Figure,
    name: str,
    notebook: str,
    meta: dict,
    parameters: dict,
    alt: str,
    out_dir: str | Path,
    note: str = "",
) -> dict[str, Path]:
    """Write NAME.svg and NAME.png under `out_dir`/figures, byte for byte the same for the same data, and list them in
    the manifest, with a complaint where the table is not of today's code.

    meta: of the table the figure was drawn from. alt: what the figure shows, for those who cannot see it. note: labels
    that belong in the figure itself (small sample, random weights). A run on a busy machine is flagged, and a figure
    that draws a limit says from which bandwidth.
    """
    around = meta["environment"]
    place = (wording.machine_line(around), meta["created"][:10])
    drawn = (text.get_text() for text in figure.findobj(Text))
    limit = any("limit" in text and not ARITHMETIC.search(text) for text in drawn)
    line = " · ".join(filter(None, (*place, note, probed(meta) if limit else "", wording.busy(meta))))
    figure.draw_without_rendering()  # a legend may reach below the figure
    # it is laid out; the line below makes the page larger, which would draw a legend along
    figure.set_layout_engine("none")
    for legend in figure.legends:
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=figure.transFigure)
    below = min(0.0, figure.get_tightbbox().y0 / figure.get_figheight()) - 0.005
    figure.text(0.005, below, wrapped(figure, line, 7.5), fontsize=7.5, color=GREY, va="top")
    folder, paths, hashes = Path(out_dir) / "figures", {}, {}
    for kind, options in dict(svg=dict(metadata={"Date": None}), png=dict(dpi=150, metadata=UNSIGNED)).items():
        buffer = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": name}), the_same_everywhere(figure):
            figure.savefig(buffer, format=kind, bbox_inches="tight", **options)
        drawn = buffer.getvalue()
        drawn = themed(drawn.decode()).encode() if kind == "svg" else drawn
        paths[kind] = folder / f"{name}.{kind}"
        files.write(paths[kind], drawn)
        hashes[kind] = hashlib.sha256(drawn).hexdigest()
    plt.close(figure)
    entry = dict(notebook=notebook, parameters=parameters, data_sha256=meta["sha256"], sha256=hashes, alt=alt)
    if complaint := provenance.complaint(meta):
        entry["complaint"] = complaint
    update_manifest(out_dir, "figures", name, entry)
    return paths


def headline(figure: Figure, finding: object) -> None:
    """The figure's title, which is what it shows, as wide as the figure; names in backticks stand without them."""
    text = wrapped(figure, str(finding).removesuffix(".").replace("`", ""), TITLE, bold=True)
    figure.suptitle(text, x=0.005, ha="left", fontsize=TITLE, fontweight="bold")


def footnote(figure: Figure, words: str) -> None:
    """Small words below a figure's axes, as wide as the figure; nothing for none."""
    if words:
        figure.supxlabel(wrapped(figure, words, 8), x=0.005, ha="left", fontsize=8, color=GREY)


def wrapped(figure: Figure, text: str, size: float, bold: bool = False) -> str:
    """A text in as few lines as fit the figure's width at a font size, of about equal length, so that no last word
    stands alone."""
    font = FontProperties(family=STYLE["font.family"], size=size, weight="bold" if bold else "normal")
    room, words = 0.985 * 72 * figure.get_figwidth(), text.split(" ")

    def width(words: Sequence[str]) -> float:
        return text_to_path.get_text_width_height_descent(" ".join(words).replace("$", ""), font, ismath=False)[0]

    def lines(room: float) -> list[list[str]]:
        broken = [words[:1]]
        for word in words[1:]:
            if width([*broken[-1], word]) <= room:
                broken[-1].append(word)
            else:
                broken.append([word])
        return broken

    fewest = len(lines(room))
    shares = (share for share in np.linspace(1 / fewest, 1, 20) if len(lines(share * room)) == fewest)
    return "\n".join(map(" ".join, lines(next(shares) * room)))


def display(paths: dict[str, Path]) -> None:
    """Show a saved figure in a notebook."""
    from IPython.display import Image
    from IPython.display import display as show

    show(Image(filename=str(paths["png"]), width=900))


def glance(figure: Figure) -> None:
    """Show a figure of what the cells above have just computed, without saving it."""
    from IPython.display import Image
    from IPython.display import display as show

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, bbox_inches="tight", metadata=UNSIGNED)
    plt.close(figure)
    show(Image(data=buffer.getvalue(), width=700))


Name = Annotated[str, Field(pattern=r"^[\w-]{1,200}$")]  # of a file without its suffix


class Drawn(Declared):
    """A figure in the manifest."""

    notebook: Name
    parameters: dict[str, Any]
    data_sha256: str
    sha256: dict[Literal["svg", "png"], str] = Field(min_length=2)
    alt: str
    complaint: str = ""


class Answered(Declared):
    """A notebook in the manifest; without a machine where nothing was measured yet."""

    question: str
    finding: str
    parameters: dict[str, Any]
    created: str | None
    machine: str | None


class Manifest(Declared):
    figures: dict[Name, Drawn]
    notebooks: dict[Name, Answered]


def read_manifest(out_dir: str | Path) -> dict:
    """What is drawn and answered in OUT; nothing yet if there is no manifest. Raises UserError for a damaged one."""
    path, remedy = Path(out_dir) / "figures" / "manifest.json", "Remove it, and draw the figures again."
    try:
        manifest = boundary.load(path, remedy=remedy)
    except FileNotFoundError:
        return {"figures": {}, "notebooks": {}}
    boundary.read(Manifest, manifest, str(path), remedy)
    return manifest


def update_manifest(out_dir: str | Path, section: str, name: str, entry: dict) -> None:
    """A lock on the manifest, because notebooks are drawn in parallel."""
    path = Path(out_dir) / "figures" / "manifest.json"
    with files.alone(path.parent):
        manifest = read_manifest(out_dir)
        manifest[section][name] = entry
        files.write(path, json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def conclude(notebook: str, question: str, finding: str, meta: dict | None, out_dir: str | Path) -> str:
    """Put a notebook's question and computed answer in the manifest; returns the answer. meta: None if nothing was
    measured yet."""
    about = dict(question=question, finding=finding, parameters={}, created=None, machine=None)
    if meta:
        about |= {k: meta[k] for k in ("parameters", "created")}
        about |= dict(machine=wording.machine_line(meta["environment"]))
    update_manifest(out_dir, "notebooks", notebook, about)
    return finding


@dataclass(frozen=True)
class Page:
    """A notebook's figures, each saved as NAME-topic and shown in its cell, and its answer, in OUT's manifest.

    name: the notebook's, such as `02-jit-placement`. meta: of the table that it draws from. notes: labels that every
    figure carries (the model, its random weights, how long the answers are); empty ones are left out.
    """

    name: str
    question: str
    out_dir: str | Path
    meta: dict | None
    notes: tuple[str, ...] = ()

    def keep(
        self, figure: Figure, topic: str, alt: str, *more: str, meta: dict | None = None, notes=None, runs=None
    ) -> None:
        """Save a figure and show it. alt: what it shows, in words. more: further labels; notes: in place of all the
        page's. meta: of another table, where it is drawn from that. runs: part of the names of those that its one
        limit is from, of a table of several runs; "" of all."""
        about = meta or self.meta
        if runs is not None:
            about = wording.pooled(about, runs)
        words = ", ".join(filter(None, [*(self.notes if notes is None else notes), *more]))
        display(save(figure, f"{self.name}-{topic}", self.name, about, about["parameters"], alt, self.out_dir, words))

    def answer(self, finding: str) -> None:
        """Print the answer, and keep it beside the question."""
        print(conclude(self.name, self.question, finding, self.meta, self.out_dir))


def new(width: float = 9, height: float = 4.5, columns: int = 1, lines: int = 1, **options):
    """A figure of axes side by side, in one line or several; call it from a styled function."""
    return plt.subplots(lines, columns, figsize=(width, height), **options)


def styled(function):
    """Draw in this style, whatever the notebook has set."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE, "backend": matplotlib.get_backend()}):
            return function(*args, **kwargs)

    return wrapper
