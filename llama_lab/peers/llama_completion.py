"""llama.cpp's own command, `llama-completion`, built like its server (`make llama-completion`), to compare with
`llama-jax generate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from llama_lab.peers import llama_server, llamacpp, native

NAME = "llama-completion"
CONTEXT = 4096  # tokens: room for the largest of its own would have it clear a gigabyte first
BUILT = native.Built(
    NAME, llama_server.BUILT.version, "llama.cpp's command", llama_server.TOOLS,
    partial(llama_server.compiled, target=NAME),
)  # fmt: skip


def missing(model: str) -> tuple[str, str] | None:
    """Why it cannot answer by this model here, and what would help."""
    if BUILT.binary() is None:
        return "llama.cpp's command is not built here.", f"Run `make {NAME}`."
    return llamacpp.no_file(model)


def command(file: Path, prompt: str, new_tokens: int, threads: int) -> list[str]:
    """The command that answers one prompt in the model's chat template, greedily, and ends. It skips the warm-up, which
    would only delay a single answer. Raises UserError if it is not built."""
    return [
        *(str(BUILT.required()), "--model", str(file), "--prompt", prompt, "--predict", str(new_tokens)),
        *("--temp", "0", "--threads", str(threads), "--threads-batch", str(threads), "--ctx-size", str(CONTEXT)),
        *("--jinja", "--single-turn", "--no-display-prompt", "--simple-io", "--no-warmup", "--fit", "off", "--offline"),
    ]


if __name__ == "__main__":
    native.make(f"{NAME} of llama-cpp-python {BUILT.version}", BUILT)
