"""GGUF models in several files, NAME-00001-of-00003.gguf and so on, as llama.cpp's `gguf-split` makes them. Any part
opens the model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from llama_jax.checkpoint.declared import Split
from llama_jax.checkpoint.header import Header, read
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError


def parts(path: Path) -> dict[Path, Header]:
    """The files of a model in order, with their headers: the file itself, or all parts of a split one. Raises UserError
    for a part that is missing, damaged or from another model."""
    header = read(path)
    about = said(path, header)
    if about.count < 2:
        return {path: header}
    end = "-{:05}-of-" + f"{about.count:05}.gguf"
    if not path.name.endswith(end.format(about.no + 1)):
        raise UserError(
            f"{path}: it is part {about.no + 1} of {about.count} of a model; rename all parts, this one to"
            f" NAME{end.format(about.no + 1)}."
        )
    stem, files = path.name.removesuffix(end.format(about.no + 1)), {}
    for no in range(about.count):
        part = path.with_name(stem + end.format(no + 1))
        if not os.path.lexists(part):
            raise UserError(f"{path}: {part.name} is missing from its folder; fetch all {about.count} parts.")
        files[part] = header if part == path else read(part)
        other = said(part, files[part])
        if (other.no, other.count) != (no, about.count):
            raise UserError(f"{part}: it says that it is part {other.no + 1} of {other.count}; fetch it again.")
    return files


def said(path: Path, header: Header) -> Split:
    return boundary.read(Split, header.metadata, f"{path}: the GGUF header")


def joined(files: Mapping[Path, Header]) -> Header:
    """One header of all parts, with the first one's metadata. Raises UserError for a tensor that is in two parts, and
    if the number of tensors is not what the header says."""
    (path, first), *rest = files.items()
    tensors = dict(first.tensors)
    for part, header in rest:
        if twice := tensors.keys() & header.tensors.keys():
            raise UserError(f"{part}: tensor {min(twice)[:80]!r} is in another part too; fetch all parts again.")
        tensors |= header.tensors
    if (count := said(path, first).tensors) not in (None, len(tensors)):
        raise UserError(
            f"{path}: split.tensors.count is {count}, and {len(tensors)} tensors are there; fetch it again."
        )
    return Header(first.metadata, tensors)


def whole(path: Path) -> Header:
    """The header of a model, all parts of a split one together."""
    return joined(parts(path))


def first(path: Path) -> Path:
    """For a split file, the part that other programs open; otherwise the file itself."""
    other = path.with_name(re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"-00001\1", path.name))
    return other if other.exists() else path
