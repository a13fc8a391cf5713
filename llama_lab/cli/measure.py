"""The verbs `bench` and `compare`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import typer

from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import number
from llama_lab.cli import options
from llama_lab.cli.common import answer, bars_shown, emit, split, tell
from llama_lab.cli.options import ROWS, TOKENS, Sampling, argument, flag, option, verb

SUITES = ("gpu",)
BLOCKS, PROCESSES = 100_000, 1_000  # at most
SILENCE_S = 1e6  # at most: eleven days


@verb("`llama-jax bench --placements step,loop,chunk16 --blocks 10 --out results.parquet --json`")
class Bench:
    """Measure placements against each other: interleaved, gated on equal tokens, no compilation in any timed region."""

    model: str = options.model()
    placements: str = option("", "Names with commas between them; the ladder by default.")
    peers: str = option("", "Other implementations to measure beside them, such as flax-linen+jit, with commas.")
    baseline: str = option("", "The placement others are compared with; `step`, or the first one.")
    prompt_tokens: int = option(48, "Length of the prompts, in tokens.", min=1, max=TOKENS)
    new_tokens: int = option(50, "Tokens to make.", min=2, max=TOKENS)
    blocks: int = option(5, "Times each subject is measured.", min=1, max=BLOCKS)
    processes: int = option(1, "Fresh processes that the blocks are spread over.", min=1, max=PROCESSES)
    batch: int = option(1, "Equal rows in a request.", min=1, max=ROWS)
    threads: int | None = option(None, "Cores that the measured processes may use; all by default.", min=1)
    seed: int = options.seed()
    sampling: Sampling
    cold: bool = option(True, "Measure compilation and memory too, in a fresh process each.")
    limit: float = option(600.0, f"Seconds of silence, 1 to {SILENCE_S:g}, after which a measured process is stopped.")
    cached: bool = option(False, "Measure first requests with the programs in the persistent cache too.")
    explain: bool = flag("Say why, where something was compiled in a timed region.")
    journal: Path | None = option(None, "File that each trial is added to at once; an interrupted run goes on from it.")
    skip_corrupt: bool = flag("Leave out lines of the journal that cannot be read.")
    out: list[Path] | None = option(
        None, "Write trials (.csv, .parquet, .jsonl) or a summary (.md); may be repeated. Of a suite: its folder."
    )
    profile: Path | None = option(None, "Write a trace and a program summary of each placement here; measures nothing.")
    suite: str | None = option(None, "A fixed programme instead, in its own process: gpu.")
    any_device: bool = flag("Rehearse the suite on tiny shapes, GPU or not.")
    self_test: bool = flag("Check the guard and the statistics instead of measuring.")
    json: bool = options.as_json()
    context: typer.Context

    def run(self) -> None:
        if self.suite is not None or self.any_device:
            return self.run_suite()
        if self.self_test:
            return check_harness(self.json)
        settings = self.settings()
        check_outputs(self.journal, self.out or (), self.profile)
        if self.profile is None:
            return self.measure(settings)
        from llama_lab.bench import run

        profiles = run.profile(settings, self.profile, tell)
        if self.json:
            emit({"profiles": profiles})

    def run_suite(self) -> None:
        """Raises UserError for an unknown suite, for options that a suite has not, and for records without a folder."""
        if self.suite is None:
            raise UserError("--any-device belongs to a suite; give --suite gpu.")
        if self.suite not in SUITES:
            raise UserError(f"No such suite: {self.suite!r}.{near(self.suite, SUITES)}")
        if other := options.given(self.context, besides=("suite", "any_device", "out")):
            raise UserError(f"--suite {self.suite} measures a fixed programme; leave {other[0]} away.")
        folders = self.out or []
        if len(folders) != 1 or folders[0].suffix or folders[0].is_file():
            raise UserError(f"--suite {self.suite} needs one folder for its records, such as --out out/{self.suite}.")
        from llama_lab.experiments.gpu import measure

        print(measure.run(folders[0], self.any_device, lambda line: print(line, file=sys.stderr, flush=True)))

    def settings(self):
        """What is to be measured. Raises UserError for a number out of range."""
        from llama_lab.bench import run

        same = {each.name: getattr(self, each.name) for each in fields(run.Settings) if hasattr(self, each.name)}
        return run.Settings(
            **same
            | dict(
                placements=split(self.placements),
                peers=split(self.peers),
                baseline=self.baseline or None,
                sampler=self.sampling.sampler,
                cold=int(self.cold),
                cached=int(self.cached),
                limit=number(self.limit, "--limit", 1, SILENCE_S),
            )
        )

    def measure(self, settings) -> None:
        """Measure, write the tables that `--out` names, and show what was found."""
        from llama_lab.bench import progress, run
        from llama_lab.cli import console
        from llama_lab.reporting import export

        shown = bars_shown()
        with progress.bar(shown) as drawn:
            result, trials, meta = run.run(settings, drawn if shown else progress.lines(tell))
        for path in self.out or ():
            tell(f"wrote {export.write(path, trials, meta, result)}")
        with contextlib.suppress(OSError):  # where nobody sees it, the data are written all the same
            console.show(result)
        if self.json:
            emit(result)


def check_outputs(journal: Path | None, out: Sequence[Path], profile: Path | None) -> None:
    """Raises UserError for files that cannot be written, or not both, before minutes of measuring."""
    from llama_jax.plumbing import files
    from llama_lab.reporting import export

    if profile is not None and (journal or out):
        raise UserError("--profile measures nothing; leave --journal and --out away.")
    for path in (*out, *filter(None, [journal])):
        files.check(path)
    for path in out:
        export.check(path)
        if journal and path.absolute() == journal.absolute():
            raise UserError(f"--journal and --out are both {path}; give them different names.")


def check_harness(as_json: bool) -> None:
    """`bench --self-test`: exit code 1 when something falls short."""
    from llama_lab.experiments.honest_measurement import selftest

    result = selftest.run(tell)
    for line in result["shortfalls"]:
        tell(f"falls short: {line}")
    if as_json:
        emit(result)
    else:
        print(
            f"guard: {sum(map(bool, result['guard'].values()))} of {len(result['guard'])} classes fire; coverage"
            f" {result['coverage']:.1%}, A/A false positives {result['aa_false_positive_rate']:.1%}, a 3 % effect found"
            f" {result['power_3pct']:.1%}"
        )
    if result["shortfalls"]:
        raise typer.Exit(1)


@verb("`llama-jax compare before.csv after.csv`")
class Compare:
    """Compare two recorded runs; refuses what cannot be compared."""

    old: Path = argument(..., "A table of trials: .csv, .parquet or .jsonl.")
    new: Path = argument(..., "Another one, of the same subjects.")
    anyway: bool = flag("Compare although machine, model or tokens differ; says how.")
    skip_corrupt: bool = flag("Leave out lines of a .jsonl file that cannot be read.")
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_lab.reporting import comparison

        result = comparison.compare(self.old, self.new, anyway=self.anyway, skip_corrupt=self.skip_corrupt)
        answer(comparison.lines(result), result, self.json)
