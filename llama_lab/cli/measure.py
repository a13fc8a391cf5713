"""The verbs `bench`, `compare` and `advise`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import typer

from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import LARGEST, number
from llama_lab.cli import options
from llama_lab.cli.common import bars_shown, show, split, tell, tell_requantised
from llama_lab.cli.options import ROWS, TOKENS, Sampling, argument, flag, option, verb

SUITES = ("gpu",)
BLOCKS, PROCESSES = 100_000, 1_000  # at most
SILENCE_S = 1e6  # at most: eleven days
REPEATED = dict(blocks=6, processes=2, cold=3)  # of a measurement on the spot, for `advise`


@verb("`llama-jax bench --placements step,loop,chunk16 --blocks 10 --out results.parquet --json`")
class Bench:
    """Measure placements against each other: interleaved, with equal tokens, without compilation in a timed region."""

    model: str = options.model()
    placements: str = option("", "Names separated by commas, also your own (jit:attend.head); the ladder by default.")
    peers: str = option("", "Other implementations to measure with them, separated by commas, such as flax-linen+jit.")
    baseline: str = option("", "Placement to compare the others with; `step` by default, or the first one.")
    prompt_tokens: int = option(48, "Tokens of a prompt.", min=1, max=TOKENS)
    new_tokens: int = option(50, "Tokens to generate.", min=2, max=TOKENS)
    blocks: int = option(5, "Number of times each subject is measured.", min=1, max=BLOCKS)
    processes: int = option(1, "Fresh processes to spread the blocks over.", min=1, max=PROCESSES)
    batch: int = option(1, "Equal rows in a request.", min=1, max=ROWS)
    threads: int | None = option(None, "Cores that the measured processes may use; all by default.", min=1)
    seed: int = options.seed()
    sampling: Sampling
    cold: bool = option(True, "Also measure compilation and memory, each in a fresh process.")
    limit: float = option(600.0, f"Seconds of silence, 1 to {SILENCE_S:g}, after which a measured process is stopped.")
    cached: bool = option(False, "Also measure first requests with the programs in the persistent cache.")
    explain: bool = flag("Say why something was compiled in a timed region.")
    journal: Path | None = option(None, "File to append each trial to at once; an interrupted run resumes from it.")
    skip_corrupt: bool = flag("Skip lines of the journal that cannot be read.")
    out: list[Path] | None = option(
        None, "Write trials (.csv, .parquet, .jsonl) or a summary (.md); may be repeated. For a suite: its folder."
    )
    profile: Path | None = option(
        None, "Folder for a trace and a program summary of each placement; nothing is measured."
    )
    suite: str | None = option(None, "Run a fixed suite instead, in its own process: gpu.")
    any_device: bool = flag("Rehearse the suite on tiny shapes, with or without a GPU.")
    deterministic: bool = flag(
        "Measure the suite under --xla_gpu_deterministic_ops: the same bits in every run, slower."
    )
    self_test: bool = flag("Check the guard and the statistics instead of measuring.")
    json: bool = options.as_json()
    context: typer.Context

    def run(self) -> dict | tuple[dict, bool] | None:
        if self.suite is not None or self.any_device or self.deterministic:
            return self.run_suite()
        if self.self_test:
            return self.check_harness()
        from llama_lab.bench import run

        named = {each.name: getattr(self, each.name) for each in fields(run.Settings) if hasattr(self, each.name)}
        named |= {name: split(named[name]) for name in ("placements", "peers")}
        named |= dict(baseline=self.baseline or None, cold=int(self.cold), cached=int(self.cached))
        limit = number(self.limit, "--limit", 1, SILENCE_S)
        settings = run.Settings(**named | dict(sampler=self.sampling.sampler, limit=limit))
        check_outputs(self.out or (), self.journal, self.profile)
        tell_blocks(settings)
        if self.profile is not None:
            return {"profiles": run.profile(settings, self.profile, tell)}
        result, trials, _ = measured(settings, self.out or ())
        from llama_lab.cli import console

        with contextlib.suppress(OSError):  # the data are written even if nobody sees the table
            console.show(result)
        valid = any(t.valid for t in trials)
        if not valid:
            tell(f"nothing was measured: every trial is void ({trials[-1].reason})")
        return result, valid

    def run_suite(self) -> None:
        """Raises UserError for an unknown suite, for options that a suite lacks, and for a missing folder."""
        if self.suite is None:
            name = "--any-device" if self.any_device else "--deterministic"
            raise UserError(f"{name} belongs to a suite; give --suite gpu.")
        if self.suite not in SUITES:
            raise UserError(f"No such suite: {self.suite!r}.{near(self.suite, SUITES)}")
        if other := options.given(self.context, besides=("suite", "any_device", "deterministic", "out")):
            raise UserError(f"--suite {self.suite} is fixed; leave out {other[0]}.")
        folders = self.out or []
        if len(folders) != 1 or folders[0].suffix or folders[0].is_file():
            raise UserError(f"--suite {self.suite} needs one folder for its records, such as --out out/{self.suite}.")
        from llama_lab.experiments.gpu import measure

        print(measure.run(folders[0], self.any_device, tell, deterministic=self.deterministic))

    def check_harness(self) -> tuple[dict, bool]:
        """`--self-test`. Fails if anything falls short."""
        from llama_lab.experiments.honest_measurement import selftest

        result = selftest.run(tell)
        for line in result["shortfalls"]:
            tell(f"falls short: {line}")
        if not self.json:
            print(
                f"guard: {sum(map(bool, result['guard'].values()))} of {len(result['guard'])} classes fire; coverage"
                f" {result['coverage']:.1%}, A/A false positives {result['aa_false_positive_rate']:.1%}, a 3% effect"
                f" found {result['power_3pct']:.1%}"
            )
        return result, not result["shortfalls"]


def tell_blocks(settings) -> None:
    """`tell_requantised` for all placements that will be measured."""
    from llama_jax import checkpoint
    from llama_lab.bench import run

    if compiled := [placement for placement in run.chosen(settings)[0] if placement.kernels != "none"]:
        tell_requantised(checkpoint.find(settings.model), compiled)


def measured(settings, out: Sequence[Path], lines: bool = True) -> tuple[dict, list, dict]:
    """As `bench.run.run`, with progress; writes the tables that `--out` names. lines: print progress in lines if no bar
    is visible."""
    from llama_lab.bench import progress, run
    from llama_lab.reporting import export

    shown = bars_shown()
    with progress.bar(shown) as drawn:
        result, trials, meta = run.run(settings, progress.lines(tell) if lines and not shown else drawn)
    for path in out:
        tell(f"wrote {export.write(path, trials, meta, result)}")
    return result, trials, meta


def check_outputs(out: Sequence[Path], journal: Path | None = None, profile: Path | None = None) -> None:
    """Raises UserError before minutes of measuring, for files that cannot be written or contradict each other."""
    from llama_jax.plumbing import files
    from llama_lab.reporting import export

    if profile is not None and (journal or out):
        raise UserError("--profile measures nothing; leave out --journal and --out.")
    for path in (*out, *filter(None, [journal])):
        files.check(path)
    for path in out:
        export.check(path)
        if journal and path.absolute() == journal.absolute():
            raise UserError(f"--journal and --out are both {path}; give them different names.")


@verb("`llama-jax compare before.csv after.csv`")
class Compare:
    """Compare two recorded runs; refuses runs that are not comparable."""

    old: Path = argument(..., "A table of trials: .csv, .parquet or .jsonl.")
    new: Path = argument(..., "A later table of the same subjects.")
    anyway: bool = flag("Compare even if machine, model or tokens differ, and say how they differ.")
    skip_corrupt: bool = flag("Skip lines of a .jsonl file that cannot be read.")
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_lab.reporting import comparison

        result = comparison.compare(self.old, self.new, anyway=self.anyway, skip_corrupt=self.skip_corrupt)
        show(comparison.lines(result), self.json)
        return result


@verb("`llama-jax advise --prompt-tokens 200 --new-tokens 100 --requests 20 --streaming`")
class Advise:
    """Recommend a placement for a workload, with the trials behind it, the runner-up, and what would change the
    answer."""

    model: str = options.model()
    prompt_tokens: int = option(100, "Tokens of the longest prompt.", min=1, max=TOKENS)
    new_tokens: int = option(128, "Tokens of an answer.", min=2, max=TOKENS)
    requests: int = option(1, "Requests per start of the process.", min=1, max=LARGEST)
    lengths: int = option(1, "Number of different prompt lengths.", min=1, max=TOKENS)
    streaming: bool = flag("Tokens are needed as they are made.")
    warm: bool = flag("The process is already running, with everything compiled.")
    memory_mb: int | None = option(None, "Megabytes that the process may use.", min=1, max=LARGEST)
    exact: bool = flag("Only float32's exact tokens are acceptable.")
    data: list[Path] | None = option(
        None, "Tables of trials to use (.csv, .parquet, .jsonl); by default those of notebooks 02 and 06."
    )
    measure: bool = flag("Measure at these sizes now, which takes some ten minutes, and use the result.")
    placements: str = option("", "Placements to measure, separated by commas; the ladder and the kernels by default.")
    out: list[Path] | None = option(None, "File for the measured trials: .csv, .parquet or .jsonl.")
    seed: int = options.seed()
    json: bool = options.as_json()

    def run(self) -> dict:
        from llama_lab.reporting import advice

        named = {each.name: getattr(self, each.name) for each in fields(advice.Wish) if hasattr(self, each.name)}
        wish = advice.Wish(**named, memory=self.memory_mb and self.memory_mb * 10**6)
        if (self.placements or self.out) and not self.measure:
            raise UserError("--placements and --out belong to --measure; add it, or leave them out.")
        if self.data and self.measure:
            raise UserError("--data uses recorded trials, --measure makes new ones; choose one.")
        tables = self.measured() if self.measure else advice.recorded(self.data or ())
        advised = advice.consult(tables, self.model, wish, self.seed)
        show(advice.lines(advised, wish), self.json)
        return advised

    def measured(self) -> list[tuple[str, list, dict]]:
        """As `advice.recorded`, from a measurement made now."""
        from llama_jax import kernels
        from llama_jax.placement import LADDER
        from llama_lab.bench import run

        check_outputs(self.out or ())
        ours = (*LADDER, *(() if kernels.missing() else ("loop+gemv", "step+fused", "loop+fused")))
        sizes = {name: getattr(self, name) for name in ("model", "prompt_tokens", "new_tokens", "seed")}
        settings = run.Settings(placements=split(self.placements) or ours, **sizes, **REPEATED)
        tell_blocks(settings)
        return [("now", *measured(settings, self.out or (), lines=False)[1:])]
