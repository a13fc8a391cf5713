"""A run on a Ray cluster: a pool of actors, each with the model loaded once, receives the missing units.

Ray restarts an actor whose process or machine has died, anywhere, and repeats its call; units of actors that do not
come back are overtaken (`dealer`). The driver computes nothing, and holds nothing that is not in the folder. Ray Data
is not used: its blocks would decide what is written together, and the bytes would depend on them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from llama_lab.activations import ray_cluster
from llama_lab.activations.dealer import IN_HAND, Dealer
from llama_lab.activations.extraction import extract
from llama_lab.activations.folder import open_folder
from llama_lab.activations.plan import finish, pending, read_plan
from llama_lab.activations.program import Compiled
from llama_lab.activations.records import commits
from llama_lab.activations.run import Progress, RunReport, summed
from llama_lab.activations.sources import Source
from llama_lab.activations.supervisor import terminable

GRACE = 5.0  # seconds that actors have to say what they did, and to go
END = object()
SPENT = ("units", "examples", "tokens", "bytes", "seconds", "before")


class Pipeline:
    """One call of `extract` that gets its units one by one. Reading, computing and writing overlap over as many units
    as there are threads waiting in `do`.

        pipeline = Pipeline(partial(extract, extractor, source, out))
        pipeline.do(7)      # in any thread; returns when unit 7 is committed

    extract: called once, in its own thread, with `units=` and `progress=`. Its exception is raised by every waiting
    `do` and every later one.
    """

    def __init__(self, extract: Callable[..., RunReport]):
        self.extract, self.lock = extract, threading.Lock()
        self.asked: SimpleQueue[int | object] = SimpleQueue()
        self.waiting: dict[int, Future[Progress]] = {}
        self.last: Progress | None = None
        self.ended: Future[RunReport] = Future()
        threading.Thread(target=self._run, name="pipeline", daemon=True).start()

    def do(self, unit: int) -> Progress:
        """Have a unit committed; returns a `Progress` of this unit. Raises what `extract` raised."""
        with self.lock:
            if self.ended.done():
                self.ended.result()
                raise RuntimeError("the pipeline has been ended")
            if unit not in self.waiting:
                self.waiting[unit] = Future()
                self.asked.put(unit)
            committed = self.waiting[unit]
        return committed.result()

    def end(self) -> RunReport:
        """No more units: the report of all."""
        self.asked.put(END)
        return self.ended.result()

    def _run(self) -> None:
        try:
            report = self.extract(units=iter(self.asked.get, END), progress=self._heard)
        except BaseException as error:  # whatever it is, those who wait must hear of it
            with self.lock:
                self.ended.set_exception(error)
                for committed in self.waiting.values():
                    committed.set_exception(error)
        else:
            self.ended.set_result(report)

    def _heard(self, done: Progress) -> None:
        with self.lock:
            before, self.last = self.last, done
            if done.unit is None or (committed := self.waiting.pop(done.unit, None)) is None:
                return
            spent = {name: getattr(done, name) - getattr(before, name) for name in SPENT}
            committed.set_result(done._replace(**spent))


@dataclass(frozen=True)
class Job:
    """What every actor does. make, source: called in the actor's own process, once. folder: that relative paths are
    from."""

    make: Callable[[], Compiled]
    source: Callable[[], Source]
    out: str
    unit: int
    depth: int = 2
    writers: int = 2
    folder: str = field(default_factory=os.getcwd)


class Actor:
    """One device, or one share of a machine's cores. It makes nothing before the first call, so that a failure is an
    answer, not a death that Ray would restart for ever."""

    def __init__(self, job: Job, cores: int):
        self.job, self.cores, self.lock = job, cores, threading.Lock()
        self.extract: Callable[..., RunReport] | None = None
        self.pipeline: Pipeline | None = None

    def begin(self) -> None:
        """Claim the folder, plan its units."""
        self._ready()(units=[])

    def do(self, unit: int) -> Progress:
        """Have a unit committed."""
        extract = self._ready()
        with self.lock:
            self.pipeline = self.pipeline or Pipeline(extract)
        return self.pipeline.do(unit)

    def end(self) -> RunReport | None:
        return self.pipeline and self.pipeline.end()

    def _ready(self) -> Callable[..., RunReport]:
        with self.lock:
            if self.extract is None:
                job = self.job
                ray_cluster.settle(self.cores)
                with contextlib.suppress(OSError):  # another machine may have no such folder
                    os.chdir(job.folder)
                options = dict(depth=job.depth, writers=job.writers, unit=job.unit)
                self.extract = partial(extract, job.make(), job.source(), job.out, **options)
            return self.extract


def run(
    job: Job, progress: Callable[[Progress], None], actors: int | None = None, address: str | None = None
) -> RunReport:
    """Extract all that a folder lacks on the Ray cluster at `address`, or on this machine if there is none.

    actors: how many; by default one per GPU, or if there are none one per machine. Raises UserError if Ray is not
    installed or the cluster does not answer, and the first one that an actor raised; what is committed stays. The
    report's padding and compilations are those of the actors that were alive at the end.
    """
    ray = ray_cluster.installed()
    with (
        ray_cluster.interruptible(),
        contextlib.redirect_stdout(ray_cluster.Overheard(sys.stdout)) as overheard,
        ray_cluster.connected(ray, address),
        terminable(),
        ray_cluster.in_one_line(ray),
    ):
        with pool(ray, job, actors) as members:
            claims = [member.begin.remote() for member in members]
            ray.get(ray.wait(claims, num_returns=1)[0])
            tally = Tally(job.out, progress)
            overtaken = driven(ray, members, Dealer(pending(job.out)), tally.heard)
            seconds, overheard.over = tally.seconds, True  # it would speak of calls that nobody needs
            idle = [member for i, member in enumerate(members) if i not in overtaken.values()]
            answers, _ = ray.wait([member.end.remote() for member in idle], num_returns=len(idle), timeout=GRACE)
            reports = [report for report in ray.get(answers) if report]  # who does not answer soon is left out
        if overtaken:  # they keep the folder from being tidied until they are gone
            ray.wait(list(overtaken), num_returns=len(overtaken), timeout=GRACE)
    return tally.report(finish(job.out), reports, seconds)


def driven(ray, members: Sequence, dealer: Dealer, heard: Callable[[Progress], None]) -> dict[object, int]:
    """Have all units committed; returns the calls that others made unnecessary, each with its actor's index."""
    calls: dict[object, tuple[int, int]] = {}

    def deal(index: int) -> None:
        for unit in dealer.deal(index):
            calls[members[index].do.remote(unit)] = index, unit

    for index in range(len(members)):
        deal(index)
    while dealer.left:
        (call,), _ = ray.wait(list(calls), num_returns=1)
        index, unit = calls.pop(call)
        spent, first = ray.get(call), unit in dealer.left
        dealer.committed(index, unit)
        if first:
            heard(spent)
        deal(index)
    return {call: index for call, (index, _) in calls.items()}


