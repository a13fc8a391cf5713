"""Writing files in one piece: a reader sees the old file or the new one, never half."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown


def write(path: Path, content: str | bytes) -> Path:
    """Replace a file's content, folders made as needed. Raises UserError when it cannot be written; nothing is left
    behind."""
    write_together({Path(path): content})
    return path


def check(path: Path) -> None:
    """Raises UserError where something else than a file has that name: a folder, a device that a file would take the
    place of, a pipe that waits for a reader."""
    try:
        other = path.exists() and not path.is_file()
    except OSError as error:  # a name that is too long
        raise UserError(f"Cannot write {shown(str(path))}: {error.strerror}.") from None
    if other:
        raise UserError(f"Cannot write {shown(str(path))}: it is there, and no regular file.")


def write_together(contents: dict[Path, str | bytes]) -> None:
    """Replace several files that belong together: all are complete on the disk before the first takes its place."""
    staged: dict[Path, str] = {}
    path = None
    try:
        for path, content in contents.items():
            check(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                staged[path] = file.name
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
        for path, temporary in staged.items():
            os.replace(temporary, path)
    except (OSError, ValueError) as error:  # ValueError: half a character, or a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot write {shown(str(path))}: {reason}.") from error
    finally:
        for temporary in staged.values():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else is in here with that folder, made as needed: for a file that several add to. By flock on
    the folder itself, which leaves no file and goes with the process. Raises UserError when it cannot be made."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"Cannot write to {shown(str(folder))}: {error.strerror}.") from error
    try:
        with contextlib.suppress(OSError):  # a file system that has no locks gives none
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, for what is written piece by piece: it takes that place when the block ends, and is
    removed where the block fails. Raises UserError when it cannot be written."""
    check(path)
    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            staged = Path(file.name)
        yield staged
        with open(staged, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(staged, 0o644)
        os.replace(staged, path)
    except (OSError, ValueError) as error:  # ValueError: half a character, or a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot write {shown(str(path))}: {reason}.") from error
    finally:
        if staged:
            staged.unlink(missing_ok=True)
