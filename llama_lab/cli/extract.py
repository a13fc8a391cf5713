"""The verbs `extract` and `verify`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import LARGEST
from llama_lab.cli.common import ROWS, TOKENS, Dtype, Json, Model, app, bars_shown, emit, tell

PER_CORE = 4  # processes: each loads the model
IN_FLIGHT, WRITERS = 1_000, 256  # at most
RESULTS = "results"  # before a file, what `verify` is asked about
ENGINES = ("processes", "ray")
Sites = Annotated[
    list[str],
    typer.Option("--sites", help="Such as `resid_post:3,7`, `mlp_out:0-5`, `q:all`, `ln_final`; several with spaces."),
]


@app.command(
    epilog="Example: `llama-jax extract --source texts.jsonl --sites 'resid_post:3,7 mlp_out:0-5' --out activations`"
)
def extract(
    context: typer.Context,
    out: Annotated[str, typer.Option(help="Folder, or any URL that fsspec knows.")],
    sites: Sites = (),
    model: Model = "smollm2-135m-instruct",
    source: Annotated[
        str,
        typer.Option(
            help="Texts: .txt, .jsonl, .parquet, a folder or pattern of them, hf:OWNER/NAME, `-`, or Python's own"
            " `manual`."
        ),
    ] = "manual",
    field: Annotated[
        str | None, typer.Option(help="Field or column that holds the text or its token ids; `text`.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=2**53, help="Examples to read at most.")] = None,
    positions: Annotated[str, typer.Option(help="all, last, or numbers such as 0,-1.")] = "all",
    keep: Annotated[
        str, typer.Option("--keep", help="Type that activations are kept in: bfloat16, float16 or float32.")
    ] = "bfloat16",
    dtype: Dtype = "float32",
    batch: Annotated[int, typer.Option(min=1, max=ROWS, help="Rows of a batch.")] = 8,
    length: Annotated[
        int, typer.Option(min=1, max=TOKENS, help="Tokens of a row; longer examples are cut into pieces.")
    ] = 256,
    generate: Annotated[
        int,
        typer.Option(
            min=0,
            max=TOKENS,
            help="Take the examples as prompts of at most --length tokens, answer each greedily with up to so many, and"
            " keep the activations of these.",
        ),
    ] = 0,
    pack: Annotated[bool, typer.Option(help="Let several examples share a row, each seeing itself only.")] = True,
    unit: Annotated[int, typer.Option(min=1, max=LARGEST, help="Examples that are committed together.")] = 256,
    depth: Annotated[int, typer.Option(min=0, max=IN_FLIGHT, help="Batches in flight.")] = 2,
    writers: Annotated[int, typer.Option(min=0, max=WRITERS, help="Threads that write.")] = 2,
    row_limit: Annotated[int, typer.Option(min=1, max=LARGEST, help="Bytes that one token may take.")] = 256 * 1024,
    resume: Annotated[bool, typer.Option(help="Go on with the run that OUT holds; else OUT must hold none.")] = True,
    shard: Annotated[
        str | None,
        typer.Option(metavar="INDEX/COUNT", help="Only this shard's units, such as 0/16; auto asks the scheduler."),
    ] = None,
    pending: Annotated[bool, typer.Option("--pending", help="Only list the units that OUT lacks.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes on this machine, each with its share of cores, taking units in turn; or actors of Ray, one"
            " a GPU or machine unless it is said how many.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Who brings the processes: `processes` of this machine, or a `ray` cluster's actors.")
    ] = "processes",
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The Ray cluster's, or auto; without, one that ends with the run."),
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="With --mesh: one of the processes that a launcher starts.")
    ] = False,
    mesh: Annotated[
        str | None, typer.Option(metavar="DATAxTENSOR", help="Spread the model over all devices, such as 2x4.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="File (.json.gz) for a Perfetto trace of the first batches.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write the activations of chosen sites for a whole corpus: one compilation, every unit committed."""
    from llama_jax import checkpoint
    from llama_jax.quantise import FORMS
    from llama_lab.activations import ActivationSpec, extraction, multihost, ray_engine, supervisor, workers
    from llama_lab.activations.sources import open_source

    place, part = workers.place(), None if shard is None else shard_of(shard, mesh)
    if pending:
        return listed(out, part, json_)
    if not sites:
        raise UserError("--sites is missing: which activations? Such as --sites resid_post:3.")
    if dtype in FORMS:
        raise UserError(f"--dtype {dtype}: activations are read in float32 or bfloat16.")
    if distributed and mesh is None:
        raise UserError("--distributed is for a --mesh over several processes; without one no process needs another.")
    check_engine(engine, address, shard)
    if not place and (engine == "ray" or (processes or 1) > 1):
        check_processes(engine, processes, mesh, source, trace)
        check_fresh(out, resume)
    if processes and processes > 1 and engine == "processes" and not place:
        with bar() as progress:
            return told(supervisor.run_local(context.obj, processes, out, part, progress), json_)
    spec = ActivationSpec(" ".join(sites), read_positions(positions), keep)
    texts = open_source(source, field, limit)
    spec.resolve(checkpoint.load_config(model))  # a mistake is told before the weights are read
    if engine == "ray":
        making = (model, dtype, None, spec, (batch, length), pack, row_limit, generate)
        job = ray_engine.Job(
            partial(made, *making), partial(open_source, source, field, limit), out, unit, depth, writers
        )
        with bar() as progress:
            return told(ray_engine.run(job, progress, processes, address), json_)
    given = workers.settle(place) if place else None
    with multihost.leaving():
        if distributed:
            multihost.join()
        extractor = made(model, dtype, mesh, spec, (batch, length), pack, row_limit, generate)
        with said() if place else bar() as progress:
            report = extraction.extract(
                extractor, texts, out, depth, writers, resume or bool(place), unit=unit, units=given,
                shard=None if place else part, progress=progress, trace=trace,
            )  # fmt: skip
    if place:
        emit({"report": asdict(report)})
    else:
        told(report, json_)


