"""A process that `supervisor.run_local` started: which cores are its own, which units it is given, and that it ends
with the one that started it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import NamedTuple

from llama_jax.plumbing.boundary import shown
from llama_jax.plumbing.errors import UserError

VARIABLE = "LLAMA_JAX_WORKER"  # INDEX/COUNT, in the environment of a worker
END = "end"  # said instead of a unit: there are no more


class Place(NamedTuple):
    """Which of the processes on this machine this one is."""

    index: int
    count: int


def place() -> Place | None:
    """This process's place under a supervisor, None where there is none."""
    if not (text := os.environ.get(VARIABLE)):
        return None
    if not (match := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)):
        raise UserError(f"{VARIABLE} is {shown(text)}; it is set by --processes, and by nobody else.")
    return Place(int(match[1]), int(match[2]))


def settle(place: Place) -> Iterator[int]:
    """Be a worker: on this process's share of the cores or its own GPU, and gone when the supervisor is. Returns the
    units that it is given, as they come. Must come before JAX is used."""
    import jax

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, share_of(sorted(os.sched_getaffinity(0)), place.index, place.count))
    for kind in ("cuda", "rocm"):
        jax.config.update(f"jax_{kind}_visible_devices", str(place.index))
    given: SimpleQueue[int | None] = SimpleQueue()

    def listen() -> None:  # by descriptor: a thread in `sys.stdin` would be in the way when Python leaves
        rest = b""
        while read := os.read(0, 1024):
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                given.put(None if line == END.encode() else int(line))
        os._exit(1)  # only the death of the supervisor closes this pipe

    threading.Thread(target=listen, name="units", daemon=True).start()
    return iter(given.get, None)


def share_of(cores: list[int], index: int, count: int) -> set[int]:
    """Cores of one of `count` processes: neighbours, as even as can be; one core, shared with others, where there are
    too few."""
    if count > len(cores):
        return {cores[index % len(cores)]}
    return set(cores[index * len(cores) // count : (index + 1) * len(cores) // count])
