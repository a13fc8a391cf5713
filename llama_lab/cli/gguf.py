"""The verb `gguf`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from llama_lab.cli import options
from llama_lab.cli.common import emit, tell
from llama_lab.cli.options import option, verb


@verb("`llama-jax gguf --model random:smollm2-360m --type q4_0 --out smollm2-360m.gguf`")
class Gguf:
    """Write random weights at a model's real shapes as a GGUF file, for this program and others: for speed, never for
    text."""

    model: str = option(..., "random:PRESET or random:PRESET:SEED; see `llama-jax models`.", "--model", "-m")
    kind: str = option(..., "Blocks of the matrices: q4_0, q4_1 or q8_0.", "--type")
    out: Path = option(..., "The file to write.")
    json: bool = options.as_json()

    def run(self) -> None:
        from llama_jax.checkpoint import writer

        made = writer.write(self.model, self.kind, self.out)
        tell(f"{made.out}: {made.bytes:,} bytes, {made.type}, SHA-256 {made.sha256}")
        if self.json:
            emit(asdict(made))
