"""The verbs `figures` and `measure`: what `make figures`, `make measure` and `make record` run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from llama_lab.cli import options
from llama_lab.cli.common import emit, tell
from llama_lab.cli.notebooks import write_report
from llama_lab.cli.options import argument, flag, option, verb

SOURCES = ("recorded", "measure")
HEADLINE, DRAW, REPORT = "measuring the headline here", "drawing every notebook", "the report"


def counted(progress, total: int):
    """A runner's lines as progress: each notebook says once that it begins."""
    begun: set[str] = set()

    def hear(line: str) -> None:
        name, _, source = line.partition(": ")
        if source in SOURCES:
            begun.add(name)
            progress(name, len(begun) - 1, total)

    return hear


@verb("`llama-jax figures --no-headline`")
class Figures:
    """Measure the headline here, draw every figure from the published data, write the report: ten minutes at most."""

    headline: bool = option(True, "Measure the headline on this machine first.", "--headline/--no-headline")
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_jax.plumbing import paths
        from llama_lab import machine
        from llama_lab.reporting import headline, notebooks, staleness
        from llama_lab.reporting.remaining import Remaining

        steps = {HEADLINE: 240.0} if self.headline else {}
        with Remaining({**steps, DRAW: 180.0, REPORT: 10.0}, tell).spoken() as rest:
            measured = None
            if self.headline:
                rest.begin(HEADLINE)
                measured = headline.obtain(headline.measure.QUICK, machine.results(), rest.progress)
            rest.begin(DRAW)
            results = notebooks.run(progress=counted(rest.progress, len(notebooks.find())))
            rest.begin(REPORT)
            lines = headline.draw(*measured, machine.results()) if measured else []
            failed = [r for r in results if not r.ok]
            written = [] if failed else write_report()
        for result in failed:
            tell(f"{result.name}: FAILED. {result.error}")
        for line in staleness.lines(staleness.tables(paths.ROOT)):
            tell(line)
        print(*lines, *written, sep="\n")
        if self.json:
            emit({**notebooks.as_json(results), "written": written})
        if failed:
            raise typer.Exit(1)


@verb("`llama-jax measure 05 08 --plan`")
class Measure:
    """Measure all that this code has not measured here yet, in order; what was interrupted goes on."""

    only: list[str] | None = argument(None, "Numbers or names, such as 05; all of them by default.")
    profile: str = option("quick", "quick or full: how much is measured.")
    out: Path | None = option(None, "Folder for data and figures; results/<machine> by default, `.` publishes.")
    plan: bool = flag("Say what would be measured and how long it takes.")
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_lab import machine
        from llama_lab.reporting import campaign

        home = (self.out or machine.results()).resolve()
        steps = campaign.steps(self.only or (), self.profile, home)
        for line in campaign.lines(steps):
            tell(line) if self.json else print(line)
        results = [] if self.plan else campaign.run(steps, self.profile, home, tell)
        for r in results:
            tell(f"{r.name}: {'ok' if r.ok else 'FAILED'} in {r.seconds} s. {r.finding or r.error}")
        if self.json:
            emit({"steps": [asdict(step) for step in steps], "failed": [r.name for r in results if not r.ok]})
        if not all(r.ok for r in results):
            raise typer.Exit(1)
