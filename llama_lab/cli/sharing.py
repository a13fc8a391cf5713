"""The verbs `contribute` and `merge`; `verify results` is beside `verify`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from llama_lab.cli.common import Json, app, emit, tell


@app.command(epilog="Example: `llama-jax contribute`, then the same with `--yes`")
def contribute(
    results: Annotated[
        Path | None, typer.Option(help="Folder of what was measured; results/<machine> by default.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write the file; without it, it is only shown.")] = False,
    json_: Json = False,
) -> None:
    """Make of this machine's headline one file for a pull request, without names, places and addresses. It is checked
    and shown before it is written; exit code 1 when it would not pass."""
    from llama_jax.plumbing import files
    from llama_lab import machine
    from llama_lab.sharing import contribution, verification

    made = contribution.build(results or machine.results())
    found = verification.staged(made)
    shown = json.dumps(made.about, indent=1, sort_keys=True, ensure_ascii=False)
    counts = Counter(json.loads(line)["subject"] for line in made.rows)
    lines = [shown, "", *(f"{n} rows of {name}" for name, n in counts.items()), f"a row: {made.rows[0]}"]
    for line in lines:
        tell(line) if json_ else print(line)
    for problem in found.problems:
        tell(f"{problem.file}: {problem.reason}")
    if written := yes and not found.problems:
        files.write(made.path, made.text)
    tell(f"wrote {made.path}" if written else "nothing was written" + ("" if found.problems else "; --yes writes it"))
    if json_:
        emit({**told(found), "path": made.path, "written": bool(written)})
    if found.problems:
        raise typer.Exit(1)


def verify_results(path: Path, json_: bool) -> None:
    """`verify results FILE`."""
    from llama_lab.sharing import verification

    found = verification.check(path)
    for problem in found.problems:
        tell(f"{problem.file}: {problem.reason}")
    if json_:
        emit(told(found))
    else:
        verdict = f"{len(found.problems)} problems" if found.problems else "sound"
        print(f"{found.machine or path.name}, {len(found.trials)} rows: {verdict}")
    if found.problems:
        raise typer.Exit(1)


def told(found) -> dict:
    return {
        "ok": not found.problems,
        "machine": found.machine,
        "rows": len(found.trials),
        "problems": [asdict(problem) for problem in found.problems],
    }


@app.command(epilog="Example: `llama-jax merge here.jsonl there.jsonl --out both.csv`")
def merge(
    journals: Annotated[list[Path], typer.Argument(help="Files that `bench --journal` wrote, two or more.")],
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .parquet or .jsonl.")],
    json_: Json = False,
) -> None:
    """Put runs of several machines in one table; refuses other models, tokens or versions, and what is not whole."""
    from llama_jax.plumbing import files
    from llama_lab.reporting import export
    from llama_lab.sharing import merging

    export.check(out)
    files.check(out)
    runs = merging.merge(journals, out)
    rows, machines = sum(len(run.trials) for run in runs), sorted({run.machine for run in runs})
    if json_:
        emit({"out": out, "runs": len(runs), "machines": machines, "rows": rows})
    else:
        print(f"{out}: {rows} rows of {len(runs)} runs on {', '.join(machines)}")
