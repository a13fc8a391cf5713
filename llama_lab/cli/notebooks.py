"""The verbs `run`, `report` and `stale`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import typer

from llama_jax.plumbing.errors import UserError
from llama_lab.cli import options
from llama_lab.cli.common import emit, tell
from llama_lab.cli.options import argument, flag, option, verb


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


@verb("`llama-jax stale --strict`")
class Stale:
    """Say which recorded tables are older than the code that their times depend on; after a refactoring, stamp them
    anew."""

    out: Path | None = option(None, "Folder that holds data/; the repository by default.")
    strict: bool = flag("Exit with 1 where a headline is older than its code.")
    evidence: str | None = option(
        None,
        "Compare this commit with that one, in minutes: every program, and times in one interleaved run.",
        metavar="BEFORE",
    )
    restamp: str | None = option(
        None,
        "Stamp the tables that were current BEFORE as of today's code, if the evidence holds; keeps WHY.",
        metavar="WHY",
    )
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_jax.plumbing import paths
        from llama_lab.reporting import staleness

        home = self.out or paths.ROOT
        if self.evidence is not None:
            found = staleness.gather(self.evidence, tell)
            tell(found.failure or f"{found.programs} programs are the same, and so are the times.")
            if found.failure:
                raise typer.Exit(1)
        if self.restamp is not None:
            tell(f"stamped anew: {', '.join(staleness.restamp(home, self.restamp)) or 'nothing'}")
        tables = staleness.tables(home)
        for line in staleness.lines(tables):
            tell(line) if self.json else print(line)
        if self.json:
            emit({"tables": [dataclasses.asdict(table) for table in tables]})
        if self.strict and (wrong := [table.name for table in tables if table.wrong]):
            tell(
                f"A headline is older than its code: {', '.join(wrong)}. Record it again: `make record`; after a"
                " refactoring: `llama-jax stale --restamp WHY`."
            )
            raise typer.Exit(1)
