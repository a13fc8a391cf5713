"""Ctrl-C, at any moment: one line and exit code 130.

A verb that has nothing to put in order says so (`at_once`), and the process ends where it is. In others the first one
raises KeyboardInterrupt in the main thread: children are ended, what is written is whole. But not while a module is
imported: the exception crashes some that are written in C++. And it may never arrive: a program that compiles returns
to Python only when it is done, and what calls back from within a library may swallow the exception or make another one
of it. So a thread hears of the signal too, and ends the process after GRACE_S, or at once when a second one comes.

However it ends, it is without an interpreter's orderly end, during which XLA's own threads, compiling still, would
crash.
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
    """What this process knows of being interrupted. seen: it was. grace: seconds until it is ended all the same."""

    def __init__(self):
        self.seen, self.grace = False, GRACE_S
        self.said, self.leaving = threading.Lock(), threading.RLock()
        self.ends: list[Callable[[], object]] = []


STATE = Interruption()


def install() -> None:
    """From now on this process ends so. Not where SIGINT is ignored, as in a script's background, or another's
    already."""
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
    """From now on nothing has to be put in order."""
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
    """Report what nobody can catch, unless it is of our end."""
    if not STATE.seen:
        report(error)


def watch(reader: int) -> None:
    """Wait for SIGINT, of which the kernel's handler writes the number here at once, whatever Python is at. Others that
    have a handler of their own, as a server has while it serves, are left alone."""
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
    """Call this when the process ends, however it does but for a signal that nobody handles."""
    atexit.register(function, *arguments)
    STATE.ends.append(partial(function, *arguments))


def say(line: str = LINE) -> None:
    """The one line on standard error; a second one is not said."""
    if STATE.said.acquire(blocking=False):
        with contextlib.suppress(OSError):
            os.write(2, b"\n" * os.isatty(2) + line.encode() + b"\n")  # after the terminal's ^C


def leave(code: int) -> None:
    """End the process now, from any thread: what was written is written out, files that are half written go, and
    nothing else is waited for."""
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
