"""What all verbs share: the program and its own options, options of several verbs, and how a verb speaks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LARGEST

EXITS = (
    "Exit codes: 0 done, 1 measured or checked and found wanting, 2 a mistake in what was asked or no way to do it, 130"
    " interrupted, 143 terminated."
)
TOKENS = 1 << 20  # of a prompt or an answer that is measured: more than any model here can read
ROWS = 1 << 16  # of a batch
app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False, epilog=EXITS)
silent = False  # set by --quiet, for this run of the program


def known_models(incomplete: str) -> list[tuple[str, str]]:
    """What the shell offers for --model."""
    from llama_jax import checkpoint

    return [(name, about) for name, about in checkpoint.models().items() if name.startswith(incomplete)]


def known_placements(incomplete: str) -> list[tuple[str, str]]:
    """What the shell offers for --placement: the ladder, and after a + what may be appended."""
    from llama_jax.placement import DESCRIPTIONS, LADDER, MODIFIERS

    begun, plus, last = incomplete.rpartition("+")
    if plus:
        return [(f"{begun}+{name}", "") for name in MODIFIERS if name.startswith(last)]
    return [(name, DESCRIPTIONS[name]) for name in LADDER if name.startswith(incomplete)]


Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        autocompletion=known_models,
        help="Model name, path, hub id or random:PRESET; see `llama-jax models`.",
    ),
]
PlacementName = Annotated[
    str,
    typer.Option("--placement", autocompletion=known_placements, help="Where jit goes; see `llama-jax placements`."),
]
Json = Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")]
MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", "-n", min=1, max=LARGEST, help="Tokens to make at most.")
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k best tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the smallest set of tokens with this probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the best one's probability.")]
Penalty = Annotated[float, typer.Option("--repetition-penalty", help="Above 1 makes tokens already seen less likely.")]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of the draws.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end of the answer.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, gguf (the file's own blocks), q8_0, q4_0, q4_1 or int8.")]


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
