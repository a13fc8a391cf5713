"""The verbs `run`, `report`, `stale`, `figures` and `measure`: what `make figures`, `make measure` and `make record`
run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from llama_jax.plumbing.errors import UserError
from llama_lab.cli import options
from llama_lab.cli.common import show, tell
from llama_lab.cli.options import argument, flag, option, verb

BEGINNINGS = ("recorded", "measure", "unchanged")
HEADLINE, DRAW, REPORT = "measuring the headline here", "drawing every notebook", "the report"


@verb("`llama-jax run 02 --measure -p new_tokens 32 --out my-results`")
class Run:
    """Execute notebooks without a browser: measure or redraw, check their output, print their findings."""

    notebooks: list[str] | None = argument(None, "Numbers or names, such as 02; by default all of them.")
    parameter: list[str] | None = option(None, "Set a notebook parameter.", "--parameter", "-p", metavar="NAME VALUE")
    measure: bool = option(False, "Run the models, or redraw recorded data.", "--measure/--recorded")
    profile: str = option("quick", "quick or full: how much is measured.")
    out: Path | None = option(
        None,
        "Folder for data, figures, notebooks and their pages; by default results/<machine> for measurements and the"
        " repository for redrawn figures. `--out .` in the repository records over published data.",
    )
    json: bool = options.as_json()

    def run(self) -> tuple[dict, bool]:
        from llama_lab.reporting import notebooks

        for pair in self.parameter or ():
            if "=" not in pair:
                raise UserError(f"-p {pair}: write -p NAME VALUE.")
        given = dict(pair.split("=", 1) for pair in self.parameter or ())
        source = "measure" if self.measure else "recorded"
        results = notebooks.run(self.notebooks or (), given, source, self.profile, self.out, tell)
        for r in results:
            tell(r.line)
        return notebooks.as_json(results), all(r.ok for r in results)


def write_report(out: Path | None = None) -> list[Path]:
    """The report of a folder; without one, that of the repository and that of this machine's results if there are
    any."""
    from llama_jax.plumbing import paths
    from llama_lab import machine
    from llama_lab.reporting import report

    here = [] if out or not machine.FOLDER.is_dir() else [machine.results()]
    homes = [out or paths.ROOT, *(folder for folder in here if (folder / "figures" / "manifest.json").is_file())]
    return [report.write(home) for home in homes]


@verb("`llama-jax report`")
class Report:
    """Write docs/index.html from the figures and findings of the last runs, and another one for this machine's results
    if there are any."""

    out: Path | None = option(None, "Folder with figures/ and data/; the repository by default.")
    json: bool = options.as_json()

    def run(self) -> dict:
        written = write_report(self.out)
        if not self.json:
            print(*written, sep="\n")
        return {"path": written[0], "results": written[1] if written[1:] else None}


@verb("`llama-jax stale --strict`")
class Stale:
    """Say which recorded tables are older than the code that their times depend on. After a refactoring, renew their
    stamps."""

    out: Path | None = option(None, "Folder with data/; the repository by default.")
    strict: bool = flag("Exit with 1 if a headline was recorded with older code.")
    evidence: str | None = option(
        None,
        "Compare the current commit with this earlier one: every program, and times in one interleaved run (minutes).",
        metavar="BEFORE",
    )
    restamp: str | None = option(
        None,
        "Mark the tables that were current BEFORE as current, if the evidence supports it; WHY is recorded.",
        metavar="WHY",
    )
    json: bool = options.as_json()

    def run(self) -> tuple[dict | None, bool]:
        from llama_jax.plumbing import paths
        from llama_lab.reporting import staleness

        home = self.out or paths.ROOT
        if self.evidence is not None:
            gathered = staleness.gather(self.evidence, tell)
            tell(gathered.failure or f"{gathered.programs} programs are the same, and the times are equal.")
            if gathered.failure:
                return None, False
        if self.restamp is not None:
            tell(f"stamps renewed: {', '.join(staleness.restamp(home, self.restamp)) or 'none'}")
        tables = staleness.tables(home)
        show(staleness.lines(tables), self.json)
        wrong = [table.name for table in tables if table.wrong] if self.strict else []
        if wrong:
            tell(
                f"A headline was recorded with older code: {', '.join(wrong)}. Record it again: `make record`; after a"
                " refactoring: `llama-jax stale --restamp WHY`."
            )
        return {"tables": [asdict(table) for table in tables]}, not wrong


@verb("`llama-jax figures --no-headline`")
class Figures:
    """Measure the headline here, draw every figure from published data, and write the report: ten to twenty minutes."""

    headline: bool = option(True, "Measure the headline on this machine first.", "--headline/--no-headline")
    json: bool = options.as_json()

    def run(self) -> tuple[dict, bool]:
        from llama_jax.plumbing import paths
        from llama_lab import machine
        from llama_lab.reporting import headline, notebooks, staleness
        from llama_lab.reporting.remaining import Remaining

        total, begun, measured, lines = len(notebooks.find()), set(), None, []
        steps = {HEADLINE: 240.0} if self.headline else {}
        with Remaining({**steps, DRAW: 300.0, REPORT: 10.0}, tell).spoken() as rest:

            def hear(line: str) -> None:  # each notebook reports once that it begins
                name, _, source = line.partition(": ")
                if source in BEGINNINGS:
                    begun.add(name)
                    rest.progress(name, len(begun) - 1, total)

            if self.headline:
                rest.begin(HEADLINE)
                measured = headline.obtain(headline.measure.QUICK, machine.results(), rest.progress)
            rest.begin(DRAW)
            results = notebooks.run(progress=hear)
            rest.begin(REPORT)
            if measured:
                lines = headline.draw(*measured, machine.results())
            failed = [r for r in results if not r.ok]
            written = [] if failed else write_report()
        for line in (*(r.line for r in failed), *staleness.lines(staleness.tables(paths.ROOT))):
            tell(line)
        print(*lines, *written, sep="\n")
        return {**notebooks.as_json(results), "written": written}, not failed


@verb("`llama-jax measure 04 06 --plan`")
class Measure:
    """Measure everything that this code has not measured here yet, in order; an interrupted run resumes."""

    only: list[str] | None = argument(None, "Numbers or names, such as 04; by default all of them.")
    profile: str = option("quick", "quick or full: how much is measured.")
    out: Path | None = option(None, "Folder for data and figures; results/<machine> by default, `.` publishes.")
    plan: bool = flag("Only say what would be measured and how long it takes.")
    json: bool = options.as_json()

    def run(self) -> tuple[dict, bool]:
        from llama_lab import machine
        from llama_lab.reporting import campaign

        home = (self.out or machine.results()).resolve()
        steps = campaign.steps(self.only or (), self.profile, home)
        show(campaign.lines(steps), self.json)
        results = [] if self.plan else campaign.run(steps, self.profile, home, tell)
        for r in results:
            tell(r.line)
        failed = [r.name for r in results if not r.ok]
        return {"steps": [asdict(step) for step in steps], "failed": failed}, not failed
