"""A folder for results, local or behind any fsspec URL (`s3://bucket/run`, `sftp://host/path`). Each file appears whole
and durably, or not at all.

Here: write a temporary file beside the target, fsync it, rename it over the target, fsync the folder. A file that
`write` has returned from survives a power cut. A writer that is killed leaves a temporary file, which `sweep` removes.
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

import numpy as np

from llama_jax.plumbing import boundary
from llama_jax.plumbing.boundary import LIMIT, shown
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
# NFS locks no folders, Lustre may be mounted without locks
NO_LOCK = (errno.EWOULDBLOCK, errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
LONGEST = 200  # characters of what a protocol's own exception says
ATOMIC_PUT = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "tos"}  # object stores

Content = bytes | Sequence[memoryview]


def open_folder(out: str | os.PathLike) -> Folder:
    """A local path or an fsspec URL. Nothing is created yet. Raises UserError for anything else, and for an unknown
    protocol or one whose package is not installed, naming the package."""
    text = os.fspath(out) if isinstance(out, str | os.PathLike) else None
    if not isinstance(text, str) or not text or not text.isprintable():  # a NUL, or half a surrogate pair
        raise UserError(f"{shown(out)} does not name a folder; give a path, or a URL such as s3://bucket/run.")
    protocol, separator, path = text.partition("://")
    if separator and len(protocol) < 2:  # fsspec would take it for a file of this machine
        raise UserError(f"{shown(out)} has no protocol; give a path, or a URL such as s3://bucket/run.")
    if not separator or protocol in ("file", "local"):
        return LocalFolder(Path(path if separator else text))
    with remotely(f"Cannot open {shown(text)}"):
        import fsspec  # here: no local folder needs it

        filesystem, root = fsspec.core.url_to_fs(text)
        return RemoteFolder(text.rstrip("/"), filesystem, root)


def buffers(content: Content) -> Sequence[bytes | memoryview]:
    return [content] if isinstance(content, bytes) else content


def temporary(name: str) -> str:
    """A unique name beside the file, because two workers may write the same file at once."""
    home, slash, last = name.rpartition("/")
    return f"{home}{slash}.{last}.{uuid.uuid4().hex}.tmp"


def is_temporary(name: str) -> bool:
    """Other people's files have no such mark: `sweep` must not touch them."""
    return re.fullmatch(r"\..+\.[0-9a-f]{32}\.tmp", name.rpartition("/")[2]) is not None


