"""Writing files in one piece: a reader sees the old file or the new one, never half.

A replaced file keeps its mode, and its owner if the system allows it. A link stays, and the file that it points to is
replaced. A new file gets the mode that the umask leaves of 0644.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import LONG, shown

MODE = 0o644  # of a new file, less what the umask takes
LINKS = 40  # that are followed, one after the other: as many as Linux does
STAGED: set[Path] = set()  # what a process that leaves at once should remove
LEAVING_S = 2.0  # a process that was killed is given so long to leave: its children go with it, and then its locks


def write(path: Path, content: str | bytes) -> Path:
    """Replace a file's content, folders made as needed. Raises UserError when it cannot be written; nothing is left
    behind."""
    write_together({Path(path): content})
    return path


def check(path: Path) -> None:
    """Raises UserError if something other than a file has that name: a folder, a device that a file would replace, a
    pipe that waits for a reader."""
    try:
        other = path.exists() and not path.is_file()
    except OSError as error:  # a name that is too long
        raise UserError(f"Cannot write {shown(str(path), LONG)}: {error.strerror}.") from None
    if other:
        raise UserError(
            f"Cannot write {shown(str(path), LONG)}: it exists and is not a regular file; choose another name."
        )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns the system's refusals into a UserError that names the path."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: half a character, or a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot write {shown(str(path), LONG)}: {reason}.") from error


def behind(path: Path) -> Path:
    """The file that a path leads to through links, whether it exists or not. Raises UserError for circular links, and
    for a link that another user put into a world-writable folder, which Linux refuses to follow
    (fs.protected_symlinks)."""
    place = path
    for _ in range(LINKS):
        try:
            status = place.lstat()
        except (OSError, ValueError):  # there is none, or writing says what is wrong
            return place
        if not stat.S_ISLNK(status.st_mode):
            return place
        folder = place.parent.stat()
        if folder.st_mode & stat.S_IWOTH and status.st_uid not in (os.geteuid(), folder.st_uid):
            raise UserError(f"Cannot write {shown(str(place), LONG)}: it is a link of another user's; remove it.")
        place = place.parent / place.readlink()
    raise UserError(f"Cannot write {shown(str(path), LONG)}: its links lead round; remove it.")


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """An empty file in the folder of `path`, which is made as needed; removed at the end unless it was moved. No other
    user can read it if it is to replace a file."""
    check(path)
    staged = path.with_name(f".{secrets.token_hex(8)}.tmp")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
        STAGED.add(staged)
        os.close(os.open(staged, flags, 0o600 if path.exists() else MODE))
    try:
        yield staged
    finally:
        staged.unlink(missing_ok=True)
        STAGED.discard(staged)


def complete(staged: Path, path: Path) -> None:
    """Flush a file's content to disk, and give it the owner and mode of the file that it will replace."""
    with open(staged, "rb") as file:
        os.fsync(file.fileno())
    if path.exists():
        old, new = path.stat(), staged.stat()
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with contextlib.suppress(OSError):  # only the superuser may give files away
                os.chown(staged, old.st_uid, old.st_gid)
        os.chmod(staged, stat.S_IMODE(old.st_mode))


def write_together(contents: dict[Path, str | bytes]) -> None:
    """Replace several files that belong together: all are complete on the disk before the first takes its place."""
    contents = {behind(path): content for path, content in contents.items()}
    with contextlib.ExitStack() as stack:
        staged = {path: stack.enter_context(beside(path)) for path in contents}
        for path, content in contents.items():
            with explained(path):
                staged[path].write_bytes(content.encode() if isinstance(content, str) else content)
                complete(staged[path], path)
        for path, temporary in staged.items():
            with explained(path):
                os.replace(temporary, path)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, to be written piece by piece. It replaces `path` when the block ends, and is removed
    if the block fails. Raises UserError when it cannot be written."""
    path = behind(path)
    with beside(path) as staged, explained(path):
        yield staged
        complete(staged, path)
        os.replace(staged, path)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, made as needed, for a file that several processes add to. It is a flock on the folder
    itself, which leaves no file and ends with the process. Raises UserError when the folder cannot be made."""
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


def lockable(path: Path) -> BinaryIO:
    """A file for a lock, made as needed, open for reading and writing. Raises UserError for one that cannot be written,
    for a link, and for a file with a second name: a write there would change another file."""
    flags = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            raise UserError(f"The lock {shown(str(path), LONG)} is a link; remove it.")
        file = open(path, "r+b", buffering=0, opener=lambda name, how: os.open(name, how | flags, MODE))  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise UserError(f"The lock {shown(str(path), LONG)} is not a regular file with a single name; remove it.")
    return file


def taken(path: Path, busy: str) -> BinaryIO:
    """A lock file, made as needed and held by flock until it is closed here or this process ends in any way. It holds
    the process's number. A child that inherits the file keeps the lock.

    busy: the message if another process holds it, `{holder}` being that process's number. Raises UserError then, and as
    `lockable`.
    """
    import fcntl

    file = lockable(path)
    end = time.monotonic() + LEAVING_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                file.seek(0)
                holder = file.read(20).strip()
                file.close()
                name = holder.decode() if holder.isdigit() else "unknown"
                raise UserError(busy.replace("{holder}", name)) from None
            time.sleep(0.05)
        except OSError:  # a file system that has no locks gives none
            break
    file.seek(0)
    file.truncate(0)
    file.write(b"%d" % os.getpid())
    return file
