"""What `notebooks/00-start-here.ipynb` says of the others: their questions, from their own titles, and what is known,
from the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.bench.wording import opening
from llama_lab.reporting import notebooks


@dataclass(frozen=True)
class Question:
    """One notebook: its name, the question in its title, and its recorded answer. answered: whether anything was
    measured for it."""

    name: str
    question: str
    answer: str
    answered: bool

    @property
    def number(self) -> str:
        return self.name.split("-")[0]

    @property
    def begins(self) -> str:
        """The answer's first sentence, or as much of it as a table has room for."""
        return opening(self.answer)


def title(notebook: Path) -> str:
    """The first line of a notebook, without its mark of a heading."""
    return notebooks.read(notebook).cells[0].source.partition("\n")[0].lstrip("# ").strip()


def questions(out_dir: str | Path = paths.ROOT) -> list[Question]:
    """All notebooks but those that sum up the others, in order; answers as recorded in OUT, else in the repository."""
    known = {**figures.read_manifest(paths.ROOT)["notebooks"], **figures.read_manifest(out_dir)["notebooks"]}
    found = []
    for path in notebooks.find():
        if not notebooks.about(path).last:
            entry = known.get(path.stem, dict(finding="", created=None))
            found.append(Question(path.stem, title(path), entry["finding"], bool(entry["created"])))
    return found


def as_markdown(asked: Sequence[Question]) -> str:
    """The questions as a table; each leads to its notebook."""

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    rows = [
        f"| [{q.name}]({q.name}.ipynb) | {cell(q.question)} | {cell(q.begins) or 'not measured yet'} |" for q in asked
    ]
    return "\n".join(["| notebook | question | the recorded answer begins |", "|:--|:--|:--|", *rows])


def finding(asked: Sequence[Question]) -> str:
    """How many questions have an answer, and that of the main one."""
    main = notebooks.saying("headline")
    first = next((q for q in asked if q.name in main), asked[0])
    known, open_ = [q for q in asked if q.answered], [q.number for q in asked if not q.answered]
    waiting = f" ({', '.join(open_)} {'waits' if len(open_) == 1 else 'wait'} to be measured)" if open_ else ""
    words = first.answer if first.answered else "nothing is recorded for it yet, so measure it."
    count = f"of {len(asked)} questions {len(known)} are answered from recorded trials{waiting}"
    return f"Read in the order of the table: {count}. The central one is {first.name}: {words}"


def picture(name: str, out_dir: str | Path = paths.ROOT) -> dict[str, Path]:
    """A recorded figure for `figures.display`, as drawn in OUT, else in the repository."""
    file = Path("figures") / f"{name}.png"
    return {
        "png": next(
            (home / file for home in map(Path, (out_dir, paths.ROOT)) if (home / file).is_file()), paths.ROOT / file
        )
    }