def shard_of(text: str, mesh: str | None) -> tuple[int, int]:
    """The shard that `--shard` asks for, said to people where a scheduler told it."""
    from llama_lab.activations import jobs

    if mesh is not None:
        raise UserError("--shard is for models that fit a device; over a --mesh all processes run all units.")
    (index, count), whence = jobs.parse(text)
    if whence != "--shard":
        tell(f"shard {index}/{count}, from {whence}")
    return index, count


def listed(out: str, shard: tuple[int, int] | None, json_: bool) -> None:
    """The units that a folder lacks, as numbers and ranges of them."""
    from llama_lab.activations import plan
    from llama_lab.activations.folders import open_folder

    missing, count = plan.pending(out, shard), plan.count_of(open_folder(out))
    asked = len(plan.share_of(range(count), shard))
    if json_:
        emit({"out": out, "units": asked, "pending": missing})
    else:
        print(f"{out}: {len(missing):,} of {asked:,} units pending{': ' if missing else ''}{ranges(missing)}")


def ranges(numbers: list[int]) -> str:
    """`0-2, 7` for 0, 1, 2, 7."""
    runs = itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ends = [(run[0][1], run[-1][1]) for _, items in runs if (run := list(items))]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def check_fresh(out: str, resume: bool) -> None:
    """Raises UserError where a folder holds a run, and none is to be gone on with."""
    from llama_lab.activations import store
    from llama_lab.activations.folders import open_folder

    if not resume and open_folder(out).read(store.RUN) is not None:
        raise UserError(
            f"{out} holds a run already. Leave --no-resume away to go on with it, or choose another folder."
        )


def made(
    model: str, dtype: str, mesh: str | None, spec, batch: tuple[int, int], pack: bool, row_limit: int, generate: int
):
    """The extractor; over a mesh its weights are loaded by the processor, and no device ever holds all of them.
    generate: tokens of answer whose activations are wanted, 0 to read the examples themselves."""
    from llama_jax import checkpoint
    from llama_lab.activations import Extractor, Generator, sharding

    if generate:
        if mesh is not None:
            raise UserError("--generate makes tokens on one device; leave --mesh away.")
        return Generator(checkpoint.load(model, dtype), spec, batch, generate, row_limit)
    if mesh is None:
        return Extractor(checkpoint.load(model, dtype), spec, batch, pack, row_limit)
    grid = sharding.parse(mesh)
    sharding.check_batch(batch, grid)
    return Extractor(checkpoint.load(model, dtype, sharding.host()), spec, batch, pack, row_limit, grid)


