"""What `notebooks/00-start-here.ipynb` shows of the others: their questions, from their titles, and their answers, from
the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.bench.wording import listed, opening
from llama_lab.reporting import ipynb, notebooks
from llama_lab.reporting.document import Table


@dataclass(frozen=True)
class Question:
    """One notebook: its name, the question in its title, and its recorded answer. answered: whether it was measured."""

    name: str
    question: str
    answer: str
    answered: bool


def questions(out_dir: str | Path = paths.ROOT) -> list[Question]:
    """All notebooks except those that summarise the others, in order; answers as recorded in OUT, else in the
    repository."""
    known = {**figures.read_manifest(paths.ROOT)["notebooks"], **figures.read_manifest(out_dir)["notebooks"]}
    asked = []
    for path in notebooks.find():
        if not ipynb.about(path).last:
            entry = known.get(path.stem, dict(finding="", created=None))
            title = ipynb.title(ipynb.read(path))
            asked.append(Question(path.stem, title, entry["finding"], bool(entry["created"])))
    return asked


def as_markdown(asked: Sequence[Question]) -> str:
    """The questions as a table; each leads to its notebook."""
    rows = [(f"[{q.name}]({q.name}.ipynb)", q.question, opening(q.answer) or "not measured yet") for q in asked]
    return Table(("notebook", "question", "the recorded answer begins"), rows).markdown()


def index() -> str:
    """The path for docs/README.md: each notebook with its question, core and appendix apart. Those that wait for data
    stand behind it."""
    parts = {"Core": [], "Appendix": [], "Not measured yet": []}
    for path in notebooks.sources():
        place = "Core" if notebooks.is_core(path.stem) else "Appendix"
        row = f"[{path.stem}](notebooks/{path.stem}.md)", ipynb.title(ipynb.read(path))
        parts[place if notebooks.has_data(path) else "Not measured yet"].append(row)
    heads = "notebook", "question"
    return "\n\n".join(f"### {part}\n\n{Table(heads, rows).markdown()}" for part, rows in parts.items() if rows)


def finding(asked: Sequence[Question]) -> str:
    """How many questions have an answer, and that of the main one."""
    first = next((q for q in asked if q.name in notebooks.saying("headline")), asked[0])
    waiting = [q.name.split("-")[0] for q in asked if not q.answered]
    verb = "waits" if len(waiting) == 1 else "wait"
    gaps = f" (notebook{'s' * (len(waiting) > 1)} {listed(waiting)} {verb} to be measured)" if waiting else ""
    words = opening(first.answer) if first.answered else "nothing is recorded for it yet, so measure it."
    count = f"Of {len(asked)} questions {len(asked) - len(waiting)} are answered from recorded trials{gaps}"
    return f"{count}. The central one is {first.name}: {words}"


def picture(name: str, out_dir: str | Path = paths.ROOT) -> dict[str, Path]:
    """A recorded figure for `figures.display`, as drawn in OUT, else in the repository."""
    drawn = Path(out_dir) / "figures" / f"{name}.png"
    return {"png": drawn if drawn.is_file() else paths.ROOT / "figures" / drawn.name}
