"""The verbs `extract` and `verify`."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.cli.common import ROWS, TOKENS, Dtype, Json, Model, app, bars_shown, emit, tell
from llama_jax.errors import UserError
from llama_jax.values import LARGEST

PER_CORE = 4  # processes: each loads the model
IN_FLIGHT, WRITERS = 1_000, 256  # at most
Sites = Annotated[
    list[str],
    typer.Option("--sites", help="Such as `resid_post:3,7`, `mlp_out:0-5`, `q:all`, `ln_final`; several with spaces."),
]


@app.command(
    epilog="Example: `llama-jax extract --source texts.jsonl --sites 'resid_post:3,7 mlp_out:0-5' --out activations`"
)
def extract(
    context: typer.Context,
    sites: Sites,
    out: Annotated[str, typer.Option(help="Folder, or any URL that fsspec knows.")],
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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that OUT holds.")] = False,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes on this machine, each with its share of units and cores.")
    ] = 1,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="One of the processes that srun or another launcher starts.")
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
    from llama_jax.activations import ActivationSpec, extraction, supervisor, workers
    from llama_jax.activations.sources import open_source
    from llama_jax.model.quantise import FORMS

    if dtype in FORMS:
        raise UserError(f"--dtype {dtype}: activations are read in float32 or bfloat16.")
    place = workers.place()
    if processes > 1 and not place:
        check_processes(processes, distributed, source, trace)
        with bar(lambda: open_source(source, field, limit).total) as progress:
            return told(supervisor.run_local(context.obj, processes, progress, together=mesh is not None), json_)
    spec = ActivationSpec(" ".join(sites), read_positions(positions), keep)
    texts = open_source(source, field, limit)
    spec.resolve(checkpoint.load_config(model))  # a mistake is told before the weights are read
    with workers.leaving():
        if place:
            workers.settle(place)
            workers.join(place.coordinator, place.count, place.index)
        elif distributed:
            workers.join()
        extractor = made(model, dtype, mesh, spec, (batch, length), pack, row_limit, generate)
        with said() if place else bar(lambda: texts.total) as progress:
            report = extraction.extract(
                extractor, texts, out, depth, writers, resume, unit=unit, progress=progress, trace=trace
            )
    if place:
        emit({"report": asdict(report)})
    else:
        told(report, json_)


def made(
    model: str, dtype: str, mesh: str | None, spec, batch: tuple[int, int], pack: bool, row_limit: int, generate: int
):
    """The extractor; over a mesh its weights are loaded by the processor, and no device ever holds all of them.
    generate: tokens of answer whose activations are wanted, 0 to read the examples themselves."""
    from llama_jax import checkpoint
    from llama_jax.activations import Extractor, Generator, sharding

    if generate:
        if mesh is not None:
            raise UserError("--generate makes tokens on one device; leave --mesh away.")
        return Generator(checkpoint.load(model, dtype), spec, batch, generate, row_limit)
    if mesh is None:
        return Extractor(checkpoint.load(model, dtype), spec, batch, pack, row_limit)
    grid = sharding.parse(mesh)
    sharding.check_batch(batch, grid)
    return Extractor(checkpoint.load(model, dtype, sharding.host()), spec, batch, pack, row_limit, grid)


def check_processes(processes: int, distributed: bool, source: str, trace: Path | None) -> None:
    """Raises UserError for what does not go together with --processes."""
    if processes > (most := PER_CORE * (os.cpu_count() or 1)):
        raise UserError(f"--processes is {processes:,}; on this machine at most {most} are started.")
    if distributed:
        raise UserError(
            "--processes starts the processes here, --distributed is for those that a launcher starts: give one"
            " of them."
        )
    if source == "-":
        raise UserError(
            "Standard input can be read by one process only; write it to a file first, or leave --processes away."
        )
    if trace:
        raise UserError("--trace is of one process; leave --processes away.")


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
def bar(total: Callable[[], int | None]) -> Iterator[Callable]:
    """A line on standard error: units, tokens, tokens/s, MB/s, and how long the rest will take. total: examples of the
    source, None where that is not known; asked for in a thread of its own, because counting may take a while."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    counted = []

    def count() -> None:
        with contextlib.suppress(Exception):  # a forecast: what is wrong with the source is told where it is read
            counted.append(total())

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    if bars_shown():
        threading.Thread(target=count, daemon=True).start()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not bars_shown()) as shown:
        task = shown.add_task("reading", total=None)
        yield lambda done: shown.update(task, description=line(done, counted[0] if counted else None))


def line(done, total: int | None) -> str:
    """A run's progress in one line."""
    spent = max(done.seconds, 1e-9)
    text = (
        f"{done.units} units, {done.tokens:,} tokens, {done.tokens / spent:,.0f} tokens/s,"
        f" {done.bytes / spent / 1e6:.1f} MB/s"
    )
    if total is None or not done.examples:
        return text
    left = max(total - done.before - done.examples, 0) / done.examples * spent
    return f"{text}, {(done.before + done.examples) / total:.0%}, {timedelta(seconds=round(left))} left"


@app.command(epilog="Example: `llama-jax verify activations`")
def verify(
    out: Annotated[str, typer.Argument(metavar="DIR", help="Folder or URL that `extract` wrote.")], json_: Json = False
) -> None:
    """Check every byte of extracted activations against what was committed; exit code 1 when something is wrong."""
    from llama_jax.activations.folders import open_folder
    from llama_jax.activations.verification import check

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
