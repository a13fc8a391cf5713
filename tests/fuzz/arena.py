"""Where a case is run: in a process of its own, with a limit on time and memory, so that whatever it does has a name.

The processes are forked from one that has imported everything and computed nothing (multiprocessing's fork server).
"""

import multiprocessing
import os
import resource
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from llama_jax.plumbing.errors import UserError
from tests.fuzz.commands import EndedError

OUTCOMES = ("accepted", "refused", "traceback", "hang", "blow-up", "abort")
BAD = OUTCOMES[2:]
LIMIT_S = 30
ROOM = 6 << 30  # bytes of address space beyond what the process has at its start
RESIDENT = 3 << 30  # bytes that it may touch
LINE = 2_000  # characters of a message for a person


def outcome(try_it: Callable, example, base: Path, limit_s: float = LIMIT_S) -> tuple[str, str]:
    """(one of OUTCOMES, a message) of `try_it(example, base, an empty folder)`, a function of a module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.fuzz.boundaries"])
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=run, args=(try_it, example, base, folder, there))
    try:
        child.start()
        there.close()
        if not here.poll(limit_s):
            return "hang", f"not over after {limit_s} s"
        try:
            return here.recv()
        except EOFError:
            child.join()
            return "abort", f"exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()
        here.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(try_it: Callable, example, base: Path, folder: Path, tell) -> None:
    """The child: one example, and what became of it."""
    os.chdir(folder)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.environ |= {"LLAMA_JAX_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    limit(ROOM)
    try:
        kind, message = "accepted", str(try_it(example, base, folder) or "")
    except UserError as error:
        kind, message = "refused", str(error)
        if not 0 < len(message) <= LINE or "\n" in message:
            kind, message = "traceback", f"a message of {len(message)} characters: {message[:200]}"
    except EndedError as ended:
        kind, message = ended.outcome, ended.message
    except MemoryError:
        kind, message = "blow-up", last(traceback.format_exc())
    except BaseException:
        kind, message = "traceback", last(traceback.format_exc())
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > RESIDENT:
        kind, message = "blow-up", f"it touched more than {RESIDENT >> 30} GiB; {kind}: {message}"
    tell.send((kind, message))
    tell.close()
    os._exit(0)


def limit(room: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room,) * 2)


def last(text: str, lines: int = 7) -> str:
    """The end of a traceback."""
    return "\n".join(text.encode("utf-8", "replace").decode().strip().splitlines()[-lines:])[-900:]
