"""`llama-jax bench --suite NAME`: what is measured as a whole, where the other options of `bench` have nothing to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

SUITES = ("gpu",)
OWN = {"suite_name", "out", "any_device"}


def run(context: typer.Context, name: str | None, out: Sequence[Path], any_device: bool, tell: Callable[[str], None]) -> None:
    """Check the options and measure. Raises UserError for an unknown suite, and for options that a suite has not."""
    from llama_jax.errors import UserError, near

    if name is None:
        raise UserError("--any-device belongs to a suite; give --suite gpu.")
    if name not in SUITES:
        raise UserError(f"No such suite: {name!r}.{near(name, SUITES)}")
    given = [p for p in context.command.params if p.name not in OWN and context.get_parameter_source(p.name).name == "COMMANDLINE"]
    if given:
        raise UserError(f"--suite {name} measures a fixed programme; leave {given[0].opts[0]} away.")
    if len(out) != 1 or Path(out[0]).suffix or Path(out[0]).is_file():
        raise UserError(f"--suite {name} needs one folder for its records, such as --out out/{name}.")
    from llama_jax.bench import gpu

    print(gpu.run(out[0], any_device, tell))