class Folder:
    """Files by name, such as `units/000/000012.json`; `where` names the folder. Failures raise UserError.

    write(name, content)     put a file there, or replace one, durably and in one piece
    create(name, content)    the same, unless a file is there; whether this call wrote it. Of several at once one does,
                             where the file system can tell
    read(name, limit)        its content of at most `limit` bytes; None if there is no file
    part(name, start, stop)  bytes start..stop as uint8, read-only; memory-mapped where the file lies on this machine
    size(name)               bytes of a file; None if there is none
    remove(name)             remove a file, if it is there
    tidy()                   sweep, unless someone writes here now or that cannot be known
    writing()                held by each writer, any number at a time: it keeps others from tidying
    """

    where: str

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Name → bytes of all files with this prefix, in order of name, without temporary ones."""
        return {name: size for name, size in sorted(self._all(prefix)) if not is_temporary(name)}

    def names(self, prefix: str = "") -> list[str]:
        return list(self.sizes(prefix))

    def leftovers(self) -> list[str]:
        return sorted(name for name, _ in self._all("") if is_temporary(name))

    def sweep(self) -> list[str]:
        """Remove leftovers, and say which. Only while no one else writes, whose files would be removed too."""
        leftovers = self.leftovers()
        for name in leftovers:
            self.remove(name)
        return leftovers


class LocalFolder(Folder):
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
        with locally(f"Cannot write {target}", "What is committed stays valid"):
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
        with locally(f"Cannot read {self.path / name}"):
            if self.size(name) is None:
                raise UserError(f"{self.path / name} is missing.")
            if stop <= start:
                return np.empty(0, np.uint8)
            return np.asarray(np.memmap(self.path / name, np.uint8, "r"))[start:stop]

    def size(self, name: str) -> int | None:
        with locally(f"Cannot read {self.path / name}"):
            try:
                return (self.path / name).stat().st_size
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # a link to itself leads nowhere
                    return None
                raise

    def remove(self, name: str) -> None:
        with locally(f"Cannot remove {self.path / name}"):
            (self.path / name).unlink(missing_ok=True)

    def tidy(self) -> None:
        with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB) as alone:
            if alone:
                self.sweep()

    def writing(self) -> contextlib.AbstractContextManager[bool]:
        return self._locked(fcntl.LOCK_SH)  # waits only while someone tidies

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[bool]:
        """Whether the folder itself could be locked: a lock on it leaves no file, and goes with the process."""
        with locally(f"Cannot write to {self.path}"):
            make_folder(self.path)
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(handle, how)
                locked = True
            except OSError as error:
                if error.errno not in NO_LOCK:
                    raise
                locked = False
            yield locked
        finally:
            os.close(handle)

    def _all(self, prefix: str) -> list[tuple[str, int]]:
        files = []
        with locally(f"Cannot read {self.path}"):
            for home, _, names in os.walk(self.path / prefix.rpartition("/")[0], onerror=unless_missing):
                for name in (Path(home, name).relative_to(self.path).as_posix() for name in names):
                    size = self.size(name) if name.startswith(prefix) else None
                    if size is not None:  # None too where a writer renamed it just now
                        files.append((name, size))
        return files


class RemoteFolder(Folder):
    """A folder of an fsspec file system. It cannot be locked."""

    def __init__(self, where: str, filesystem, root: str):
        self.where, self.filesystem, self.root = where, filesystem, root.rstrip("/")
        protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple | list) else (filesystem.protocol,)
        self.atomic = bool(ATOMIC_PUT & set(protocols))

    def write(self, name: str, content: Content) -> None:
        target, staged = self._path(name), self._path(name if self.atomic else temporary(name))
        with remotely(f"Cannot write {self.where}/{name}", " What is committed stays valid; run again."):
            if not self.atomic:  # an object store has no folders: asking for one costs a request an object
                self.filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.filesystem.pipe_file(staged, b"".join(buffers(content)))
            if staged != target:
                self.filesystem.mv(staged, target)

    def create(self, name: str, content: bytes) -> bool:
        with remotely(f"Cannot write {self.where}/{name}"):
            if self.atomic:
                try:
                    self.filesystem.pipe_file(self._path(name), content, mode="create")
                except FileExistsError:
                    return False
                return True
        if self.size(name) is not None:
            return False
        self.write(name, content)
        return True

    def read(self, name: str, limit: int = LIMIT) -> bytes | None:
        with remotely(f"Cannot read {self.where}/{name}"):
            try:
                if (size := self.filesystem.size(self._path(name)) or 0) > limit:
                    raise UserError(f"{self.where}/{name} has {size:,} bytes; at most {limit:,} are read.")
                return self.filesystem.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def part(self, name: str, start: int, stop: int) -> np.ndarray:
        with remotely(f"Cannot read {self.where}/{name}"):
            content = self.filesystem.cat_file(self._path(name), start=start, end=stop) if stop > start else b""
            return np.frombuffer(content, np.uint8)

    def size(self, name: str) -> int | None:
        with remotely(f"Cannot read {self.where}/{name}"):
            self.filesystem.invalidate_cache()
            try:
                return self.filesystem.size(self._path(name))
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        with remotely(f"Cannot remove {self.where}/{name}"), contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(self._path(name))

    def tidy(self) -> None:
        """Nothing: whether someone writes cannot be known."""

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _all(self, prefix: str) -> list[tuple[str, int]]:
        with remotely(f"Cannot read {self.where}"):
            self.filesystem.invalidate_cache()  # others may have written since
            home = "/".join(filter(None, (self.root, prefix.rpartition("/")[0])))
            entries = self.filesystem.find(home, detail=True) if self.filesystem.exists(home) else {}
            names = ((path.removeprefix(self.root).lstrip("/"), about["size"]) for path, about in entries.items())
            return [(name, size) for name, size in names if name.startswith(prefix)]

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


@contextlib.contextmanager
def locally(what: str, comfort: str = "") -> Iterator[None]:
    """An OSError as one line: what failed, why, and the remedy. ValueError: an impossible file name."""
    try:
        yield
    except (OSError, ValueError) as error:
        remedy = REMEDY.get(getattr(error, "errno", None), "")
        ends = [part[0].upper() + part[1:] + "." for part in (comfort, remedy and f"{remedy} and run again") if part]
        raise UserError(" ".join([f"{what}: {getattr(error, 'strerror', None) or error}.", *ends])) from error


@contextlib.contextmanager
def remotely(what: str, comfort: str = "") -> Iterator[None]:
    """Any exception as one line, because each protocol raises its own kinds."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise UserError(f"{what}: {reason}.{comfort}") from error


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
    """Flush the folder's directory entries to disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
