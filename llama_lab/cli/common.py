"""What all verbs share: the program with its own options, and how a verb prints."""

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
    "Exit codes: 0 success, 1 a measurement or check failed, 2 a usage error or something that cannot run here, 130"
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
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only, no progress.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what JAX compiles in this process, and how long it takes.")
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
    """Print one compact JSON document, in ASCII, as the last line of standard output; NaN becomes null."""
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
    """Print progress on standard error, unless --quiet is given or standard error is closed."""
    if not silent:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def tell_requantised(source, placements: Iterable, dtype: str | None = None) -> None:
    """Say which matrices of a file these placements convert to another type unasked. source: a
    `checkpoint.source.Source`."""
    from llama_jax.engine import requantised

    for line in dict.fromkeys(filter(None, (requantised(source, each, dtype) for each in placements))):
        tell(f"{line}.")


def show(lines: Iterable[str], as_json: bool) -> None:
    """Print the lines of a result. With --json they are progress, on standard error."""
    for line in lines:
        tell(line) if as_json else print(line)


def outcome(problems: Sequence, **about: object) -> tuple[dict, bool]:
    """(JSON document of a check, whether it found nothing wrong), after printing a line per problem. problems:
    dataclasses with `file` and `reason`."""
    for problem in problems:
        tell(f"{problem.file}: {problem.reason}")
    return {"ok": not problems, **about, "problems": [asdict(problem) for problem in problems]}, not problems


def bars_shown() -> bool:
    """Whether progress bars are wanted and visible."""
    return not silent and sys.stderr.isatty()


def split(names: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(filter(None, (name.strip() for name in names.split(","))))


def join_pairs(arguments: list[str]) -> list[str]:
    """Turn `-p NAME VALUE`, as papermill writes it, into the `-p NAME=VALUE` that the parser reads."""
    joined, rest = [], list(arguments)
    while rest:
        joined.append(rest.pop(0))
        if joined[-1] in ("-p", "--parameter") and len(rest) >= 2 and "=" not in rest[0]:
            joined.append(f"{rest.pop(0)}={rest.pop(0)}")
    return joined
