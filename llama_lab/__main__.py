"""`python -m llama_lab` and `llama-jax`: the command line. A user's mistakes, and what the machine refuses (a full
disk, a closed output, no memory), give one line and exit code 2."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
import sys

from llama_jax.plumbing import settings
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_lab import interruption

LONGEST = 1_000  # characters of a message; of a longer one the middle is left out
SELDOM = (200_000, 50, 1000)  # generations of garbage: by itself Python looks some hundred times while JAX is imported
SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")  # what rich and typer lay tables out by


def main(arguments: list[str] | None = None) -> None:
    """Run the command line, and end the process; with given arguments, as in tests, raise SystemExit instead."""
    ends = arguments is None
    try:
        open_closed()
        if ends:
            gc.set_threshold(*SELDOM)
            interruption.install()
        code, failed = attempted(sys.argv[1:] if ends else arguments)
    except KeyboardInterrupt:
        code, failed = interruption.CODE, True
    if interruption.STATE.seen:  # it may have been swallowed on its way
        code, failed = interruption.CODE, True
    if code == interruption.CODE:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # we are leaving
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        if stuck(stream):  # what is left must not be tried again at the interpreter's end
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    if ends and (failed or not interruption.STATE.grace):  # threads may be computing, or nothing is to be put in order
        interruption.leave(code or 0)
    if ends:
        gc.freeze()  # the interpreter's end need not look for garbage among all that was imported
    sys.exit(code)


def attempted(arguments: list[str]) -> tuple[int | None, bool]:
    """(exit code, whether the verb was interrupted)."""
    try:
        code = run(checked(arguments))
        sys.stdout.flush()  # here, where a closed pipe is noticed, and not at the interpreter's end
        return code, code == interruption.CODE  # as typer returns it
    except BrokenPipeError:  # the reader, such as `head`, has left
        return 1, True  # as typer does where a verb notices
    except Exception as error:
        if interruption.STATE.seen:  # which it may have become on its way
            raise KeyboardInterrupt from error
        return complain(error), True


def run(arguments: list[str]) -> int | None:
    """Run the requested verb; returns its exit code."""
    from llama_lab import cli
    from llama_lab.cli.common import join_pairs

    # a verb may start itself again, in several processes
    return cli.program()(join_pairs(arguments), standalone_mode=False, obj=arguments)


def checked(arguments: list[str]) -> list[str]:
    """The arguments, each valid text. Raises UserError for other bytes, which could be neither tokens nor JSON."""
    for argument in arguments:
        try:
            sound = "\0" not in argument
            argument.encode()
        except UnicodeEncodeError:
            sound = False
        if not sound:
            raise UserError(
                f"The argument {shown(argument)} is not text in {sys.getfilesystemencoding()}, the encoding of this"
                " environment; write it in that, or set PYTHONUTF8=1 for UTF-8."
            )
    return arguments


def open_closed() -> None:
    """Make the standard streams usable. A closed one is opened on nothing, so that no other file gets its number:
    standard output then refuses writes, standard error discards them. Characters that the locale cannot write become
    escapes. The width of tables is limited."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            at = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if at != number:
                os.dup2(at, number)
                os.close(at)
            if name != "stdin":  # who reads it says that it is closed
                setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 (as long as we live)
    sys.stdout.reconfigure(errors="backslashreplace")
    for name in SIZES:
        if not re.fullmatch("[1-9][0-9]{1,2}", os.environ.get(name, "80")):
            del os.environ[name]


def complain(error: Exception) -> int:
    """Say in one line what went wrong; returns the exit code. Raises exceptions that are our own mistakes."""
    if isinstance(error, UserError):
        message = str(error)
    elif hasattr(error, "format_message"):  # typer's own: an unknown verb or option, a value of the wrong type
        message = error.format_message().rstrip(".")
        if hasattr(error.__cause__, "errors"):  # pydantic's: what was given, which typer leaves out
            message += f"; it is {shown(error.__cause__.errors()[0]['input'])}."
    elif isinstance(error, OSError):
        at = shown(error.filename) if error.filename is not None else "Standard output" if stuck(sys.stdout) else ""
        message = f"{at}: {error.strerror or error}.".removeprefix(": ")
    elif type(error).__name__ == "Abort":  # typer's for an EOFError
        message = "What was read ended too early."
    elif isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED"):  # the latter is XLA's
        message = "There is not enough memory; ask for fewer tokens or rows, or for a smaller model."
    elif not (message := settings.of_import(error)):
        raise error
    if message:  # empty when no verb was given: the help has been printed
        say(f"error: {message}")
    return 2


def stuck(stream) -> bool:
    """Whether a stream does not take what was written to it."""
    try:
        stream.flush()
    except OSError:
        return True
    return False


def say(message: str) -> None:
    """One line on standard error, if that takes it."""
    line = " ".join(message.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
