"""Several processes of one command on this machine: started together, watched, summed up, and never left behind.

Each worker is the same command line with its place in the environment. It writes JSON lines to its standard output,
which is a pipe: how far it is, and at the end its report. Its standard input is a pipe that closes when the supervisor
dies, however that happens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from llama_jax.activations.extraction import Progress, RunReport
from llama_jax.activations.workers import VARIABLE
from llama_jax.errors import UserError

GRACE = 10  # seconds that an interrupted worker has to finish the unit it is writing
AGAIN = "What is committed stays valid: run the same command again with --resume."


@dataclass
class Worker:
    """A process and what it has said so far."""

    index: int
    process: subprocess.Popen
    progress: Progress | None = None  # None until it has met the others and needs them no more
    report: RunReport | None = None
    error: str = ""  # its last line that begins with `error: `
    stopped: bool = False  # ended by the supervisor
    held: list[str] = field(default_factory=list)  # lines of its standard error until it has met the others
    readers: list[threading.Thread] = field(default_factory=list)

    def hear(self, line: str, changed: Callable[[], None]) -> None:
        """One line of its standard output; what is not ours, such as the torn line of a killed process, is passed
        over."""
        with contextlib.suppress(ValueError, TypeError):
            match json.loads(line):
                case {"progress": said}:
                    self.progress = Progress(**said)
                    self.release()
                    changed()
                case {"report": said}:
                    self.report = RunReport(**said)

    def overhear(self, line: str, quiet: bool) -> None:
        """One line of its standard error. quiet: something has failed already, and JAX's runtime says so in every
        process."""
        if line.startswith("error: "):
            self.error = line.removeprefix("error: ").strip()
        elif not quiet:
            self.held.append(line)
            if self.progress:
                self.release()

    def release(self) -> None:
        """Pass on what was held back: while workers start, the mistake that ends one makes JAX's runtime complain in
        the others."""
        while self.held:
            print(f"[{self.index}] {self.held.pop(0)}", end="", file=sys.stderr, flush=True)

    @property
    def failed(self) -> bool:
        return bool(self.process.poll())

    @property
    def aftermath(self) -> int:
        """How likely it ended because another did: a signal comes from outside, a broken connection ends in exit code 1
        or an abort."""
        code = self.process.returncode
        return 2 if code == -signal.SIGABRT else 0 if code < 0 else 1

    @property
    def end(self) -> str:
        """How it ended, in words."""
        code = self.process.returncode
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def run_local(
    arguments: Sequence[str],
    processes: int,
    progress: Callable[[Progress], None] = lambda done: None,
    together: bool = False,
) -> RunReport:
    """Run a command line `llama-jax extract …` in so many processes on this machine; returns the sums of their reports.

    A worker that dies leaves the others their own units, unless they are still starting or work `together`, over a
    mesh. Raises UserError when all have ended and one of them failed, saying which and how. Ctrl-C and SIGTERM end all
    of them, none is left behind.
    """
    with terminable(), started(arguments, processes) as workers:
        for worker in workers:
            listen(worker, workers, progress)
        while any(worker.process.poll() is None for worker in workers):
            if any(w.failed for w in workers) and (together or any(w.progress is None for w in workers)):
                break
            time.sleep(0.05)
    for reader in (reader for worker in workers for reader in worker.readers):
        reader.join()
    check(workers)
    return summed([worker.report for worker in workers])


@contextlib.contextmanager
def started(arguments: Sequence[str], processes: int) -> Iterator[list[Worker]]:
    """The processes; none of them lives on after the `with` lines."""
    coordinator, workers = f"127.0.0.1:{free_port()}", []
    try:
        for index in range(processes):
            process = subprocess.Popen(
                [sys.executable, "-m", "llama_jax", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the supervisor, which passes it on
                env={**os.environ, VARIABLE: f"{index}/{processes}/{coordinator}"},
            )
            workers.append(Worker(index, process))
        yield workers
    except KeyboardInterrupt:
        for worker in workers:
            worker.process.send_signal(signal.SIGINT)
        wait(workers, GRACE)
        print(f"interrupted. {AGAIN}", file=sys.stderr, flush=True)
        raise
    finally:
        for worker in workers:
            worker.stopped = worker.process.poll() is None
            worker.process.kill()
        for worker in workers:
            worker.process.wait()


def wait(workers: Sequence[Worker], seconds: float) -> None:
    """Until all have ended, or so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(worker.process.poll() is None for worker in workers):
        time.sleep(0.05)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is an interruption like Ctrl-C: without this it would end the supervisor before it has ended its
    workers."""
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


def listen(worker: Worker, workers: Sequence[Worker], progress: Callable[[Progress], None]) -> None:
    """Read what a worker says, in threads of their own, so that it never waits for a reader."""

    def heard() -> None:
        for line in worker.process.stdout:
            worker.hear(line, lambda: progress(summed_progress(workers)))

    def overheard() -> None:
        for line in worker.process.stderr:
            worker.overhear(line, quiet=any(other.failed for other in workers if other is not worker))

    worker.readers = [threading.Thread(target=read, daemon=True) for read in (heard, overheard)]
    for reader in worker.readers:
        reader.start()


def check(workers: Sequence[Worker]) -> None:
    """Raises UserError, one line, where a worker failed or said nothing at its end."""
    bad = [w for w in workers if not w.stopped and (w.process.returncode or w.report is None)]
    if all(w.progress is None for w in workers) and (told := [w.error for w in bad if w.error]):
        raise UserError(told[0])  # a mistake that all of them met before they began
    for worker in workers:
        worker.release()
    if not bad:
        return
    worker = min(bad, key=lambda w: (not w.error, w.aftermath, w.index))
    others = f" So did {len(bad) - 1} more." if len(bad) > 1 else ""
    raise UserError(
        f"Worker {worker.index} of {len(workers)}"
        f" {worker.end}{': ' + worker.error if worker.error else '.'}{others} {AGAIN}"
    )


def summed_progress(workers: Sequence[Worker]) -> Progress:
    """How far all are together."""
    known = [worker.progress for worker in workers if worker.progress]
    added = {name: sum(getattr(p, name) for p in known) for name in ("units", "examples", "tokens", "bytes")}
    return Progress(**added, seconds=max(p.seconds for p in known), before=known[0].before)


def summed(reports: Sequence[RunReport]) -> RunReport:
    """One report of all: units, rows and bytes are the store's as the last one saw it; what each did is added up."""
    last = max(reports, key=lambda r: r.units)
    tokens, seconds = sum(r.tokens for r in reports), max(r.seconds for r in reports)
    slots = sum(r.tokens / (1 - r.padding) for r in reports if r.tokens)
    return RunReport(**asdict(last) | dict(
        written=sum(r.written for r in reports), tokens=tokens, padding=1 - tokens / slots if slots else 0.0,
        compilations=sum(r.compilations for r in reports), seconds=seconds, tokens_per_second=tokens / seconds,
    ))  # fmt: skip


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
