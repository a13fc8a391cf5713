"""Several processes of one command on this machine, each taking units as it has room, and none left behind.

Each worker is the same command line with its place in the environment. It reads unit numbers from standard input, and
writes JSON lines to standard output: its progress, and at the end its report. The units of a worker that dies go to the
others; at the end so do those of a slow one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import NamedTuple

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError
from llama_lab import interruption
from llama_lab.activations.dealer import Dealer
from llama_lab.activations.folder import open_folder
from llama_lab.activations.plan import Shard, finish, pending, read_plan, share_of
from llama_lab.activations.records import commits
from llama_lab.activations.run import Progress, RunReport, summed

VARIABLE = "LLAMA_JAX_WORKER"  # INDEX/COUNT, in the environment of a worker
END = "end"  # written instead of a unit: there are no more
GRACE = 10  # seconds that an interrupted worker has to finish the unit it is writing
AGAIN = "What is committed stays valid: run the same command again."


class Place(NamedTuple):
    """Which of the processes on this machine this one is."""

    index: int
    count: int


def place() -> Place | None:
    """This process's place under a supervisor, None if there is none."""
    if not (text := os.environ.get(VARIABLE)):
        return None
    if not (match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)):
        raise UserError(f"{VARIABLE} is {shown(text)}; only --processes may set it. Unset it.")
    return Place(int(match[1]), int(match[2]))


def settle(place: Place) -> Iterator[int]:
    """Become a worker: on its share of the cores or its own GPU, ending when the supervisor ends. Returns its units, as
    they arrive. Must come before JAX is used."""
    import jax

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores_of(sorted(os.sched_getaffinity(0)), place))
    for kind in ("cuda", "rocm"):
        jax.config.update(f"jax_{kind}_visible_devices", str(place.index))
    units: SimpleQueue[int | None] = SimpleQueue()

    def listen() -> None:  # by descriptor: a thread in `sys.stdin` would be in the way when Python leaves
        rest = b""
        while read := os.read(0, 1024):
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                units.put(None if line == END.encode() else int(line))
        os._exit(1)  # only the death of the supervisor closes this pipe

    threading.Thread(target=listen, name="units", daemon=True).start()
    return iter(units.get, None)


