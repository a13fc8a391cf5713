"""What a notebook leaves for its readers: figures under its name, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from llama_lab.figures.style import conclude, display, save


@dataclass(frozen=True)
class Page:
    """A notebook's figures, each saved as NAME-topic and shown in its cell, and its answer, in OUT's manifest.

    name: the notebook's, such as `03-jit-placement`. meta: of the table that it draws from. notes: labels that every
    figure carries (the model, its random weights, how long the answers are); empty ones are left out.
    """

    name: str
    question: str
    out_dir: str | Path
    meta: dict | None
    notes: tuple[str, ...] = ()

    def keep(self, figure: Figure, topic: str, alt: str, *more: str, meta: dict | None = None, notes=None) -> None:
        """Save a figure and show it. alt: what it shows, in words. more: further labels; notes: in place of all the
        page's. meta: of another table, where it is drawn from that."""
        about = meta or self.meta
        words = ", ".join(filter(None, [*(self.notes if notes is None else notes), *more]))
        display(save(figure, f"{self.name}-{topic}", self.name, about, about["parameters"], alt, self.out_dir, words))

    def answer(self, finding: str) -> None:
        """Print the answer, and keep it beside the question."""
        print(conclude(self.name, self.question, finding, self.meta, self.out_dir))
