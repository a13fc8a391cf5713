"""A notebook's tables: written where they were measured, or read as recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_lab.bench import environment, provenance, record
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Row, Trial

MEASURE = "measure"  # the other source is "recorded"


def is_measured(source: str) -> bool:
    """Whether a notebook measures, or reads what was recorded. Raises UserError for another source."""
    if source not in ("recorded", MEASURE):
        raise UserError(f"source is {shown(source)}; it must be recorded or {MEASURE}.")
    return source == MEASURE


def journal_plan(parameters: dict, machine: dict, weights_hash: str = "") -> dict:
    """What must match for an interrupted run to resume: settings, weights, machine, libraries and code."""
    return dict(
        parameters=parameters,
        weights_hash=weights_hash,
        source=environment.source_hash(),
        packages=machine["packages"],
        settings=machine["settings"],
        cpu=machine["cpu"],
        affinity=machine["affinity"],
    )


def measured_in(notes: Sequence[dict]) -> dict:
    """The part of the environment that the measuring processes had to themselves, from the notes they left.

    settings, blas, affinity: the last one's, all being started alike. watch: the first load and the last, and the worst
    share of the machine that others took in any of them.
    """
    notes = [note for note in notes if note.get("watch")]
    if not notes:
        return {}
    watches = [note["watch"] for note in notes]
    watch = dict(load_before=watches[0]["load_before"], load_after=watches[-1]["load_after"])
    for kind in ("others_cpu", "steal"):
        watch[kind] = max((w[kind] for w in watches if w[kind] != "unknown"), default="unknown")
    about = {k: notes[-1][k] for k in ("settings", "blas", "affinity")} | dict(watch=watch)
    gflops = [note["gflops"] for note in notes if note.get("gflops")]
    return about | (dict(gflops=max(gflops)) if gflops else {})


def read(name: str, out_dir: str | Path, kind: type[Row] = Trial) -> tuple[list[Row], dict]:
    """The rows of a notebook's table and their meta, from OUT/data, else from the repository."""
    return record.read(table_path(name, out_dir), kind=kind)


def table_path(name: str, out_dir: str | Path) -> Path:
    """OUT/data/NAME.csv where it is, else the repository's."""
    here = Path(out_dir) / "data" / f"{name}.csv"
    return here if here.is_file() else paths.ROOT / "data" / here.name


def write(name: str, out_dir: str | Path, rows: list[Row], journal: Journal, parameters: dict, **about) -> None:
    """A table of rows into OUT/data, its meta with all that the journal knows of them; then the journal goes."""
    about |= dict(environment=journal.about["environment"] | measured_in(journal.notes), parameters=parameters)
    about |= dict(processes=journal.notes, resumed_trials=journal.resumed)
    code = provenance.recorded_now(name, parameters)
    record.write(Path(out_dir) / "data" / f"{name}.csv", rows, journal.kind, code=code, **about)
    journal.discard()


def table_beside(name: str, out_dir: str | Path, rows: Sequence[dict] = ()):
    """A small table that belongs to a notebook's trials, OUT/data/NAME.csv, as a pandas.DataFrame; written first where
    rows are given.

    Read from OUT, else from the repository.
    """
    import pandas as pd

    if rows:
        text = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
        files.write(Path(out_dir) / "data" / f"{name}.csv", text)
    return pd.read_csv(table_path(name, out_dir))


def missing(gaps: Sequence[dict]) -> None:
    """Show what could not run, why, and what would fill the gap; nothing where all ran. gaps: {name, reason,
    remedy}."""
    import pandas as pd
    from IPython.display import display

    if gaps:
        display(pd.DataFrame(list(gaps), columns=["name", "reason", "remedy"]).set_index("name"))
