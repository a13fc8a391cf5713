"""The verbs `extract` and `verify`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import typer

from llama_jax.plumbing import progress
from llama_jax.plumbing.errors import UserError, near
from llama_jax.plumbing.values import LARGEST, shown
from llama_lab import interruption
from llama_lab.cli import options
from llama_lab.cli.common import bars_shown, emit, outcome, tell
from llama_lab.cli.options import ROWS, TOKENS, argument, flag, option, verb

PER_CORE = 4  # processes: each loads the model
IN_FLIGHT, WRITERS = 1_000, 256  # at most
RESULTS = "results"  # before a file, what `verify` is asked about
ENGINES = ("processes", "ray")


@verb("`llama-jax extract --source texts.jsonl --sites 'resid_post:3,7 mlp_out:0-5' --out activations`")
class Extract:
    """Write the activations of chosen sites for a whole corpus, with one compilation, unit by unit."""

    context: typer.Context  # whose object is the command line
    out: str = option(..., "Folder, or any URL that fsspec knows.")
    sites: list[str] = option(
        (), "Such as `resid_post:3,7`, `mlp_out:0-5`, `q:all`, `ln_final`; several separated by spaces.", "--sites"
    )
    model: str = options.model()
    source: str = option(
        "manual",
        "Texts: .txt, .jsonl, .parquet, a folder or pattern of them, hf:OWNER/NAME, `-`, or Python's own `manual`.",
    )
    field: str | None = option(None, "Field or column with the text or its token ids; `text` by default.")
    limit: int | None = option(None, "Most examples to read.", min=1, max=2**53)
    positions: str = option("all", "all, last, or numbers such as 0,-1.")
    keep: str = option("bfloat16", "Type to store activations in: bfloat16, float16 or float32.", "--keep")
    dtype: str = options.dtype("float32")
    batch: int = option(8, "Rows of a batch.", min=1, max=ROWS)
    length: int = option(256, "Tokens of a row; longer examples are cut into pieces.", min=1, max=TOKENS)
    generate: int = option(
        0,
        "Take the examples as prompts of at most --length tokens, answer each greedily with up to this many tokens, and"
        " keep the answers' activations.",
        min=0,
        max=TOKENS,
    )
    pack: bool = option(True, "Let several examples share a row; each attends to itself only.")
    unit: int = option(256, "Examples committed together.", min=1, max=LARGEST)
    depth: int = option(2, "Batches in flight.", min=0, max=IN_FLIGHT)
    writers: int = option(2, "Threads that write.", min=0, max=WRITERS)
    row_limit: int = option(256 * 1024, "Most bytes per token.", min=1, max=LARGEST)
    resume: bool = option(True, "Resume the run in OUT; with --no-resume OUT must hold none.")
    shard: str | None = option(
        None, "Only this shard's units, such as 0/16; auto asks the scheduler.", metavar="INDEX/COUNT"
    )
    pending: bool = flag("Only list the units that OUT lacks.")
    processes: int | None = option(
        None,
        "Processes on this machine, each with a share of the cores; or Ray actors, by default one per GPU or machine.",
        min=1,
    )
    engine: str = option("processes", "What does the work: `processes` of this machine, or actors of a `ray` cluster.")
    address: str | None = option(
        None, "Address of the Ray cluster, or auto; by default a cluster that ends with the run.", metavar="HOST:PORT"
    )
    distributed: bool = flag("With --mesh: this is one of the processes that a launcher starts.")
    mesh: str | None = option(None, "Spread the model over all devices, such as 2x4.", metavar="DATAxTENSOR")
    trace: Path | None = option(None, "File (.json.gz) for a Perfetto trace of the first batches.")
    json: bool = options.as_json()

    def run(self) -> dict | None:
        from llama_lab.activations import supervisor

        interruption.STATE.grace = 2 * supervisor.GRACE  # for units that are being written
        place, shard = supervisor.place(), self.asked_shard()
        if self.pending:
            return self.list_pending(shard)
        for mistake in self.mistakes(started=place is not None):
            raise UserError(mistake)
        extracted = self.extracted(place, shard)
        with contextlib.nullcontext(tell_supervisor) if place else bar() as progress:
            report = extracted(progress)
        if place:
            return emit({"report": asdict(report)})
        tell(
            f"{report.out}: {report.units} units, {report.rows:,} rows, {report.bytes:,} bytes; now"
            f" {report.tokens:,} tokens in"
            f" {report.seconds:.1f} s, {report.tokens_per_second:.0f} a second, compilations: {report.compilations}"
        )
        if report.device_idle is not None:
            tell(f"the device was idle for {report.device_idle:.1%} of the traced time")
        return asdict(report)

    def asked_shard(self) -> tuple[int, int] | None:
        """The shard that `--shard` asks for; prints it if a scheduler chose it."""
        from llama_lab.activations import jobs

        if self.shard is None:
            return None
        if self.mesh is not None:
            raise UserError("--shard is for models that fit a device; with --mesh all processes run all units.")
        (index, count), whence = jobs.parse(self.shard)
        if whence != "--shard":
            tell(f"shard {index}/{count}, from {whence}")
        return index, count

    def mistakes(self, started: bool) -> Iterator[str]:
        """Messages for options that contradict each other. started: by the supervisor, which has already checked the
        number of processes."""
        from llama_jax.quantise import FORMS
        from llama_lab.activations import store
        from llama_lab.activations.folder import open_folder

        ray, count, most = self.engine == "ray", self.processes or 1, PER_CORE * (os.cpu_count() or 1)
        if not self.sites:
            yield "--sites is missing; name the activations, such as --sites resid_post:3."
        if self.dtype in FORMS:
            yield f"--dtype is {self.dtype}; activations are computed in float32 or bfloat16."
        if self.distributed and self.mesh is None:
            yield "--distributed is for a --mesh over several processes; add --mesh, or leave it out."
        if self.engine not in ENGINES:
            yield f"--engine is {shown(self.engine)}.{near(self.engine, ENGINES)}"
        if not ray and self.address is not None:
            yield "--address is that of a Ray cluster; add --engine ray."
        if ray and self.shard is not None:
            yield "--engine ray hands out all units itself; leave out --shard."
        if started or not (ray or count > 1):
            return
        option = "--engine ray" if ray else "--processes"
        if not ray and count > most:
            yield f"--processes is {count:,}; this machine starts at most {most}."
        if self.mesh is not None:
            yield f"{option} is for models that fit a device; a --mesh takes one process. Leave one out."
        if self.source == "-":
            yield f"Only one process can read standard input; write it to a file first, or leave out {option}."
        if self.trace is not None:
            yield f"--trace takes one process; leave out {option}."
        if not self.resume and open_folder(self.out).read(store.RUN) is not None:
            yield f"{self.out} already holds a run. Leave out --no-resume to resume it, or choose another folder."

    def extracted(self, place, shard: tuple[int, int] | None) -> Callable:
        """A function that extracts, here, in processes of this machine or by a Ray cluster, and returns the report. It
        takes a callback for progress. place: of a worker, whose units the supervisor hands out."""
        from llama_jax import checkpoint
        from llama_lab.activations import ray_engine, supervisor
        from llama_lab.activations.sources import open_source

        if (self.processes or 1) > 1 and self.engine == "processes" and not place:
            return partial(supervisor.run_local, self.context.obj, self.processes, self.out, shard)
        spec, read = self.spec, partial(open_source, self.source, self.field, self.limit)
        examples = read()
        spec.resolve(checkpoint.load_config(self.model))  # report a mistake before reading the weights
        if self.engine == "ray":
            make = replace(self, context=None).extractor  # it is sent to other processes
            job = ray_engine.Job(make, read, self.out, self.unit, self.depth, self.writers)
            return lambda progress: ray_engine.run(job, progress, self.processes, self.address)
        return partial(self.extract, examples, place, shard)

    @property
    def spec(self):
        from llama_lab.activations import ActivationSpec

        positions = self.positions
        if positions not in ("all", "last"):
            try:
                positions = tuple(int(part) for part in positions.split(","))
            except ValueError:
                raise UserError(f"--positions is {positions!r}; write all, last, or numbers such as 0,-1.") from None
        return ActivationSpec(" ".join(self.sites), positions, self.keep)

    def extractor(self):
        """The extractor; over a mesh its weights are loaded by the processor, and no device ever holds all of them."""
        from llama_jax import checkpoint
        from llama_lab.activations import Extractor, Generator, sharding

        batch, grid, device = (self.batch, self.length), None, None
        if self.generate and self.mesh is not None:
            raise UserError("--generate makes tokens on one device; leave out --mesh.")
        if self.mesh is not None:
            grid, device = sharding.parse(self.mesh), sharding.host()
            sharding.check_batch(batch, grid)
        loaded = checkpoint.load(self.model, self.dtype, device)
        if self.generate:
            return Generator(loaded, self.spec, batch, self.generate, self.row_limit)
        return Extractor(loaded, self.spec, batch, self.pack, self.row_limit, grid)

    def extract(self, examples, place, shard: tuple[int, int] | None, progress: Callable):
        """Extract in this process: everything, a shard, or as a worker (`place`) the units from the supervisor."""
        from llama_lab.activations import extraction, sharding, supervisor

        with sharding.leaving():
            if self.distributed:
                sharding.join()
            same = {name: getattr(self, name) for name in ("depth", "writers", "unit", "trace")}
            same |= (
                dict(units=supervisor.settle(place), resume=True) if place else dict(shard=shard, resume=self.resume)
            )
            return extraction.extract(self.extractor(), examples, self.out, progress=progress, **same)

    def list_pending(self, shard: tuple[int, int] | None) -> dict:
        """The units that a folder lacks, printed as numbers and ranges."""
        from llama_lab.activations import plan
        from llama_lab.activations.folder import open_folder

        missing = plan.pending(self.out, shard)
        asked = len(plan.share_of(range(plan.count_of(open_folder(self.out))), shard))
        count = f"{len(missing):,} of {asked:,} units pending"
        if not self.json:
            print(f"{self.out}: {count}{': ' * bool(missing)}{ranges(missing)}")
        return {"out": self.out, "units": asked, "pending": missing}


def ranges(numbers: list[int]) -> str:
    """`0-2, 7` for 0, 1, 2, 7."""
    runs = itertools.groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ends = [(run[0][1], run[-1][1]) for _, items in runs if (run := list(items))]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def tell_supervisor(done) -> None:
    """Report progress to the supervisor, one line of JSON each time."""
    emit({"progress": done._asdict()})


@contextlib.contextmanager
def bar() -> Iterator[Callable]:
    """A line on standard error: units, tokens, tokens/s, MB/s, and the time left."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not bars_shown()) as drawn:
        task = drawn.add_task("reading", total=None)

        def say(text: str) -> None:
            drawn.update(task, description=text)

        with progress.heard(progress.lines(say, 0.2)) if bars_shown() else contextlib.nullcontext():
            yield lambda done: say(line(done))


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


