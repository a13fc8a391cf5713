"""The verbs `contribute` and `merge`; `verify results` is beside `verify`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import typer

from llama_lab.cli import options
from llama_lab.cli.common import emit, outcome, tell, tell_problems, verdict
from llama_lab.cli.options import argument, flag, option, verb


@verb("`llama-jax contribute`, then the same with `--yes`")
class Contribute:
    """Make of this machine's headline one file for a pull request, without names, places and addresses. It is checked
    and shown before it is written; exit code 1 when it would not pass."""

    results: Path | None = option(None, "Folder of what was measured; results/<machine> by default.")
    yes: bool = flag("Write the file; without it, it is only shown.")
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_jax.plumbing import files
        from llama_lab import machine
        from llama_lab.sharing import contribution, verification

        made = contribution.build(self.results or machine.results())
        checked = verification.staged(made)
        shown = json.dumps(made.about, indent=1, sort_keys=True, ensure_ascii=False)
        counts = Counter(json.loads(line)["subject"] for line in made.rows)
        for line in (shown, "", *(f"{n} rows of {name}" for name, n in counts.items()), f"a row: {made.rows[0]}"):
            tell(line) if self.json else print(line)
        tell_problems(checked.problems)
        if written := self.yes and not checked.problems:
            files.write(made.path, made.text)
        hint = "" if checked.problems else "; --yes writes it"
        tell(f"wrote {made.path}" if written else f"nothing was written{hint}")
        if self.json:
            emit({**document(checked), "path": made.path, "written": bool(written)})
        if checked.problems:
            raise typer.Exit(1)


def verify_results(path: Path, as_json: bool) -> None:
    """`verify results FILE`."""
    from llama_lab.sharing import verification

    checked = verification.check(path)
    what = f"{checked.machine or path.name}, {len(checked.trials)} rows"
    verdict(what, checked.problems, document(checked), as_json)


def document(checked) -> dict:
    return outcome(checked.problems, machine=checked.machine, rows=len(checked.trials))


@verb("`llama-jax merge here.jsonl there.jsonl --out both.csv`")
class Merge:
    """Put runs of several machines in one table; refuses other models, tokens or versions, and what is not whole."""

    journals: list[Path] = argument(..., "Files that `bench --journal` wrote, two or more.")
    out: Path = option(..., "Table to write: .csv, .parquet or .jsonl.")
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_jax.plumbing import files
        from llama_lab.reporting import export
        from llama_lab.sharing import merging

        export.check(self.out)
        files.check(self.out)
        runs = merging.merge(self.journals, self.out)
        rows, machines = sum(len(run.trials) for run in runs), sorted({run.machine for run in runs})
        if self.json:
            emit({"out": self.out, "runs": len(runs), "machines": machines, "rows": rows})
        else:
            print(f"{self.out}: {rows} rows of {len(runs)} runs on {', '.join(machines)}")
