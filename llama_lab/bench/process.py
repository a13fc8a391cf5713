"""Fresh processes: the harness starts them, pins them, listens to them, and survives them.

A child is a new Python that runs `main` with a clean environment and a fixed set of cores. It reads one job from
standard input and answers in JSON lines. After each line it waits for an empty line in return, so that the parent has
finished with a message (parsing it, writing it to disk) before the child measures on. A child that crashes or falls
silent is an outcome with its last lines, never a hang or a crash of the parent. A child ends when its parent does,
whatever the signal.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llama_jax.plumbing import xla_flags
from llama_jax.plumbing.errors import UserError

LIMIT_S = 600  # a child that says nothing for so long is stopped
LAST_LINES = 3
CHILD = """import os, sys
if hasattr(os, "sched_setaffinity"):  # before any library counts its threads
    os.sched_setaffinity(0, [int(core) for core in sys.argv[1].split(",")])
from llama_lab.bench import parent
parent.follow(int(sys.argv[2]))
from llama_lab.bench.process import main
main()"""
KEEP = {
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "NPROC", "LLAMA_JAX_CACHE", xla_flags.KEEP, "OLLAMA_HOST", "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
    "SYSTEMROOT", "LLAMA_JAX_ISA",
}  # fmt: skip
KEEP_PREFIXES = ("XLA_", "JAX_", "TF_", "HF_", "NVIDIA_")
# an empty folder of its own for each child: what `torch.compile` finds there it need not compile
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """How a child ended. reason: one line, "" when it ended well. result: what its task returned."""

    reason: str = ""
    result: dict = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Interpreter:
    """The Python that runs a child, and what its environment has beside the usual."""

    path: str = sys.executable
    settings: dict[str, str] = field(default_factory=dict)


HERE = Interpreter()


def allowed_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= len(allowed_cores()):
        raise UserError(f"{threads} threads asked for; this process may use {len(allowed_cores())} cores.")


def clean_environment(threads: int, cache: Path | None = None) -> dict[str, str]:
    """What a child inherits: paths, and the settings of XLA, JAX and the libraries that a record names. Nothing else.

    cache: folder of JAX's persistent compilation cache; without one the child has none, whatever the parent has.
    """
    kept = {k: v for k, v in os.environ.items() if k in KEEP or k.startswith(KEEP_PREFIXES)}
    kept.pop("JAX_COMPILATION_CACHE_DIR", None)
    if cache:
        least = dict(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1")
        kept |= dict(JAX_COMPILATION_CACHE_DIR=str(cache)) | least
    fixed = dict(PYTHONHASHSEED="0", TQDM_DISABLE="1", PYTHONUNBUFFERED="1")
    return kept | dict.fromkeys(BLAS_THREADS, str(threads)) | fixed


def start(
    task: str,
    arguments: dict,
    receive: Callable[[str, object], None] = lambda kind, value: None,
    limit: float | Callable[[], float] = LIMIT_S,
    threads: int | None = None,
    cache: Path | None = None,
    held: tuple[int, ...] = (),
    interpreter: Interpreter = HERE,
) -> Outcome:
    """Run `module:function` of this package in a fresh process, as function(say, **arguments); its dictionary is the
    result.

    receive(kind, value): called for each message of the task. limit: seconds of silence after which it is stopped; a
    function is called for them after each message, so that the whole task can have a limit.
    threads: cores it may use, all allowed ones by default. held: file descriptors it keeps open, such as a lock's.
    interpreter: another Python than this one.
    Raises UserError when the child ends with one: a user's mistake is the same mistake in any process.
    """
    check_threads(threads)
    cores = allowed_cores()[:threads]
    job = json.dumps(dict(task=task, arguments=arguments))
    command = [interpreter.path, "-c", CHILD, ",".join(map(str, cores)), str(os.getpid())]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as inductor,
    ):
        environment = clean_environment(len(cores), cache) | {INDUCTOR: inductor} | interpreter.settings
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints)
        text = dict(encoding="utf-8", errors="replace")
        child = subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=held, **pipes, **text)
        watchdog = Watchdog(child, limit)
        try:
            messages = hear(child, watchdog, job, receive)
            code = child.wait()
        finally:
            watchdog.cancel()
            kill(child)
        complaints.seek(0)
        last = " / ".join(line.strip() for line in complaints.read().strip().splitlines()[-LAST_LINES:])
    if "user error" in messages:
        raise UserError(messages["user error"])
    if "result" in messages:  # one that stumbles while it leaves has done its work
        return Outcome(result=messages["result"] or {})
    return Outcome(f"{ending(code, watchdog.seconds if watchdog.expired else None)}: {last or 'no message'}"[:600])


def hear(child: subprocess.Popen, watchdog: Watchdog, job: str, receive: Callable[[str, object], None]) -> dict:
    """Give a child its job, and listen until it ends: the last value of each kind of message."""
    messages: dict[str, object] = {}
    tell(child, job)
    for line in child.stdout:
        watchdog.feed()
        try:
            kind, value = json.loads(line)
        except ValueError:
            continue  # a line that was torn when it died, or a library that printed while it was imported
        messages[kind] = value
        receive(kind, value)
        tell(child)
    return messages


def tell(child: subprocess.Popen, line: str = "") -> None:
    """One line to a child's standard input; one that has died needs none."""
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(line + "\n")
        child.stdin.flush()


def ending(code: int, silent_for: float | None) -> str:
    """How a process ended, in words."""
    if silent_for is not None:
        return f"stopped after {silent_for:g} s without a word"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


class Watchdog:
    """Kills a child after `limit` seconds without a message."""

    def __init__(self, child: subprocess.Popen, limit: float | Callable[[], float]):
        self.child, self.limit, self.expired, self.timer = child, limit, False, None
        self.feed()

    def feed(self) -> None:
        self.cancel()
        self.seconds = max(0.0, self.limit()) if callable(self.limit) else self.limit
        self.timer = threading.Timer(self.seconds, self._expire)
        self.timer.daemon = True
        self.timer.start()

    def cancel(self) -> None:
        if self.timer:
            self.timer.cancel()

    def _expire(self) -> None:
        self.expired = True
        kill(self.child)


def kill(child: subprocess.Popen) -> None:
    """End a child and whatever it started, which may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()


def main() -> None:
    """The child. Messages go to the real standard output; whatever libraries print goes to standard error."""
    job = json.loads(sys.stdin.readline())
    messages = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(kind: str, value: object) -> None:
        try:
            print(json.dumps([kind, value]), file=messages, flush=True)
            heard = sys.stdin.readline()
        except BrokenPipeError:
            heard = ""
        if not heard:  # nobody is left to hear: the parent was killed
            os._exit(1)

    module, _, function = job["task"].partition(":")
    try:
        say("result", getattr(importlib.import_module(module), function)(say, **job["arguments"]))
    except UserError as error:
        say("user error", str(error))
        sys.exit(2)