class Tally:
    """The driver's count of what has been committed in a folder."""

    def __init__(self, out: str, progress: Callable[[Progress], None]):
        self.folder, self.progress, self.start = open_folder(out), progress, time.perf_counter()
        plan, before = read_plan(self.folder), sum(commit.examples for commit in commits(self.folder).values())
        self.done = Progress(0, 0, 0, 0, 0.0, before, plan.examples if plan else None)
        progress(self.done)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.start

    def heard(self, spent: Progress) -> None:
        """Count one more unit. A unit that was found committed, by an actor that has since died, is not work of now."""
        sums = {name: getattr(self.done, name) + getattr(spent, name) for name in SPENT}
        self.done = self.done._replace(**sums | dict(seconds=self.seconds, unit=spent.unit))
        self.progress(self.done)

    def report(self, complete: bool, reports: Sequence[RunReport], seconds: float) -> RunReport:
        done = self.done._replace(seconds=seconds)
        return summed(self.folder.where, commits(self.folder).values(), reports, done, complete)


@contextlib.contextmanager
def pool(ray, job: Job, count: int | None) -> Iterator[list]:
    """The actors; none of them lives on after the `with` lines."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = ([int(node.get(kind, 0)) for node in nodes] for kind in ("CPU", "GPU"))
    count, cores, gpus = ray_cluster.shared_out(cpus, gpus, count)
    lasting = dict(max_restarts=-1, max_task_retries=-1, max_concurrency=IN_HAND + 2, scheduling_strategy="SPREAD")
    made = ray.remote(num_cpus=cores, num_gpus=gpus, **lasting)(Actor)
    members = [made.remote(job, 0 if gpus else cores) for _ in range(count)]
    try:
        yield members
    finally:
        for member in members:
            ray.kill(member)
