"""The verbs `bench` and `compare`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import number
from llama_lab.cli.common import (
    ROWS,
    TOKENS,
    Json,
    MinP,
    Model,
    Penalty,
    Seed,
    Temperature,
    TopK,
    TopP,
    app,
    bars_shown,
    emit,
    split,
    tell,
)

BLOCKS, PROCESSES = 100_000, 1_000  # at most
SILENCE_S = 1e6  # at most: eleven days


@app.command(
    epilog="Example: `llama-jax bench --placements step,loop,chunk16 --blocks 10 --out results.parquet --json`"
)
def bench(
    model: Model = "smollm2-135m-instruct",
    placements: Annotated[str, typer.Option(help="Names with commas between them; the ladder by default.")] = "",
    peers: Annotated[
        str, typer.Option(help="Other implementations to measure beside them, such as flax-linen+jit, with commas.")
    ] = "",
    baseline: Annotated[
        str, typer.Option(help="The placement others are compared with; `step`, or the first one.")
    ] = "",
    prompt_tokens: Annotated[int, typer.Option(min=1, max=TOKENS, help="Length of the prompts, in tokens.")] = 48,
    new_tokens: Annotated[int, typer.Option(min=2, max=TOKENS, help="Tokens to make.")] = 50,
    blocks: Annotated[int, typer.Option(min=1, max=BLOCKS, help="Times each subject is measured.")] = 5,
    processes: Annotated[
        int, typer.Option(min=1, max=PROCESSES, help="Fresh processes that the blocks are spread over.")
    ] = 1,
    batch: Annotated[int, typer.Option(min=1, max=ROWS, help="Equal rows in a request.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores that the measured processes may use; all by default.")
    ] = None,
    seed: Seed = 0,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: Penalty = 1.0,
    cold: Annotated[bool, typer.Option(help="Measure compilation and memory too, in a fresh process each.")] = True,
    limit: Annotated[
        float, typer.Option(help=f"Seconds of silence, 1 to {SILENCE_S:g}, after which a measured process is stopped.")
    ] = 600.0,
    cached: Annotated[
        bool, typer.Option(help="Measure first requests with the programs in the persistent cache too.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why, where something was compiled in a timed region.")
    ] = False,
    journal: Annotated[
        Path | None, typer.Option(help="File that each trial is added to at once; an interrupted run goes on from it.")
    ] = None,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out lines of the journal that cannot be read.")
    ] = False,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            help="Write trials (.csv, .parquet, .jsonl) or a summary (.md); may be repeated. Of a suite: its folder."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Write a trace and a program summary of each placement here; measures nothing.")
    ] = None,
    suite_name: Annotated[
        str | None, typer.Option("--suite", help="A fixed programme instead, in its own process: gpu.")
    ] = None,
    any_device: Annotated[
        bool, typer.Option("--any-device", help="Rehearse the suite on tiny shapes, GPU or not.")
    ] = False,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Check the guard and the statistics instead of measuring.")
    ] = False,
    json_: Json = False,
) -> None:
    """Measure placements against each other: interleaved, gated on equal tokens, no compilation in any timed region."""
    if suite_name is not None or any_device:
        from llama_lab.cli import suite as programme

        return programme.run(suite_name, out or (), any_device)
    from llama_jax.sampling import Sampler
    from llama_lab.bench import progress, run
    from llama_lab.cli import console
    from llama_lab.reporting import export

    if self_test:
        return check_harness(json_)
    settings = run.Settings(
        model=model,
        placements=split(placements),
        peers=split(peers),
        baseline=baseline or None,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        blocks=blocks,
        batch=batch,
        seed=seed,
        sampler=Sampler(temperature, top_k, top_p, min_p, repetition_penalty),
        processes=processes,
        cold=int(cold),
        cached=int(cached),
        threads=threads,
        explain=explain,
        journal=journal,
        limit=number(limit, "--limit", 1, SILENCE_S),
        skip_corrupt=skip_corrupt,
    )
    check_outputs(journal, out or (), profile)
    if profile is not None:
        return profile_placements(settings, profile, json_)
    shown = bars_shown()
    with progress.bar(shown) as drawn:
        result, trials, meta = run.run(settings, drawn if shown else progress.lines(tell))
    for path in out or ():
        tell(f"wrote {export.write(path, trials, meta, result)}")
    with contextlib.suppress(OSError):  # where nobody sees it, the data are written all the same
        console.show(result)
    if json_:
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


def check_harness(json_: bool) -> None:
    """`bench --self-test`: exit code 1 when something falls short."""
    from llama_lab.experiments.honest_measurement import selftest

    found = selftest.run(tell)
    for line in found["shortfalls"]:
        tell(f"falls short: {line}")
    if json_:
        emit(found)
    else:
        silent = [name for name, fired in found["guard"].items() if not fired]
        print(
            f"guard: {len(found['guard']) - len(silent)} of {len(found['guard'])} classes fire; coverage"
            f" {found['coverage']:.1%},"
            f" A/A false positives {found['aa_false_positive_rate']:.1%}, a 3 % effect found {found['power_3pct']:.1%}"
        )
    if found["shortfalls"]:
        raise typer.Exit(1)


def profile_placements(settings, folder: Path, json_: bool) -> None:
    """`bench --profile DIR`."""
    from llama_lab.bench import run

    found = run.profile(settings, folder, tell)
    if json_:
        emit({"profiles": found})


@app.command(epilog="Example: `llama-jax compare before.csv after.csv`")
def compare(
    old: Annotated[Path, typer.Argument(help="A table of trials: .csv, .parquet or .jsonl.")],
    new: Annotated[Path, typer.Argument(help="Another one, of the same subjects.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare although machine, model or tokens differ; says how.")
    ] = False,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out lines of a .jsonl file that cannot be read.")
    ] = False,
    json_: Json = False,
) -> None:
    """Compare two recorded runs; refuses what cannot be compared."""
    from llama_lab.reporting.comparison import compare as between
    from llama_lab.reporting.comparison import lines

    found = between(old, new, anyway=anyway, skip_corrupt=skip_corrupt)
    for line in lines(found):
        tell(line) if json_ else print(line)
    if json_:
        emit(found)
