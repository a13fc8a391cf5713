"""How much memory is free, checked before much of it is allocated."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from llama_jax.plumbing.errors import UserError

if TYPE_CHECKING:
    import jax
    import numpy as np

HUGE = 2 << 20  # bytes of a huge page
NO_HUGE_PAGES = 15  # MADV_NOHUGEPAGE of Linux's madvise
SMALL = 64 << 20  # bytes that nobody needs to ask for
_short: list[bool] = []  # one for each `for_a_short_answer` around us
GROUP = Path("/sys/fs/cgroup")  # where a container's limit stands


def check(needed: float, what: str, remedy: str | Callable[[float], str], device: jax.Device | None = None) -> None:
    """Raises UserError if this many bytes are not free on a device, as `free` counts them; `what` needs them. remedy:
    what to do, or a function of the free bytes that says it."""
    if needed > SMALL and needed > (left := free(device)):
        advice = remedy if isinstance(remedy, str) else remedy(left)
        raise UserError(f"{what} need {needed / 1e9:.1f} GB and {left / 1e9:.1f} GB are free; {advice}.")


def give_back() -> None:
    """Return freed memory to the system, even between blocks still in use, if the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def for_a_short_answer() -> Iterator[None]:
    """Inside, `taken` prefers memory that arrives soon to memory that reads fast."""
    _short.append(True)
    try:
        yield
    finally:
        _short.pop()


def taken(room: np.ndarray) -> np.ndarray:
    """Memory that NumPy has just requested. Large arrays get huge pages, which a core reads a tenth faster, every token
    again. A virtual machine may take milliseconds to provide each, which a short answer does not earn back, so it gets
    ordinary pages."""
    start = -(-room.ctypes.data // HUGE) * HUGE
    if _short and (size := room.ctypes.data + len(room) - start) > 0:
        with contextlib.suppress(OSError, AttributeError):  # not this system's
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), NO_HUGE_PAGES)
    return room


def free(device: jax.Device | None = None) -> float:
    """Bytes that this process can still take: of the device's memory if the device counts it, otherwise the least of
    the machine's, the container's and the process's limit. Infinity if unknown. device: the first by default."""
    import jax

    if counted := (device or jax.local_devices()[0]).memory_stats():
        return counted.get("bytes_limit", math.inf) - counted.get("bytes_in_use", 0)
    return min(of_the_machine(), of_the_container(), of_the_process())


def of_the_machine() -> float:
    try:
        import psutil
    except ImportError:  # a machine that only measures speed
        return math.inf
    return psutil.virtual_memory().available


def of_the_container(group: Path = GROUP) -> float:
    """What a control group's limit leaves; unused pages of files count as free, because the kernel reclaims them."""
    try:
        counted = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(counted.get("inactive_file", 0))
        return int((group / "memory.max").read_text()) - used
    except (OSError, ValueError):  # there is none, or its limit is "max"
        return math.inf


def of_the_process() -> float:
    """What `ulimit -v` leaves."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else limit - pages * resource.getpagesize()
