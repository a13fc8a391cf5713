"""An experiment: a notebook's parameters as one object, what it measures, and the runner that carries it out.

A notebook makes the object from its parameters and obtains its rows:

    growth = measure.Growth.from_parameters(globals())
    trials, meta = growth.obtain(source, NAME, out_dir)

An experiment defines the points to measure, each in a fresh process, and the method that runs there. The runner does
the rest: the measurement lock, processes, progress, the journal, resuming after an interruption, and gaps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, ClassVar, Self, TypeVar

from llama_jax import checkpoint
from llama_jax.plumbing import runtime, settings
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import available, environment, lab, notebook, process, protocol, recorded
from llama_lab.bench.journal import Journal
from llama_lab.bench.progress import Progress, announce
from llama_lab.bench.record import Row, Trial
from llama_lab.bench.workload import Workload

T = TypeVar("T")
REDRAWN = "redrawn"  # marks a field: recorded data may be drawn with another value
Seed = typing.Annotated[int, REDRAWN]  # of a bootstrap too, or of what the notebook does live


@dataclass(frozen=True)
class Named:
    """Marks a field that has another name among the notebook's parameters: `model: Annotated[str, Named("shapes")]`."""

    name: str


@dataclass(frozen=True)
class Point:
    """What one fresh process measures.

    run, block: of its rows, which name it in the journal. task: a method of the experiment or a function of a module,
    called as task(lab, **arguments) in that process. rows: how many it leaves of its block. what: as the progress says
    it. model: another one than the experiment's. cache: folder of JAX's persistent compilation cache, none by default.
    interpreter: another Python than this one. watched: whether its note says what else the machine did.
    """

    run: str
    block: int
    task: Callable
    rows: int
    arguments: dict = field(default_factory=dict)
    what: str = ""
    model: str = ""
    workload: Workload | None = None
    threads: int | None = None
    cache: Path | None = None
    interpreter: process.Interpreter = process.HERE
    watched: bool = True


@dataclass(frozen=True)
class Experiment:
    """What a notebook measures. A subclass is a frozen dataclass whose fields are parameters of the notebook. Recorded
    data were measured with one value of each, and are not drawn under another, unless the field is `REDRAWN`.

    kind: what its rows are. beside: fields that are not parameters of the notebook, such as a list in its code.
    optional: its notebook draws without its table, and says that this was not measured.
    given: the notebook's parameters that someone chose, see `notebook.given`.
    """

    kind: ClassVar[type[Row]] = Trial
    beside: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[bool] = False
    given: ClassVar[Mapping[str, object]] = {}

    def __post_init__(self):
        for name in names_of(self):
            object.__setattr__(self, name, frozen(getattr(self, name)))

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, object], **others) -> Self:
        """The experiment with its fields taken by name from a notebook's parameters. others: fields that are not
        parameters. Raises UserError if a parameter is missing."""
        made = from_names(cls, parameters, **others)
        object.__setattr__(made, "given", notebook.given(str(parameters.get("NAME", "")), parameters))
        return made

    @property
    def parameters(self) -> dict:
        """The parameters in the meta of its table."""
        return {name: getattr(self, name) for name in names_of(self) if name not in self.beside}

    @property
    def also(self) -> object:
        """What else must match for two runs to be the same, beside their parameters; compared by `repr`."""
        return None

    def check(self) -> None:
        """Raises UserError for a plan that cannot be measured, before anything is loaded."""

    def check_recorded(self, table: str, meta: dict) -> None:
        """Raises UserError for a parameter that someone chose and that a table was not recorded with."""
        marks = marks_of(type(self))
        for name in names_of(self):
            said = name_in_notebook(name, marks[name])
            if said in self.given and said not in notebook.RUNNERS and REDRAWN not in marks[name]:
                now = json.loads(json.dumps(self.given[said], default=lambda one: getattr(one, "name", str(one))))
                then = self.recorded_with(meta).get(name, notebook.UNKNOWN)
                if now != then:
                    raise notebook.differs(said, now, table, then)

    def recorded_with(self, meta: dict) -> dict:
        """Fields and the values that a table was recorded with, as its meta says."""
        return meta["parameters"]

    def points(self, runner: Runner) -> Sequence[Point]:
        """What each process measures, in the order in which they are started."""
        return []

    def about(self, runner: Runner) -> dict:
        """What the meta says of the rows, beside parameters and environment."""
        return {}

    def measure(self, runner: Runner) -> tuple[list[Row], dict]:
        """(rows, what the meta says of them) of everything that the journal does not hold yet."""
        runner.run(self.points(runner))
        return runner.rows, self.about(runner)

    def record(self, journal: Journal | None = None, progress: Progress = announce) -> tuple[list[Row], dict]:
        """`check`, then `measure` into a journal."""
        self.check()
        return self.measure(Runner(self, Journal(kind=self.kind) if journal is None else journal, progress))

    def obtain(
        self, source: str, name: str, out_dir: str | Path, progress: Progress = announce
    ) -> tuple[list[Row], dict]:
        """The rows and their meta: measured now and written to OUT/data/NAME.csv, or as recorded there, else in the
        repository.

        source: `measure` or `recorded`. The journal is in OUT/out/journal. An interrupted run resumes from it when it
        is started again with the same parameters, weights, code and machine. No other measurement begins before this
        one ends. There are no rows if the table is `optional` and not recorded yet. Raises UserError for another
        source, and for other parameters than the recorded ones.
        """
        if recorded.is_measured(source):
            settings.ready(measuring=True)
            before, parameters = environment.capture(), self.parameters
            runtime.warn(before["runtime"])
            weights = checkpoint.find(parameters["model"]).hash() if "model" in parameters else ""
            plan = {**recorded.journal_plan(parameters, before, weights), "also": repr(self.also)}
            digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]
            path = Path(out_dir) / "out" / "journal" / f"{name}-{digest}.jsonl"
            journal = Journal(path, plan, kind=self.kind, environment=before)
            with protocol.alone():
                rows, about = self.record(journal, progress)
            recorded.write(name, out_dir, rows, journal, parameters, **about)
            return recorded.read(name, out_dir, self.kind)
        if self.optional and not recorded.table_path(name, out_dir).is_file():
            self.check_recorded(name, dict(parameters={}))
            return [], {}
        rows, meta = recorded.read(name, out_dir, self.kind)
        self.check_recorded(name, meta)
        return rows, meta


