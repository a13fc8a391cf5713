"""A notebook's data: measured now and kept, or read as recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from llama_jax import checkpoint
from llama_jax.plumbing import files, paths, runtime
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import environment, provenance, record
from llama_lab.bench.journal import Journal
from llama_lab.bench.record import Row, Trial


def journal_plan(parameters: dict, machine: dict, weights_hash: str = "") -> dict:
    """What must be the same for an interrupted run to go on: settings, weights, machine, libraries and code."""
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
    seen = [note["watch"] for note in notes]
    shares = {
        kind: max((w[kind] for w in seen if w[kind] != "unknown"), default="unknown")
        for kind in ("others_cpu", "steal")
    }
    watch = dict(load_before=seen[0]["load_before"], load_after=seen[-1]["load_after"], **shares)
    gflops = [note["gflops"] for note in notes if note.get("gflops")]
    return {
        **{k: notes[-1][k] for k in ("settings", "blas", "affinity")},
        "watch": watch,
        **({"gflops": max(gflops)} if gflops else {}),
    }


def obtain(
    source: str,
    name: str,
    out_dir: str | Path,
    parameters: dict,
    measure: Callable[[Journal], tuple[list[Row], dict]],
    also: object = None,
    kind: type[Row] = Trial,
) -> tuple[list[Row], dict]:
    """A notebook's trials and their meta: measured now and written to OUT/data/NAME.csv, or as recorded.

    measure(journal) returns trials and what the meta file should say of them. The journal lies in OUT/out/journal: a
    run that was interrupted goes on from it when it is started again with the same parameters, weights, code and
    machine. also: what else makes it the same run, such as placements of one's own; its `repr` counts. kind: what a row
    is, a Trial by default. Recorded data are read from OUT, else from the repository. Raises UserError for another
    `source`.
    """
    here = Path(out_dir) / "data" / f"{name}.csv"
    if source == "measure":
        before = environment.capture()
        runtime.warn(before["runtime"])
        weights = checkpoint.find(parameters["model"]).hash() if "model" in parameters else ""
        plan = {**journal_plan(parameters, before, weights), "also": repr(also)}
        digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
        journal = Journal(
            Path(out_dir) / "out" / "journal" / f"{name}-{digest}.jsonl", plan, kind=kind, environment=before
        )
        trials, meta = measure(journal)
        around = {**before, **measured_in(journal.notes)}
        record.write(
            here,
            trials,
            kind,
            environment=around,
            parameters=parameters,
            processes=journal.notes,
            resumed_trials=journal.resumed,
            code=provenance.recorded_now(name, parameters),
            **meta,
        )
        journal.discard()
    elif source != "recorded":
        raise UserError(f"source is {source!r}; it must be recorded or measure.")
    return record.read(here if here.is_file() else paths.ROOT / "data" / here.name, kind=kind)


def table_beside(name: str, out_dir: str | Path, rows: Sequence[dict] = ()):
    """A small table that belongs to a notebook's trials, OUT/data/NAME.csv, as a pandas.DataFrame; written first where
    rows are given.

    Read from OUT, else from the repository.
    """
    import pandas as pd

    here = Path(out_dir) / "data" / f"{name}.csv"
    if rows:
        files.write(here, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    return pd.read_csv(here if here.is_file() else paths.ROOT / "data" / here.name)


def missing(gaps: Sequence[dict]):
    """What could not run, why, and what would fill the gap, a pandas.DataFrame; a line that says so where all ran.
    gaps: {name, reason, remedy}."""
    import pandas as pd

    nothing = dict(name="nothing", reason="all that was asked for ran here", remedy="")
    return pd.DataFrame(list(gaps) or [nothing], columns=["name", "reason", "remedy"]).set_index("name")
