"""`llama-jax bench --suite NAME`: what is measured as a whole, where the other options of `bench` have nothing to say.

Parsed here with what Python brings, before the rest of the command line is imported: a GPU machine need not have that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_jax.plumbing.errors import UserError, near

SUITES = ("gpu",)


def asked(arguments: Sequence[str]) -> bool:
    """Whether these arguments of the command line ask for a suite, and not for help."""
    ours = any(a.partition("=")[0] in ("--suite", "--any-device") for a in arguments)
    return arguments[:1] == ["bench"] and ours and "--help" not in arguments


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UserError(f"{message[0].upper()}{message[1:]}.")


def main(arguments: Sequence[str]) -> None:
    """Run what `bench --suite …` asks for. Raises UserError for options that a suite has not."""
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--suite")
    parser.add_argument("--out", action="append", type=Path, default=[])
    parser.add_argument("--any-device", action="store_true")
    known, others = parser.parse_known_args(arguments[1:])
    if others:
        raise UserError(
            f"--suite {known.suite or 'gpu'} measures a fixed programme; leave {others[0].partition('=')[0]} away."
        )
    run(known.suite, known.out, known.any_device)


def run(name: str | None, out: Sequence[Path], any_device: bool) -> None:
    """Measure a suite. Raises UserError for an unknown one, and where the records have no one folder to go to."""
    if name is None:
        raise UserError("--any-device belongs to a suite; give --suite gpu.")
    if name not in SUITES:
        raise UserError(f"No such suite: {name!r}.{near(name, SUITES)}")
    if len(out) != 1 or Path(out[0]).suffix or Path(out[0]).is_file():
        raise UserError(f"--suite {name} needs one folder for its records, such as --out out/{name}.")
    from llama_lab.experiments.gpu import measure

    print(measure.run(out[0], any_device, lambda line: print(line, file=sys.stderr, flush=True)))
