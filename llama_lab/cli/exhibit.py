"""The verbs `figures` and `measure`: what `make figures`, `make measure` and `make record` run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_lab.cli.common import Json, app, emit, tell
from llama_lab.cli.notebooks import write_report

SOURCES = ("recorded", "measure")
HEADLINE, DRAW, REPORT = "measuring the headline here", "drawing every notebook", "the report"


def counted(progress, total: int):
    """A runner's lines as progress: each notebook says once that it begins."""
    begun: set[str] = set()

    def hear(line: str) -> None:
        name, _, said = line.partition(": ")
        if said in SOURCES:
            begun.add(name)
            progress(name, len(begun) - 1, total)

    return hear


@app.command(epilog="Example: `llama-jax figures --no-headline`")
def figures(
    headline: Annotated[
        bool, typer.Option("--headline/--no-headline", help="Measure the headline on this machine first.")
    ] = True,
    json_: Json = False,
) -> None:
    """Measure the headline here, draw every figure from the published data, write the report: ten minutes at most."""
    from llama_jax.plumbing import paths
    from llama_lab import machine
    from llama_lab.reporting import headline as shown
    from llama_lab.reporting import notebooks, staleness
    from llama_lab.reporting.remaining import Remaining

    steps = {HEADLINE: 240.0} if headline else {}
    with Remaining({**steps, DRAW: 180.0, REPORT: 10.0}, tell).told() as rest:
        found = None
        if headline:
            rest.begin(HEADLINE)
            found = shown.obtain(shown.measure.QUICK, machine.results(), rest.progress)
        rest.begin(DRAW)
        results = notebooks.run(progress=counted(rest.progress, len(notebooks.find())))
        rest.begin(REPORT)
        said = shown.draw(*found, machine.results()) if found else []
        failed = [r for r in results if not r.ok]
        written = [] if failed else write_report()
    for result in failed:
        tell(f"{result.name}: FAILED. {result.error}")
    for line in staleness.lines(staleness.tables(paths.ROOT)):
        tell(line)
    print(*said, *written, sep="\n")
    if json_:
        emit({**notebooks.as_json(results), "written": written})
    if failed:
        raise typer.Exit(1)


@app.command(epilog="Example: `llama-jax measure 05 08 --plan`")
def measure(
    only: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names, such as 05; all of them by default.")
    ] = None,
    profile: Annotated[str, typer.Option(help="quick or full: how much is measured.")] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder for data and figures; results/<machine> by default, `.` publishes.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be measured and how long it takes.")] = False,
    json_: Json = False,
) -> None:
    """Measure all that this code has not measured here yet, in order; what was interrupted goes on."""
    from llama_lab import machine
    from llama_lab.reporting import campaign

    home = (out or machine.results()).resolve()
    steps = campaign.steps(only or (), profile, home)
    for line in campaign.lines(steps):
        tell(line) if json_ else print(line)
    results = [] if plan else campaign.run(steps, profile, home, tell)
    for result in results:
        tell(
            f"{result.name}: {'ok' if result.ok else 'FAILED'} in {result.seconds} s. {result.finding or result.error}"
        )
    if json_:
        emit({"steps": campaign.as_json(steps), "failed": [r.name for r in results if not r.ok]})
    if not all(result.ok for result in results):
        raise typer.Exit(1)
