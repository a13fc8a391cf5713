"""The verbs `run`, `report` and `stale`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError
from llama_lab.cli import options
from llama_lab.cli.common import app, emit, tell
from llama_lab.cli.options import argument, option, verb


def read_pairs(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"-p {pair}: write -p NAME VALUE.")
    return dict(pair.split("=", 1) for pair in pairs)


@verb("`llama-jax run 03 --measure -p new_tokens 32 --out my-results`")
class Run:
    """Execute notebooks without a browser: measure or redraw, check what they leave, print what they found."""

    notebooks: list[str] | None = argument(None, "Numbers or names, such as 03; all of them by default.")
    parameter: list[str] | None = option(None, "Set a notebook parameter.", "--parameter", "-p", metavar="NAME VALUE")
    measure: bool = option(False, "Run the models, or redraw from recorded data.", "--measure/--recorded")
    profile: str = option("quick", "quick or full: how much is measured.")
    out: Path | None = option(
        None,
        "Folder for data, figures, notebooks and their pages. By default results/<machine> for what is measured and"
        " the repository for what is redrawn; `--out .` there records over what is published.",
    )
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_lab.reporting import notebooks

        given, source = read_pairs(self.parameter or []), "measure" if self.measure else "recorded"
        results = notebooks.run(self.notebooks or (), given, source, self.profile, self.out, tell)
        for r in results:
            tell(f"{r.name}: {'ok' if r.ok else 'FAILED'} in {r.seconds} s. {r.finding if r.ok else r.error}")
        if self.json:
            emit(notebooks.as_json(results))
        if not all(r.ok for r in results):
            raise typer.Exit(1)


def write_report(out: Path | None = None) -> list[Path]:
    """The report of a folder; without one that of the repository, and of this machine's results where there are any."""
    from llama_jax.plumbing import paths
    from llama_lab import machine
    from llama_lab.reporting import report as page

    here = [] if out or not machine.FOLDER.is_dir() else [machine.results()]
    homes = [out or paths.ROOT, *(folder for folder in here if (folder / "figures" / "manifest.json").is_file())]
    return [page.write(home) for home in homes]


@verb("`llama-jax report`")
class Report:
    """Write docs/index.html from the figures and findings of the last runs; where something was measured here, one in
    this machine's results too."""

    out: Path | None = option(None, "Folder that holds figures/ and data/; the repository by default.")
    json: bool = options.as_json()

    def run(self) -> None:
        written = write_report(self.out)
        if self.json:
            emit({"path": written[0], "results": written[1] if written[1:] else None})
        else:
            print(*written, sep="\n")


@app.command(epilog="Example: `llama-jax stale --strict`")
def stale(
    out: Annotated[Path | None, typer.Option(help="Folder that holds data/; the repository by default.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where a headline is older than its code.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")] = False,
) -> None:
    """Say which recorded tables are older than the code that their times depend on."""
    from llama_jax.plumbing import paths
    from llama_lab.reporting import staleness

    found = staleness.tables(out or paths.ROOT)
    for line in staleness.lines(found):
        tell(line) if json_ else print(line)
    if json_:
        emit({"tables": [dataclasses.asdict(table) for table in found]})
    if strict and (wrong := [table.name for table in found if table.wrong]):
        tell(f"A headline is older than its code: {', '.join(wrong)}. Record it again: `make record`.")
        raise typer.Exit(1)