def cores_of(cores: list[int], place: Place) -> set[int]:
    """One process's cores: neighbours, split as evenly as possible; one shared core if there are too few."""
    index, count = place
    if count > len(cores):
        return {cores[index % len(cores)]}
    return set(cores[index * len(cores) // count : (index + 1) * len(cores) // count])


@dataclass
class Worker:
    """A process and what it has said so far."""

    index: int
    process: subprocess.Popen
    progress: Progress | None = None  # None until it has loaded and compiled
    report: RunReport | None = None
    error: str = ""  # its last line that begins with `error: `
    stopped: bool = False  # ended by the supervisor
    readers: list[threading.Thread] = field(default_factory=list)

    def listen(self, changed: Callable[[Worker], None]) -> None:
        """Read its output in separate threads, so that it never waits for a reader."""

        def read(lines: Iterable[str], hear: Callable[[str], None]) -> None:
            for line in lines:
                hear(line)

        heard = (self.process.stdout, lambda line: self.hear(line, changed)), (self.process.stderr, self.overhear)
        self.readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in heard]
        for reader in self.readers:
            reader.start()

    def hear(self, line: str, changed: Callable[[Worker], None]) -> None:
        """One line of its standard output. Foreign lines, and the torn line of a killed process, are ignored."""
        with contextlib.suppress(ValueError, TypeError):
            match json.loads(line):
                case {"progress": fields}:
                    self.progress = Progress(**fields)
                    changed(self)
                case {"report": fields}:
                    self.report = RunReport(**fields)

    def overhear(self, line: str) -> None:
        if line.startswith("error: "):
            self.error = line.removeprefix("error: ").strip()
        elif line.strip() != interruption.LINE:  # which the supervisor says for all
            print(f"[{self.index}] {line}", end="", file=sys.stderr, flush=True)

    def give(self, words: Sequence[object]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has died: that is noticed elsewhere
            self.process.stdin.write("".join(f"{word}\n" for word in words))
            self.process.stdin.flush()

    @property
    def end(self) -> str:
        code = self.process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Pool:
    """The workers of one run, and the units that are dealt out to them."""

    def __init__(self, workers: Sequence[Worker], out: str, shard: Shard | None, progress: Callable[[Progress], None]):
        self.workers, self.out, self.shard, self.progress = workers, out, shard, progress
        self.dealer: Dealer | None = None  # until the first worker has claimed the folder
        self.lock = threading.Lock()
        self.todo: list[int] = []
        self.total = self.before = 0

    def heard(self, worker: Worker) -> None:
        """A worker has loaded, or done a unit: give it more."""
        with self.lock:
            if self.dealer is None:
                self.todo = pending(self.out, self.shard)
                self.dealer, plan = Dealer(self.todo), read_plan(open_folder(self.out))
                self.total = sum(plan.part(number).examples for number in share_of(range(len(plan)), self.shard))
                self.before = self.total - sum(plan.part(number).examples for number in self.todo)
            if worker.progress.unit is not None:
                self.dealer.committed(worker.index, worker.progress.unit)
            worker.give(self.dealer.deal(worker.index))
            self.progress(summed_progress(self.workers)._replace(total=self.total, before=self.before))

    def lost(self, worker: Worker) -> None:
        """A worker has died: the others get what it had."""
        with self.lock:
            if self.dealer and worker.index in self.dealer.hands:
                self.dealer.lost(worker.index)
                for other in self.workers:
                    if other.progress and other.process.poll() is None:
                        other.give(self.dealer.deal(other.index))

    def done(self) -> bool:
        return self.dealer is not None and not self.dealer.left

    def close(self) -> None:
        """Tell the workers to end; those that are still busy, or have not begun, have been overtaken."""
        with self.lock:
            for worker in self.workers:
                if worker.progress is None or self.dealer.hands.get(worker.index):
                    worker.stopped = worker.process.poll() is None
                    worker.process.kill()
                else:
                    worker.give([END])


def run_local(
    arguments: Sequence[str],
    processes: int,
    out: str,
    shard: Shard | None = None,
    progress: Callable[[Progress], None] = lambda done: None,
) -> RunReport:
    """Run a command line `llama-jax extract …` in this many processes on this machine; returns their summed reports.

    A worker that dies leaves its units to the others. Raises UserError when all have ended and units are missing,
    saying how the first one ended. Ctrl-C and SIGTERM end all of them, none is left behind.
    """
    with terminable(), started(arguments, processes) as workers:
        pool, alive = Pool(workers, out, shard, progress), list(workers)
        for worker in workers:
            worker.listen(pool.heard)
        while alive and not pool.done():
            time.sleep(0.02)
            for worker in [worker for worker in alive if worker.process.poll() is not None]:
                alive.remove(worker)
                for reader in worker.readers:
                    reader.join()
                pool.lost(worker)
        if pool.done():
            pool.close()
            wait(workers, GRACE)
    for reader in (reader for worker in workers for reader in worker.readers):
        reader.join()
    check(workers, pool.done())
    return report_of(workers, out, shard, len(pool.todo))


@contextlib.contextmanager
def started(arguments: Sequence[str], processes: int) -> Iterator[list[Worker]]:
    """The processes; none of them lives on after the `with` lines."""
    workers = []
    try:
        for index in range(processes):
            process = subprocess.Popen(
                [sys.executable, "-m", "llama_lab", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the supervisor, which passes it on
                env={**os.environ, VARIABLE: f"{index}/{processes}"},
            )
            workers.append(Worker(index, process))
        yield workers
    except KeyboardInterrupt:
        for worker in workers:
            worker.process.send_signal(signal.SIGINT)
        wait(workers, GRACE)
        interruption.say(f"{interruption.LINE} {AGAIN}")
        raise
    finally:
        for worker in workers:
            worker.stopped |= worker.process.poll() is None
            worker.process.kill()
        for worker in workers:
            worker.process.wait()


def wait(workers: Sequence[Worker], seconds: float) -> None:
    """Wait until all have ended, or for this many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(worker.process.poll() is None for worker in workers):
        time.sleep(0.02)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C; otherwise it would end the supervisor before its workers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check(workers: Sequence[Worker], done: bool) -> None:
    """Raises UserError, one line, if units are missing; says so if others did a dead worker's units."""
    bad = [w for w in workers if not w.stopped and (w.process.returncode or w.report is None)]
    if done:
        for worker in bad:
            print(f"Worker {worker.index} {worker.end}; the others did its units.", file=sys.stderr, flush=True)
        return
    if all(w.progress is None for w in workers) and (mistakes := [w.error for w in bad if w.error]):
        raise UserError(mistakes[0])  # a mistake that all of them met before they began
    worker = min(bad or workers, key=lambda w: (not w.error, w.index))
    others = f" So did {len(bad) - 1} more." if len(bad) > 1 else ""
    why = f": {worker.error}" if worker.error else "."
    raise UserError(f"Worker {worker.index} of {len(workers)} {worker.end}{why}{others} {AGAIN}")


def summed_progress(workers: Sequence[Worker]) -> Progress:
    """The progress of all together."""
    known = [worker.progress for worker in workers if worker.progress]
    added = {name: sum(getattr(p, name) for p in known) for name in ("units", "examples", "tokens", "bytes")}
    return Progress(**added, seconds=max(p.seconds for p in known), before=0)


def report_of(workers: Sequence[Worker], out: str, shard: Shard | None, written: int) -> RunReport:
    """One report of all: what the store holds, and what each worker did, as far as the stopped ones reported."""
    complete, committed = finish(out), commits(open_folder(out))
    shards = share_of(range(max(committed, default=-1) + 1), shard)
    asked = [committed[number] for number in shards if number in committed]
    reports = [worker.report for worker in workers if worker.report]
    return summed(out, asked, reports, summed_progress(workers)._replace(units=written), complete)