@dataclass(frozen=True)
class Runner:
    """An experiment under way: the journal that it fills, and the processes that it starts. limit: seconds of silence
    after which a process is stopped."""

    experiment: Experiment
    journal: Journal
    progress: Progress = announce
    limit: float = process.LIMIT_S

    @property
    def model(self) -> str:
        return getattr(self.experiment, "model", checkpoint.DEFAULT)

    @property
    def rows(self) -> list[Row]:
        """What was measured, without what interrupted processes left."""
        return whole(self.journal.trials)

    @property
    def missing(self) -> list[dict]:
        """What could not be measured: {name, reason, remedy}."""
        return self.journal.missing

    def present(self, names: Sequence[str]) -> list[str]:
        """Those that can run here; the journal says why the others cannot.

        What an earlier run found missing before it began is checked again, because it may be there now. What a
        measuring process could not build stays left out.
        """
        failed = {note["missing"]["name"] for note in self.journal.notes if "missing" in note and "process" in note}
        asked = [name for name in names if name not in failed]
        gaps = available.gaps(asked, self.model)
        self.journal.note_missing(asked, gaps)
        absent = failed | {gap["name"] for gap in gaps}
        return [name for name in names if name not in absent]

    def has(self, run: str, block: int) -> bool:
        """Whether the journal has a row of this block of a run."""
        return any(t.run == run and t.block == block for t in self.journal.trials)

    def run(self, points: Sequence[Point]) -> None:
        """Measure each point in its own process, one after the other."""
        for i, point in enumerate(points):
            self.progress(point.what or point.run, i, len(points))
            self.child(point)

    def child(self, point: Point) -> None:
        """Run one process, unless its rows are already in the journal. Raises UserError when it dies."""
        made = Counter(t.process for t in self.journal.trials if t.run == point.run and t.block == point.block)
        if max(made.values(), default=0) >= point.rows:
            return
        identity = dict(run=point.run, block=point.block, process=self.journal.next_process())
        work = point.workload and asdict(point.workload)
        owner = getattr(point.task, "__self__", None)
        given = dict(identity=identity, model=point.model or self.model, workload=work)
        asked = dict(lab=given, arguments=point.arguments, is_watched=point.watched)
        if owner is None:
            asked |= dict(task=f"{point.task.__module__}:{point.task.__qualname__}")
        else:
            kind = f"{type(owner).__module__}:{type(owner).__qualname__}"
            asked |= dict(task=point.task.__name__, experiment=dict(kind=kind, fields=asdict(owner)))

        def heard(kind: str, value) -> None:
            if kind == "progress":
                self.progress(*value)

        how = dict(threads=point.threads, cache=point.cache, interpreter=point.interpreter, limit=self.limit)
        with protocol.alone() as lock:
            outcome = run_child(self.journal, lock, asked, heard, **how)
        if not outcome.ok:
            raise UserError(f"A measuring process ({point.run}) failed: {outcome.reason}")


def run_child(
    journal: Journal | None, lock: IO, asked: dict, heard: Callable[[str, object], None], **how
) -> process.Outcome:
    """Run one fresh process, which holds the measurement lock. Its rows and notes go to the journal; then heard(kind,
    value) is called for each message. asked: as `lab.main` takes it. how: as `process.start` takes it."""

    def receive(kind: str, value) -> None:
        if journal is not None:
            journal.receive(kind, value, asked["lab"]["identity"]["process"])
        heard(kind, value)

    return process.start(f"{lab.__name__}:main", asked, receive, held=(lock.fileno(),), **how)


def names_of(kind: object) -> list[str]:
    return [each.name for each in dataclasses.fields(kind)]


def marks_of(kind: type) -> dict[str, tuple[object, ...]]:
    """What stands in `Annotated` behind the type of each field."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: getattr(hints[name], "__metadata__", ()) for name in names_of(kind)}


def name_in_notebook(field: str, marks: Sequence[object]) -> str:
    return next((mark.name for mark in marks if isinstance(mark, Named)), field)


def from_names(kind: type[T], parameters: Mapping[str, object], **others) -> T:
    """A dataclass with its fields taken by name from a notebook's parameters, as `Experiment.from_parameters`."""
    beside = {*getattr(kind, "beside", ()), *others}
    wanted = {name: name_in_notebook(name, marks) for name, marks in marks_of(kind).items() if name not in beside}
    for name in wanted.values():
        if name not in parameters:
            raise UserError(f"{kind.__name__} needs {name}, which is not among the notebook's parameters.")
    return kind(**{field: parameters[name] for field, name in wanted.items()}, **others)


def check_counts(**counts: int) -> None:
    """Raises UserError for a count below one."""
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"{name} is {count}; it must be 1 or more.")


def whole(rows: Sequence[Row]) -> list[Row]:
    """The rows of the last process that tried each run and block; leftovers of interrupted ones are dropped."""
    last: dict[tuple[str, int], int] = {}
    for t in rows:
        last[t.run, t.block] = max(t.process, last.get((t.run, t.block), 0))
    return [t for t in rows if last[t.run, t.block] == t.process]


def frozen(value: object) -> object:
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
