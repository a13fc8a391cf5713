"""An opened checkpoint: its tensors under Hugging Face's names, none of them read yet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from llama_jax.config import FAMILIES, ModelConfig
from llama_jax.plumbing.errors import UserError

if TYPE_CHECKING:
    from llama_jax.checkpoint.raw import Raw


@dataclass(frozen=True)
class Tensor:
    """A tensor that has not been read yet: its shape, and how to get its values. raw: its bytes, where they are a
    GGUF's. name: the file's own, where it is another one than Hugging Face's."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray | jax.Array]
    raw: Raw | None = None
    name: str = ""


@dataclass(frozen=True)
class Source:
    """An opened checkpoint: what is known before its weights are read."""

    where: str
    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: Callable
    hash: Callable[[], str]


@dataclass(frozen=True)
class Rows:
    """Names of the tensors whose rows, one below the other, make one weight. transposed: they are stored [in, out]."""

    names: tuple[str, ...]
    transposed: bool = False


def is_matrix(rows: Rows) -> bool:
    """Whether the model multiplies by this weight: no norm, no bias, no table of positions."""
    *_, module, kind = rows.names[0].split(".")
    return kind == "weight" and "norm" not in module and not module.startswith("ln_") and module != "wpe"


TABLES = dict.fromkeys(FAMILIES, "model.embed_tokens.weight") | {"gpt2": "transformer.wte.weight"}
HEAD = "lm_head.weight"


def with_head(config: ModelConfig, tensors: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Configuration and tensors of a model whose head is said to be its table. As transformers 5 does
    (`PreTrainedModel.tie_weights`), a head of other values is used all the same, and a table that is missing is the
    head."""
    table = TABLES[config.model_type]
    if not config.tie_word_embeddings or HEAD not in tensors:
        return config, tensors
    if table in tensors and not equal(tensors[table], tensors[HEAD]):
        return replace(config, tie_word_embeddings=False), tensors
    rest = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    return config, {table: tensors[HEAD]} | rest


def equal(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same values; those of a GGUF, the same blocks."""
    if left.shape != right.shape or (left.raw and left.raw.kind) != (right.raw and right.raw.kind):
        return False
    return np.array_equal(*(np.asarray(t.raw.read() if t.raw else t.read()) for t in (left, right)))


def check_finite(values: np.ndarray, where: str, name: str) -> None:
    """Raises UserError for a weight that is infinite or no number."""
    bits = values.view(np.uint16) & 0x7F80 if values.dtype.name == "bfloat16" else None
    if not (np.isfinite(values).all() if bits is None else (bits != 0x7F80).all()):
        raise damaged(where, name)


def damaged(where: str, name: str) -> UserError:
    return UserError(f"{where}: tensor {name} holds NaN or infinity; the file is damaged, fetch it again.")


def identity(path: Path) -> list[str | int]:
    """What tells a file from another, and from itself once it has been changed: its path, size and time."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def hashed_later(paths: Sequence[Path], digest: Callable[[], str]) -> Callable[[], str]:
    """A digest of files that may be asked for long after they were opened: it raises UserError where one has changed
    since."""

    def known() -> list:
        try:
            return [identity(path) for path in paths]
        except OSError as error:
            raise UserError(f"Cannot read {error.filename}: {error.strerror}.") from None

    opened = known()

    def later() -> str:
        for path, now, then in zip(paths, known(), opened, strict=True):
            if now != then:
                raise UserError(
                    f"{path} has changed since it was loaded, so its hash would be another's; load it again."
                )
        return digest()

    return later


def hash_files(paths) -> str:
    """SHA-256 of the files' contents, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()
