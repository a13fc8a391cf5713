"""A folder that results are put into, here or behind any fsspec URL: each file appears whole, and for good, or not at
all.

Here: write a temporary file beside the target, fsync it, rename it over the target, fsync the folder. A file that
`write` has returned from survives a power cut; one that was being written when the process died is a temporary file,
which `sweep` removes.
Elsewhere: an object store shows an object once its upload is complete; any other protocol writes a temporary file and
moves it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import LIMIT
from llama_jax.plumbing.errors import UserError

REMEDY = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room in your quota",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENOTDIR: "choose a path with no file in its way",
    errno.EEXIST: "choose a path with no file in its way",
    errno.EMFILE: "raise the limit of open files",
    errno.EIO: "check the disk",
}
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # of a file system without hard links

Content = bytes | Sequence[memoryview]


class Folder(Protocol):
    """Files by name, such as `units/000/000012.json`. What fails raises UserError in one line."""

    where: str

    def write(self, name: str, content: Content) -> None:
        """Put a file there, or in the place of one, durably and in one piece. Several buffers are one after the
        other."""

    def create(self, name: str, content: bytes) -> bool:
        """Put a file there unless one is there already; whether this call did. Of several at once one does, where the
        file system can tell."""

    def read(self, name: str, limit: int = LIMIT) -> bytes | None:
        """Its content, of at most so many bytes; None where there is no such file."""

    def part(self, name: str, start: int, stop: int) -> np.ndarray:
        """Bytes start..stop of a file as uint8, read-only; memory-mapped where it lies on this machine."""

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Name → bytes of all files whose name begins so, in order of name, temporary ones left out."""

    def names(self, prefix: str = "") -> list[str]:
        """Names that begin so, in order."""

    def size(self, name: str) -> int | None:
        """Bytes of a file, None where there is none."""

    def remove(self, name: str) -> None:
        """Remove a file; none there is as good."""

    def leftovers(self) -> list[str]:
        """Temporary files of writers that died."""

    def sweep(self) -> list[str]:
        """Remove the leftovers, and say which. Only while no one else writes: theirs would go too."""

    def tidy(self) -> None:
        """Sweep, unless somebody writes here right now or that cannot be known."""

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Held by each who writes here, any number at a time: it keeps others from tidying."""


def buffers(content: Content) -> Sequence[bytes | memoryview]:
    return [content] if isinstance(content, bytes) else content


def temporary(name: str) -> str:
    """Beside the file, under a name that no other writer has: two workers may put the same file there at once."""
    home, slash, last = name.rpartition("/")
    return f"{home}{slash}.{last}.{uuid.uuid4().hex}.tmp"


def is_temporary(name: str) -> bool:
    """By a mark that no one else's file has: `sweep` must not touch these."""
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", name.rpartition("/")[2]) is not None


class Listed:
    """What follows from a listing of all files, whatever the folder."""

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return {name: size for name, size in sorted(self._all(prefix)) if not is_temporary(name)}

    def names(self, prefix: str = "") -> list[str]:
        return list(self.sizes(prefix))

    def leftovers(self) -> list[str]:
        return sorted(name for name, _ in self._all("") if is_temporary(name))

    def sweep(self) -> list[str]:
        found = self.leftovers()
        for name in found:
            self.remove(name)
        return found


class LocalFolder(Listed):
    """A folder of this machine's file system."""

    def __init__(self, path: Path):
        self.path, self.where = path, str(path)

    def write(self, name: str, content: Content) -> None:
        self._put(name, content, os.replace)

    def create(self, name: str, content: bytes) -> bool:
        try:
            self._put(name, content, os.link)  # unlike a rename, a link never takes another's place
        except UserError as error:
            if self.size(name) is not None:  # by whoever was first
                return False
            if getattr(error.__cause__, "errno", None) not in NO_LINKS:
                raise
            self.write(name, content)
        return True

    def _put(self, name: str, content: Content, place: Callable[[Path, Path], None]) -> None:
        target, staged = self.path / name, self.path / temporary(name)
        with self._in_one_line(f"Cannot write {target}", "What is committed stays valid"):
            make_folder(target.parent)
            try:
                with open(staged, "wb") as file:
                    for buffer in buffers(content):
                        file.write(buffer)
                    file.flush()
                    os.fsync(file.fileno())
                place(staged, target)
                sync_folder(target.parent)
            finally:
                with contextlib.suppress(OSError):  # a full disk gets its room back
                    staged.unlink(missing_ok=True)

    def read(self, name: str, limit: int = LIMIT) -> bytes | None:
        return None if self.size(name) is None else boundary.content(self.path / name, limit)

    def part(self, name: str, start: int, stop: int) -> np.ndarray:
        with self._in_one_line(f"Cannot read {self.path / name}"):
            if self.size(name) is None:
                raise UserError(f"{self.path / name} is missing.")
            if stop <= start:
                return np.empty(0, np.uint8)
            return np.asarray(np.memmap(self.path / name, np.uint8, "r"))[start:stop]

    def size(self, name: str) -> int | None:
        with self._in_one_line(f"Cannot read {self.path / name}"):
            try:
                return (self.path / name).stat().st_size
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # a link to itself leads nowhere
                    return None
                raise

    def remove(self, name: str) -> None:
        with self._in_one_line(f"Cannot remove {self.path / name}"):
            (self.path / name).unlink(missing_ok=True)

    def tidy(self) -> None:
        with self._opened() as handle:
            if flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                self.sweep()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """By flock on the folder itself: it leaves no file, and goes with the process."""
        with self._opened() as handle:
            flock(handle, fcntl.LOCK_SH)  # waits only while somebody tidies
            yield

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        with self._in_one_line(f"Cannot write to {self.path}"):
            make_folder(self.path)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield handle
        finally:
            os.close(handle)

    def _all(self, prefix: str) -> list[tuple[str, int]]:
        found = []
        with self._in_one_line(f"Cannot read {self.path}"):
            for home, _, files in os.walk(self.path / prefix.rpartition("/")[0], onerror=unless_missing):
                for file in files:
                    name = (Path(home) / file).relative_to(self.path).as_posix()
                    size = self.size(name) if name.startswith(prefix) else None
                    if size is not None:  # None too where a writer renamed it just now
                        found.append((name, size))
        return found

    @contextlib.contextmanager
    def _in_one_line(self, what: str, comfort: str = "") -> Iterator[None]:
        """An OSError as one line: what could not be done, why, and what helps. ValueError: a name that no file can
        have."""
        try:
            yield
        except (OSError, ValueError) as error:
            remedy = REMEDY.get(getattr(error, "errno", None), "")
            ends = [
                part[0].upper() + part[1:] + "." for part in (comfort, remedy and f"{remedy} and run again") if part
            ]
            raise UserError(" ".join([f"{what}: {getattr(error, 'strerror', None) or error}.", *ends])) from error


def flock(handle: int, how: int) -> bool:
    """Whether the lock was given. File systems that have no locks give none: NFS locks no folders, Lustre may be
    mounted without."""
    try:
        fcntl.flock(handle, how)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return False
    return True


def make_folder(path: Path) -> None:
    """A folder and its parents, each new one as durable as the files in it will be."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):  # another writer made it
        path.mkdir()
    sync_folder(path)  # raises NotADirectoryError where a file has the name
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Put the folder's list of names on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