@verb("`llama-jax verify activations`, or `llama-jax verify results data/machines/FILE`")
class Verify:
    """Check every byte of extracted activations against its commit, or everything in a contributed file. The exit code
    is 1 if something is wrong."""

    out: str = argument(..., "Folder or URL that `extract` wrote, or `results` before a FILE.", metavar="DIR")
    file: Path | None = argument(None, "File that `contribute` wrote, after `results`.")
    json: bool = options.as_json()

    def run(self) -> tuple[dict, bool]:
        if self.file is not None and self.out != RESULTS:
            raise UserError(f"verify takes one folder, or `{RESULTS}` and a file; leave out {str(self.file)!r}.")
        if self.file is not None:
            from llama_lab.sharing import verification

            checked = verification.check(self.file)
            what = f"{checked.machine or self.file.name}, {len(checked.trials)} rows"
            about = dict(machine=checked.machine, rows=len(checked.trials))
        else:
            from llama_lab.activations import verification
            from llama_lab.activations.folder import open_folder

            checked = verification.check(open_folder(self.out))
            what = f"{checked.units} units, {checked.rows:,} rows"
            about = dict(units=checked.units, rows=checked.rows)
        document, sound = outcome(checked.problems, **about)
        if not self.json:
            print(f"{what}: {'sound' if sound else f'{len(checked.problems)} problems'}")
        return document, sound
