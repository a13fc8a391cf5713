"""The verbs `run` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_jax.cli.common import Json, app, emit, tell
from llama_jax.errors import UserError


def read_pairs(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UserError(f"-p {pair}: write -p NAME VALUE.")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command(epilog="Example: `llama-jax run 03 --measure -p new_tokens 32 --out my-results`")
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="Numbers or names, such as 03; all of them by default.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="NAME VALUE", help="Set a notebook parameter.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--recorded", help="Run the models, or redraw from recorded data.")
    ] = False,
    profile: Annotated[str, typer.Option(help="quick or full: how much is measured.")] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for data, figures, notebooks and their pages; the repository by default."),
    ] = None,
    json_: Json = False,
) -> None:
    """Execute notebooks without a browser: measure or redraw, check what they leave, print what they found."""
    from llama_jax import paths
    from llama_jax.reporting import notebooks as runner

    given = read_pairs(parameter or [])
    results = runner.run(notebooks or (), given, "measure" if measure else "recorded", profile, out or paths.ROOT, tell)
    for r in results:
        tell(f"{r.name}: {'ok' if r.ok else 'FAILED'} in {r.seconds} s. {r.finding if r.ok else r.error}")
    if json_:
        emit(runner.as_json(results))
    if not all(r.ok for r in results):
        raise typer.Exit(1)


@app.command(epilog="Example: `llama-jax report`")
def report(
    out: Annotated[
        Path | None, typer.Option(help="Folder that holds figures/ and data/; the repository by default.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write docs/index.html from the figures and findings of the last runs."""
    from llama_jax import paths
    from llama_jax.reporting import report as page

    path = page.write(out or paths.ROOT)
    if json_:
        emit({"path": path})
    else:
        print(path)