def check_engine(engine: str, address: str | None, shard: str | None) -> None:
    """Raises UserError for an engine that there is not, or options of another."""
    if engine not in ENGINES:
        raise UserError(f"--engine is {shown(engine)}.{near(engine, ENGINES)}")
    if engine != "ray" and address is not None:
        raise UserError("--address is of a Ray cluster; add --engine ray.")
    if engine == "ray" and shard is not None:
        raise UserError("--engine ray hands out all units itself; leave --shard away.")


def check_processes(engine: str, processes: int | None, mesh: str | None, source: str, trace: Path | None) -> None:
    """Raises UserError for what does not go together with several processes."""
    option = "--engine ray" if engine == "ray" else "--processes"
    if engine != "ray" and processes > (most := PER_CORE * (os.cpu_count() or 1)):
        raise UserError(f"--processes is {processes:,}; on this machine at most {most} are started.")
    if mesh is not None:
        raise UserError(f"{option} is for models that fit a device; one process serves all devices of a --mesh here.")
    if source == "-":
        raise UserError(
            f"Standard input can be read by one process only; write it to a file first, or leave {option} away."
        )
    if trace:
        raise UserError(f"--trace is of one process; leave {option} away.")


def told(report, json_: bool) -> None:
    """A run's report, for people and as the last line of standard output."""
    tell(
        f"{report.out}: {report.units} units, {report.rows:,} rows, {report.bytes:,} bytes; now"
        f" {report.tokens:,} tokens in"
        f" {report.seconds:.1f} s, {report.tokens_per_second:.0f} a second, compilations: {report.compilations}"
    )
    if report.device_idle is not None:
        tell(f"the device was idle for {report.device_idle:.1%} of the traced time")
    if json_:
        emit(asdict(report))


@contextlib.contextmanager
def said() -> Iterator[Callable]:
    """Progress for the supervisor: a line of JSON each time."""
    yield lambda done: emit({"progress": done._asdict()})


def read_positions(text: str) -> str | tuple[int, ...]:
    """`all`, `last`, or numbers with commas between them."""
    if text in ("all", "last"):
        return text
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--positions is {text!r}; write all, last, or numbers such as 0,-1.") from None


@contextlib.contextmanager
def bar() -> Iterator[Callable]:
    """A line on standard error: units, tokens, tokens/s, MB/s, and how long the rest will take."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not bars_shown()) as shown:
        task = shown.add_task("reading", total=None)
        yield lambda done: shown.update(task, description=line(done))


def line(done) -> str:
    """A run's progress in one line."""
    spent = max(done.seconds, 1e-9)
    text = (
        f"{done.units} units, {done.tokens:,} tokens, {done.tokens / spent:,.0f} tokens/s,"
        f" {done.bytes / spent / 1e6:.1f} MB/s"
    )
    if not done.total or not done.examples:
        return text
    left = max(done.total - done.before - done.examples, 0) / done.examples * spent
    return f"{text}, {(done.before + done.examples) / done.total:.0%}, {timedelta(seconds=round(left))} left"


@app.command(epilog="Example: `llama-jax verify activations`, or `llama-jax verify results data/machines/FILE`")
def verify(
    out: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder or URL that `extract` wrote; or `results` before a FILE.")
    ],
    file: Annotated[Path | None, typer.Argument(help="What `contribute` wrote, after `results`.")] = None,
    json_: Json = False,
) -> None:
    """Check every byte of extracted activations against what was committed, or all that a contributed file says; exit
    code 1 when something is wrong."""
    if file is not None:
        if out != RESULTS:
            raise UserError(f"verify takes one folder, or `{RESULTS}` and a file; {str(file)!r} is one too many.")
        from llama_lab.cli.sharing import verify_results

        return verify_results(file, json_)
    from llama_lab.activations.folders import open_folder
    from llama_lab.activations.verification import check

    found = check(open_folder(out))
    problems = found.problems
    for problem in problems:
        tell(f"{problem.file}: {problem.reason}")
    if json_:
        emit({"ok": not problems, "units": found.units, "rows": found.rows, "problems": [asdict(p) for p in problems]})
    else:
        print(f"{found.units} units, {found.rows:,} rows: {'sound' if not problems else f'{len(problems)} problems'}")
    if problems:
        raise typer.Exit(1)
