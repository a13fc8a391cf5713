"""The headline measured here: its table, its figure and its sentence, beside the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing import paths
from llama_lab import figures
from llama_lab.bench import recorded, summary
from llama_lab.bench.progress import Progress
from llama_lab.experiments.headline import chart, measure
from llama_lab.experiments.headline.measure import NAME, QUESTION


def obtain(amount: measure.Amount, out_dir: Path, progress: Progress) -> tuple[list, dict]:
    """Measured now and written to OUT/data; resumes after an interruption."""
    return amount.obtain("measure", NAME, out_dir, progress)


def read(out_dir: Path) -> tuple[list, dict]:
    """As recorded, in OUT, else in the repository."""
    return recorded.read(NAME, out_dir)


def published(other: dict) -> list[dict]:
    """The published table's entries; none before one is recorded, and none beside itself. other: the meta of what it is
    to stand beside."""
    if not (paths.ROOT / "data" / f"{NAME}.csv").is_file():
        return []
    trials, meta = read(paths.ROOT)
    return summary.table(trials, meta["baseline"], meta["subjects"]) if meta["sha256"] != other["sha256"] else []


def draw(trials: list, meta: dict, out_dir: Path) -> list[str]:
    """The figure and the answer of a headline, into OUT's manifest, the published one beside it; returns the answer's
    `lines`."""
    table, theirs = summary.table(trials, meta["baseline"], meta["subjects"]), published(meta)
    answer = lines(trials, meta, table, theirs)
    words = " ".join(answer)
    note = ", ".join(filter(None, [figures.model_label(meta["parameters"]["model"]), summary.disturbed(table)]))
    figure = chart.rates(trials, table, theirs)
    figures.save(figure, f"{NAME}-rates", NAME, meta, meta["parameters"], words, out_dir, note)
    figures.conclude(NAME, QUESTION, words, meta, out_dir)
    return answer


def lines(trials: list, meta: dict, table: Sequence[dict], theirs: Sequence[dict]) -> list[str]:
    """The results here, compared with the published ones. table, theirs: the entries of both."""
    together = chart.beside(table, theirs)
    beside = [f"Beside the published machine, in tokens/s: {together}."] if together else []
    gaps = [f"{gap['name']} is missing: {gap['reason']} {gap['remedy']}".strip() for gap in meta["missing"]]
    return [chart.finding(trials), *beside, *gaps]
