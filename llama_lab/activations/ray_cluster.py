"""What a run needs from Ray: a quiet cluster that ends with the run, and exclusive cores for each actor."""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import BinaryIO, TextIO

from llama_jax.plumbing import files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab import interruption
from llama_lab.activations.supervisor import AGAIN, terminable

RAYS, LONGEST = re.compile(r"(\x1b\[\d+m)?\(raylet[^)]*\)(\x1b\[\d+m)?"), 200  # how Ray begins; characters of a line
LONGEST_HOME = 30  # characters of the folder that Ray's sockets lie in: with their own names they may have 107
SMALLEST_STORE = 80 << 20  # bytes of Ray's store of objects: what is sent are numbers
NOT_HERE = "Ray is not installed here; `make ray` or pip install 'llama-jax[ray]' adds it."
BEGINS = "`ray start --head` begins one."
ADDRESS, LOOK_S = re.compile(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d+)$"), 5.0  # seconds that one may take to answer
KEPT: list[tuple[int, BinaryIO]] = []  # locks on cores, until the process ends


def installed():
    """The package `ray`, which reads its settings when it is imported. Raises UserError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    try:
        import ray
    except ImportError:
        raise UserError(NOT_HERE) from None
    return ray


@contextlib.contextmanager
def connected(ray, address: str | None) -> Iterator[None]:
    """A driver of a cluster; without an address of one that begins and ends here. Raises UserError if none
    answers."""
    if address:
        check(address)
    quiet = dict(logging_level=logging.ERROR, log_to_driver=False)
    if len(tempfile.gettempdir()) > LONGEST_HOME:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    here = dict(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, object_store_memory=SMALLEST_STORE)
    try:
        ray.init(address or "local", **quiet, **({} if address else here))
    except Exception as error:  # Ray has many, some of them plain ones
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        what = f"No Ray cluster answers at {address}" if address else "Ray could not begin a cluster here"
        raise UserError(f"{what}: {reason} {BEGINS}") from error
    try:
        yield
    finally:
        ray.shutdown()


def check(address: str) -> None:
    """Raises UserError for an invalid address, and if no one listens there, which Ray would take minutes to notice."""
    if address in ("auto", "local"):
        return
    if not (match := ADDRESS.match(address)):
        raise UserError(f"--address is {address!r}; it is HOST:PORT, ray://HOST:PORT or auto.")
    try:
        socket.create_connection((match[1], int(match[2])), LOOK_S).close()
    except (OSError, OverflowError) as error:  # the latter: no such port
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"No Ray cluster answers at {address}: {reason}. {BEGINS}") from error


class Overheard(io.TextIOBase):
    """Standard output, which a program may read, without what Ray prints there by itself, in any thread: text that
    begins as `RAYS`, and the newline of that `print`. It goes to standard error, each sentence once. over: whether all
    is done, so that Ray's output no longer matters."""

    def __init__(self, out: TextIO):
        self.out, self.sentences, self.within, self.over = out, set(), None, False

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        if not (rays := RAYS.match(text)) and (self.within, text) != (thread, "\n"):
            return self.out.write(text)
        self.within = thread if rays else None
        sentence = rays and text[rays.end() :].strip().partition(". ")[0]
        if sentence and not self.over and sentence not in self.sentences:
            self.sentences.add(sentence)
            print(f"Ray: {sentence[:LONGEST]}.", file=sys.stderr, flush=True)
        return len(text)

    def flush(self) -> None:
        self.out.flush()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run with a line that says how to resume."""
    with terminable():
        try:
            yield
        except KeyboardInterrupt:
            interruption.say(f"{interruption.LINE} {AGAIN}")
            raise


@contextlib.contextmanager
def in_one_line(ray) -> Iterator[None]:
    """An actor's UserError as it raised it; an actor that cannot start, as one line."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"Ray could not start an actor: {reason} llama-jax must be installed on every node.") from error


def shared_out(cpus: Sequence[int], gpus: Sequence[int], count: int | None) -> tuple[int, int, int]:
    """(actors, cores of each, GPUs of each) for machines with so many of both: one per GPU, or if there are none
    `count` with as many cores as there can be for each, or one for all cores of the smallest machine. Raises UserError
    for more than there are."""
    kind, most = ("GPU", sum(gpus)) if any(gpus) else ("core", sum(cpus))
    if not most or (count or 1) > most:
        raise UserError(f"{count or 1:,} actors do not fit: the cluster has {most:,} {kind}{'s' * (most != 1)}.")
    if any(gpus):
        return count or most, 1, 1
    if count is None:
        cores = min(filter(None, cpus))
        return sum(n // cores for n in cpus), cores, 0
    return count, max(cores for cores in range(1, max(cpus) + 1) if sum(n // cores for n in cpus) >= count), 0


def settle(cores: int) -> None:
    """Confine this process to cores that no other actor uses, by locks that end with the process; to all cores if too
    few are left, or none are requested. Must come before JAX computes."""
    mine: list[tuple[int, BinaryIO]] = []
    for core in sorted(os.sched_getaffinity(0)) if cores else ():
        lock = files.lockable(paths.of_this_machine() / f"core-{core}.lock")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine.append((core, lock))
        if len(mine) == cores:
            KEPT.extend(mine)
            for thread in os.listdir("/proc/self/task"):  # those that run already, and with them those they start
                os.sched_setaffinity(int(thread), {core for core, _ in mine})
            return
