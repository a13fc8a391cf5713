"""The verb `gguf`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from llama_lab.cli.common import Json, app, emit, tell


@app.command(epilog="Example: `llama-jax gguf --model random:smollm2-360m --type q4_0 --out smollm2-360m.gguf`")
def gguf(
    model: Annotated[
        str, typer.Option("--model", "-m", help="random:PRESET or random:PRESET:SEED; see `llama-jax models`.")
    ],
    kind: Annotated[str, typer.Option("--type", help="Blocks of the matrices: q4_0, q4_1 or q8_0.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    json_: Json = False,
) -> None:
    """Write random weights at a model's real shapes as a GGUF file, for this program and others: for speed, never for
    text."""
    from llama_jax.checkpoint import writer

    made = writer.write(model, kind, out)
    tell(f"{made.out}: {made.bytes:,} bytes, {made.type}, SHA-256 {made.sha256}")
    if json_:
        emit(asdict(made))
