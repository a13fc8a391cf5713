"""The verbs `run`, `report` and `stale`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError
from llama_lab.cli.common import Json, app, emit, tell


def read_pairs(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"-p {pair}: write -p NAME VALUE.")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command(epilog="Example: `llama-jax run 03 --measure -p new_tokens 32 --out my-results`")
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names, such as 03; all of them by default.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME VALUE", help="Set a notebook parameter.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--recorded", help="Run the models, or redraw from recorded data.")
    ] = False,
    profile: Annotated[str, typer.Option(help="quick or full: how much is measured.")] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for data, figures, notebooks and their pages. By default results/<machine> for what is"
            " measured and the repository for what is redrawn; `--out .` there records over what is published."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Execute notebooks without a browser: measure or redraw, check what they leave, print what they found."""
    from llama_lab.reporting import notebooks as runner

    given = read_pairs(parameter or [])
    results = runner.run(notebooks or (), given, "measure" if measure else "recorded", profile, out, tell)
    for r in results:
        tell(f"{r.name}: {'ok' if r.ok else 'FAILED'} in {r.seconds} s. {r.finding if r.ok else r.error}")
    if json_:
        emit(runner.as_json(results))
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


@app.command(epilog="Example: `llama-jax report`")
def report(
    out: Annotated[
        Path | None, typer.Option(help="Folder that holds figures/ and data/; the repository by default.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write docs/index.html from the figures and findings of the last runs; where something was measured here, one in
    this machine's results too."""
    written = write_report(out)
    if json_:
        emit({"path": written[0], "results": written[1] if written[1:] else None})
    else:
        print(*written, sep="\n")


@app.command(epilog="Example: `llama-jax stale --strict`")
def stale(
    out: Annotated[Path | None, typer.Option(help="Folder that holds data/; the repository by default.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where a headline is older than its code.")
    ] = False,
    json_: Json = False,
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
