"""Files of code in the user's cache, each a line with the SHA-256 of what follows, and the code.

The digest finds damage, not malice: anyone who can write the entry can write its digest. The private folder
(`paths.private`) guards against malice. The bytes that are checked are the bytes that are loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from llama_jax.plumbing import files


def read(path: Path, largest: int) -> bytes | None:
    """The code of an entry; None if it is missing or damaged. largest: bytes of the file."""
    try:
        with open(path, "rb", opener=opener) as file:
            content = file.read(largest + 1)
    except OSError:
        return None
    return opened(content) if len(content) <= largest else None


def write(path: Path, code: bytes) -> None:
    """Write an entry in one piece. Raises UserError if it cannot be written."""
    files.write(path, sealed(code))


def opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe in its place has no writer to wait for


def sealed(code: bytes) -> bytes:
    return hashlib.sha256(code).hexdigest().encode() + b"\n" + code


def opened(content: bytes) -> bytes | None:
    """The content that `sealed` was given; None if a byte of it has changed."""
    digest, _, code = content.partition(b"\n")
    return code if digest == hashlib.sha256(code).hexdigest().encode() else None


def tidy(folder: Path, pattern: str, most: int, room: float = float("inf")) -> None:
    """Keep only the newest `most` files of a pattern, at most `room` bytes in total."""
    found = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process tidies as well
            status = path.stat()
            found.append((status.st_mtime_ns, path, status.st_size))
    for number, (_, path, size) in enumerate(sorted(found, reverse=True)):
        room -= size
        if number >= most or room < 0:
            with contextlib.suppress(OSError):
                path.unlink()
