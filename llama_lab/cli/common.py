"""What all verbs share: the program with its own options, and how a verb speaks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError

EXITS = (
    "Exit codes: 0 done, 1 measured or checked and found wanting, 2 a mistake in what was asked or no way to do it, 130"
    " interrupted, 143 terminated."
)
app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False, epilog=EXITS)
silent = False  # set by --quiet, for this run of the program


def show_version(asked: bool) -> None:
    if asked:
        print(f"llama-jax {importlib.metadata.version('llama-jax')}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version, and leave.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Results and errors only: no progress.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what JAX compiles in this process, and how long it takes.")
    ] = False,
) -> None:
    """The same language model under every placement of jax.jit."""
    global silent
    if quiet and verbose:
        raise UserError("--quiet and --verbose contradict each other; choose one.")
    silent = quiet
    if verbose:
        os.environ["JAX_LOG_COMPILES"] = "1"  # JAX reads it when a verb imports it


def emit(document: dict) -> None:
    """One compact JSON document, in ASCII, as the last line of standard output; what is not a number is null."""
    print(json.dumps(plain(document), separators=(",", ":"), allow_nan=False), flush=True)


def plain(value):
    """JSON values only: NaN becomes None, paths become text."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and value != value:
        return None
    return str(value) if isinstance(value, Path) else value


def tell(line: str) -> None:
    """Progress, for people: on standard error, unless --quiet or nothing takes it there."""
    if not silent:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def tell_requantised(source, placements: Iterable, dtype: str | None = None) -> None:
    """What a file's matrices become under these placements that they are not in the file, though nobody asked for it.
    source: a `checkpoint.source.Source`."""
    from llama_jax.engine import requantised

    for line in dict.fromkeys(filter(None, (requantised(source, each, dtype) for each in placements))):
        tell(f"{line}.")


def show(lines: Iterable[str], as_json: bool) -> None:
    """A result in lines for people, which are progress where one line of JSON was asked for instead."""
    for line in lines:
        tell(line) if as_json else print(line)


def outcome(problems: Sequence, **about: object) -> tuple[dict, bool]:
    """(JSON document of a check, whether it found nothing wrong), after a line for each problem. problems: dataclasses
    with `file` and `reason`."""
    for problem in problems:
        tell(f"{problem.file}: {problem.reason}")
    return {"ok": not problems, **about, "problems": [asdict(problem) for problem in problems]}, not problems


def bars_shown() -> bool:
    """Whether progress bars are wanted, and someone sees them."""
    return not silent and sys.stderr.isatty()


def split(names: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(filter(None, (name.strip() for name in names.split(","))))


def join_pairs(arguments: list[str]) -> list[str]:
    """`-p NAME VALUE`, as papermill writes it, to the `-p NAME=VALUE` that the parser reads."""
    joined, rest = [], list(arguments)
    while rest:
        joined.append(rest.pop(0))
        if joined[-1] in ("-p", "--parameter") and len(rest) >= 2 and "=" not in rest[0]:
            joined.append(f"{rest.pop(0)}={rest.pop(0)}")
    return joined
