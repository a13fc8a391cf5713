"""Writing files in one piece: a reader sees the old file or the new one, never half."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LONG, shown

LEAVING_S = 2.0  # a process that was killed is given so long to leave: its children go with it, and then its locks


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
        raise UserError(f"Cannot write {shown(str(path), LONG)}: {error.strerror}.") from None
    if other:
        raise UserError(f"Cannot write {shown(str(path), LONG)}: it is there, and no regular file.")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raises UserError, naming the path, for what the system refuses."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: half a character, or a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot write {shown(str(path), LONG)}: {reason}.") from error


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """An empty file in the folder of `path`, which is made as needed; removed at the end unless it was moved."""
    check(path)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            staged = Path(file.name)
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def complete(staged: Path) -> None:
    """Bring a file's content to the disk, and let others read it."""
    with open(staged, "rb") as file:
        os.fsync(file.fileno())
    os.chmod(staged, 0o644)


def write_together(contents: dict[Path, str | bytes]) -> None:
    """Replace several files that belong together: all are complete on the disk before the first takes its place."""
    with contextlib.ExitStack() as stack:
        staged = {path: stack.enter_context(beside(path)) for path in contents}
        for path, content in contents.items():
            with explained(path):
                staged[path].write_bytes(content.encode() if isinstance(content, str) else content)
                complete(staged[path])
        for path, temporary in staged.items():
            with explained(path):
                os.replace(temporary, path)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, for what is written piece by piece: it takes that place when the block ends, and is
    removed where the block fails. Raises UserError when it cannot be written."""
    with beside(path) as staged, explained(path):
        yield staged
        complete(staged)
        os.replace(staged, path)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else is in here with that folder, made as needed: for a file that several add to. By flock on
    the folder itself, which leaves no file and goes with the process. Raises UserError when it cannot be made."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"Cannot write to {shown(str(folder), LONG)}: {error.strerror}.") from error
    try:
        with contextlib.suppress(OSError):  # a file system that has no locks gives none
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def taken(path: Path, busy: str) -> BinaryIO:
    """A file, made as needed, that no other process takes until it is closed here, or this process ends however it
    does: by flock. It holds the number of the process. A child that is handed the file keeps it taken.

    busy: what is said where another has it, `{holder}` being that process's number. Raises UserError then, and for a
    file that cannot be written.
    """
    import fcntl

    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 (whoever takes it closes it)
    end = time.monotonic() + LEAVING_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                file.seek(0)
                holder = file.read(20).decode(errors="replace").strip() or "unknown"
                file.close()
                raise UserError(busy.replace("{holder}", holder)) from None
            time.sleep(0.05)
        except OSError:  # a file system that has no locks gives none
            break
    file.truncate(0)
    file.write(b"%d" % os.getpid())
    return file
