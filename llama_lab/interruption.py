"""Ctrl-C, at any moment: one line and exit code 130.

A verb with nothing to clean up says so (`at_once`), and the process ends immediately. In other verbs the first signal
raises KeyboardInterrupt in the main thread: children are ended, and written files are complete. This is not done while
a module is imported, because the exception crashes some modules written in C++. The exception may also never arrive: a
compiling program returns to Python only when it is done, and a callback from a library may swallow or replace the
exception. So a thread listens for the signal too, and ends the process after GRACE_S, or at once on a second signal.

The process always ends without the interpreter's shutdown, during which XLA's threads, still compiling, would crash.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType

from llama_jax.plumbing import files

CODE = 128 + signal.SIGINT
GRACE_S = 3.0  # seconds that a verb has to put things in order
LINE = "interrupted."
IMPORTING = "<frozen importlib"  # the file that Python's own code for imports has
FLUSH_S = 0.5  # seconds for what is still to be written: nobody may be reading it


class Interruption:
    """The state of an interruption. seen: it happened. grace: seconds until the process is ended anyway."""

    def __init__(self):
        self.seen, self.grace = False, GRACE_S
        self.said, self.leaving = threading.Lock(), threading.RLock()
        self.ends: list[Callable[[], object]] = []


STATE = Interruption()


def install() -> None:
    """From now on Ctrl-C is handled as described above, unless SIGINT is ignored, as in a script's background, or
    already has another handler."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, interrupt)
    threading.Thread(target=watch, args=(reader,), name="interruption", daemon=True).start()
    sys.unraisablehook = partial(unless_interrupted, sys.unraisablehook)
    threading.excepthook = partial(unless_interrupted, threading.excepthook)


def at_once() -> None:
    """From now on there is nothing to clean up."""
    STATE.grace = 0.0


def interrupt(number: int, frame: FrameType | None) -> None:
    """The handler of SIGINT."""
    STATE.seen = True
    if STATE.grace == 0 or any(code.co_filename.startswith(IMPORTING) for code in running(frame)):
        leave(CODE)
    raise KeyboardInterrupt


def running(frame: FrameType | None) -> Iterator[CodeType]:
    """The code of a frame and of all that called it."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def unless_interrupted(report: Callable, error) -> None:
    """Report an exception that cannot be caught, unless it comes from our own exit."""
    if not STATE.seen:
        report(error)


def watch(reader: int) -> None:
    """Wait for SIGINT, whose number the C-level handler writes here at once, whatever Python is doing. Code with its
    own handler, such as a running server, is left alone."""
    end = None
    while True:
        heard, *_ = select.select([reader], [], [], None if end is None else max(0.0, end - time.monotonic()))
        numbers = os.read(reader, 512) if heard else b""
        if signal.getsignal(signal.SIGINT) not in (interrupt, signal.SIG_IGN):  # the latter when we are leaving
            end = None
            continue
        for number in numbers:
            if number == signal.SIGINT and end is not None:
                leave(CODE)
            elif number == signal.SIGINT:
                STATE.seen, end = True, time.monotonic() + STATE.grace
        if end is not None and time.monotonic() >= end:
            leave(CODE)


def at_end(function: Callable, *arguments: object) -> None:
    """Call this function when the process ends, in any way except an unhandled signal."""
    atexit.register(function, *arguments)
    STATE.ends.append(partial(function, *arguments))


def say(line: str = LINE) -> None:
    """Print the line on standard error, only once."""
    if STATE.said.acquire(blocking=False):
        with contextlib.suppress(OSError):
            os.write(2, b"\n" * os.isatty(2) + line.encode() + b"\n")  # after the terminal's ^C


def leave(code: int) -> None:
    """End the process now, from any thread: output is flushed, half-written files are removed, and nothing else is
    waited for."""
    STATE.leaving.acquire()  # for good: whoever else wants to leave waits for that
    for path in [*files.STAGED]:
        with contextlib.suppress(OSError):
            path.unlink()
    for end in STATE.ends:
        with contextlib.suppress(Exception):
            end()
    flushing = threading.Thread(target=flush, daemon=True)  # which waits for whoever is writing
    flushing.start()
    flushing.join(FLUSH_S)
    if code == CODE:
        if os.isatty(1):
            with contextlib.suppress(OSError):
                os.write(1, b"\x1b[?25h")  # a live view hides the cursor
        say()
    os._exit(code)


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
