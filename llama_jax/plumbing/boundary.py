"""Where foreign data comes in. Each reader declares what is allowed as pydantic models that derive from `Declared`.
Data is read through this module, and whatever does not fit becomes one line: file, field, value, remedy.

Bounds come before memory: a document's size is checked before it is read, and the parser bounds its depth
(https://docs.rs/jiter).
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import pydantic_core

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LONG, shown

T = TypeVar("T")
LIMIT = 64 << 20  # bytes of a JSON document: the largest tokenizer known has 35 MB


class Declared(pydantic.BaseModel):
    """Base of declarations for files and requests. Strict: text is not a number and 1 is not true; NaN and infinity are
    refused. Undeclared fields are ignored."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


def read(kind: type[T], value: Any, where: str, remedy: str = "") -> T:
    """`value` as `kind` declares it, a model or any other annotation. Raises UserError: where, field, value, remedy."""
    try:
        return pydantic.TypeAdapter(kind).validate_python(value)
    except pydantic.ValidationError as error:
        raise UserError(complaint(error, where, remedy)) from None


def complaint(error: pydantic.ValidationError, where: str, remedy: str = "") -> str:
    """The first mismatch as one line, with the number of further ones."""
    first, *rest = error.errors(include_url=False, include_context=False)
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        line = f"{where} has no {field}"
    else:
        named = f"{field} is {shown(first['input'])}" if field else f"it holds {shown(first['input'])}"
        message = first["msg"].removeprefix("Value error, ")
        line = f"{where}: {named}; {message[:1].lower()}{message[1:]}"
    more = f" ({len(rest)} more such)" if rest else ""
    return " ".join(filter(None, [line.rstrip(".") + more + ".", remedy]))


def parse(content: bytes | str, where: str, remedy: str = "", nan: bool = False) -> Any:
    """The value of a JSON document. nan: allow NaN and infinity. Raises UserError for anything else: invalid UTF-8, or
    too deep nesting."""
    try:
        return pydantic_core.from_json(content, allow_inf_nan=nan)
    except ValueError as error:
        raise UserError(f"{where} is not JSON: {error}. {remedy}") from None


def load(path: Path, limit: int = LIMIT, remedy: str = "") -> Any:
    """The value of a JSON file. Raises UserError for one that cannot be read, is longer than `limit` bytes, or is not
    JSON; FileNotFoundError for a missing one, which each reader explains itself."""
    return parse(content(path, limit), str(path), remedy)


def content(path: Path, limit: int = LIMIT) -> bytes:
    """A file's bytes, at most `limit`. Raises UserError for more, and for anything but a regular file (a pipe would
    wait for its writer); FileNotFoundError for a missing file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a regular file.")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(f"Cannot read {shown(str(path), LONG)}: {getattr(error, 'strerror', None) or error}.") from None
    if len(data) > limit:
        raise UserError(f"{path} has {status.st_size:,} bytes; at most {limit:,} are read.")
    return data
