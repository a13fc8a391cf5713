"""One of several processes: meeting the others on JAX's own distributed runtime, and parting from them.

Where each process runs units of its own, the runtime is needed only until all have started: it gives each its index and
count, and lets the first claim the folder before the others write. Then they part. A runtime that stays would end every
process when one dies. Over a mesh they stay together: there each step needs all of them, and the death of one must end
the others.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

# its key-value store: agreeing on a word takes no collective, and compiles nothing
from jax._src.distributed import global_state

from llama_jax.boundary import shown
from llama_jax.errors import UserError

VARIABLE = (
    "LLAMA_JAX_WORKER"  # INDEX/COUNT/ADDRESS, in the environment of a process that `supervisor.run_local` started
)
JOIN = 120  # seconds that all processes have to meet
START = 3600  # seconds between the first and the last that has loaded and compiled
HEARTBEAT = 30  # seconds without one, and a process counts as dead
WORDS = itertools.count()  # what processes agree on, in the same order in each of them
ours = False  # whether `join` started the runtime, and not a program that uses this package


class Place(NamedTuple):
    """Which of the processes on this machine this one is, and where the first listens."""

    index: int
    count: int
    coordinator: str


def place() -> Place | None:
    """This process's place under a supervisor, None where there is none."""
    if not (text := os.environ.get(VARIABLE)):
        return None
    if not (match := re.fullmatch(r"(\d{1,6})/(\d{1,6})/([^/]+:\d{1,5})", text)):
        raise UserError(f"{VARIABLE} is {shown(text)}; it is set by --processes, and by nobody else.")
    return Place(int(match[1]), int(match[2]), match[3])


def join(
    coordinator: str | None = None, processes: int | None = None, index: int | None = None, seconds: int = JOIN
) -> None:
    """Meet the other processes: from now on `jax.process_index()` and `jax.process_count()` are this one's.

    With no arguments as the launcher says: SLURM, Open MPI, Kubernetes, a TPU pod, whatever
    `jax.distributed.initialize` detects. Must come before anything that JAX computes. Raises UserError where no
    launcher is detected; where the others do not answer in time the process ends with one line and exit code 2, because
    JAX's runtime would end it with a core dump.
    """
    global ours
    explicit = {}
    if coordinator is not None:
        address, _, port = coordinator.rpartition(":")
        explicit = dict(
            coordinator_address=coordinator,
            num_processes=processes,
            process_id=index,
            cluster_detection_method="deactivate",
        )
        if address in ("127.0.0.1", "localhost"):  # local workers: listen to nobody else, and each has a GPU of its own
            explicit |= dict(coordinator_bind_address=coordinator, local_device_ids=index)
            check_port(address, int(port)) if index == 0 else None
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    with deadline(
        seconds,
        f"error: {coordinator or 'The coordinator'} or another process did not answer within {seconds} s; start all"
        " of them, and check that they reach each other.",
    ):
        try:
            jax.distributed.initialize(
                **explicit,
                initialization_timeout=2 * seconds,
                heartbeat_timeout_seconds=HEARTBEAT,
                shutdown_timeout_seconds=START,
            )
            ours = True
            jax.devices()  # here the processes tell each other their devices
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "No launcher is detected here; start every process by srun, mpirun or on a TPU pod, or use"
                " --processes N on"
                f" one machine ({type(error).__name__}: {error})."
            ) from error
        except RuntimeError as error:
            raise UserError(f"JAX could not start as one of several processes: {str(error).splitlines()[0]}") from error


def check_port(address: str, port: int) -> None:
    """Raises UserError where another program listens: JAX's runtime would crash."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            raise UserError(f"Cannot listen on {address}:{port}: {error.strerror}. Choose another port.") from error


@contextlib.contextmanager
def deadline(seconds: float, line: str) -> Iterator[None]:
    """End the process with one line and exit code 2 where the body takes longer."""

    def give_up() -> None:
        print(line, file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def joined() -> bool:
    """Whether other processes wait for this one."""
    return jax.distributed.is_initialized()


def first(act: Callable[[], None]) -> None:
    """The first process acts while the others wait. Where it fails with a UserError they fail with the same."""
    if not joined():
        return act()
    word = f"llama-jax/{next(WORDS)}"
    if jax.process_index():
        if line := global_state.client.blocking_key_value_get(word, START * 1000).removeprefix("done"):
            raise UserError(line)
        return
    try:
        act()
    except UserError as error:
        global_state.client.key_value_set(word, str(error))
        raise
    global_state.client.key_value_set(word, "done")


def meet() -> None:
    """Wait until all processes are here."""
    if joined():
        global_state.client.wait_at_barrier(f"llama-jax/{next(WORDS)}", START * 1000)


def part() -> None:
    """Wait until all processes are here, then go on without the runtime: index and count stay, and no process depends
    on another.

    A runtime that somebody else started stays.
    """
    if joined() and ours:
        jax.distributed.shutdown()
    else:
        meet()


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """A process that fails while others wait for it leaves at once: an orderly exit would first wait for them."""
    try:
        yield
    except BaseException as error:
        if not joined() or isinstance(error, SystemExit):
            raise
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr, flush=True)
        elif not isinstance(error, KeyboardInterrupt):
            traceback.print_exc()
        sys.stdout.flush()
        os._exit({UserError: 2, KeyboardInterrupt: 130}.get(type(error), 1))


def settle(place: Place) -> None:
    """Be a worker: on this process's share of the cores, and gone when the supervisor is. Must come before JAX is
    used."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share_of(sorted(os.sched_getaffinity(0)), place.index, place.count))

    def watch() -> None:  # the supervisor holds the other end of this pipe, and never writes
        while os.read(0, 1024):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def share_of(cores: list[int], index: int, count: int) -> set[int]:
    """Cores of one of `count` processes: neighbours, as even as can be; one core, shared with others, where there are
    too few."""
    if count > len(cores):
        return {cores[index % len(cores)]}
    return set(cores[index * len(cores) // count : (index + 1) * len(cores) // count])
