"""A folder behind an fsspec URL: `s3://bucket/run`, `gs://…`, `sftp://host/path`, `memory://…`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import fsspec
import numpy as np

from llama_jax.plumbing.boundary import LIMIT, shown
from llama_jax.plumbing.errors import UserError
from llama_lab.activations.folder import Content, Listed, buffers, temporary

LONGEST = 200  # characters of what a protocol's own exception says
ATOMIC_PUT = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "tos"}  # object stores


def open_url(url: str) -> RemoteFolder:
    """Raises UserError for a protocol that there is not, or whose package is not installed, naming the package."""
    with in_one_line(f"Cannot open {shown(url)}"):
        filesystem, root = fsspec.core.url_to_fs(url)
        return RemoteFolder(url.rstrip("/"), filesystem, root)


class RemoteFolder(Listed):
    """A folder of an fsspec file system. It cannot be locked."""

    def __init__(self, where: str, filesystem, root: str):
        self.where, self.filesystem, self.root = where, filesystem, root.rstrip("/")
        protocols = filesystem.protocol if isinstance(filesystem.protocol, tuple | list) else (filesystem.protocol,)
        self.atomic = bool(ATOMIC_PUT & set(protocols))

    def write(self, name: str, content: Content) -> None:
        target, staged = self._path(name), self._path(name if self.atomic else temporary(name))
        with in_one_line(f"Cannot write {self.where}/{name}", " What is committed stays valid; run again."):
            self.filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.filesystem.pipe_file(staged, b"".join(buffers(content)))
            if staged != target:
                self.filesystem.mv(staged, target)

    def create(self, name: str, content: bytes) -> bool:
        with in_one_line(f"Cannot write {self.where}/{name}"):
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
        with in_one_line(f"Cannot read {self.where}/{name}"):
            try:
                if (size := self.filesystem.size(self._path(name)) or 0) > limit:
                    raise UserError(f"{self.where}/{name} has {size:,} bytes; at most {limit:,} are read.")
                return self.filesystem.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def part(self, name: str, start: int, stop: int) -> np.ndarray:
        with in_one_line(f"Cannot read {self.where}/{name}"):
            content = self.filesystem.cat_file(self._path(name), start=start, end=stop) if stop > start else b""
            return np.frombuffer(content, np.uint8)

    def size(self, name: str) -> int | None:
        with in_one_line(f"Cannot read {self.where}/{name}"):
            self.filesystem.invalidate_cache()
            try:
                return self.filesystem.size(self._path(name))
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> None:
        with in_one_line(f"Cannot remove {self.where}/{name}"), contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(self._path(name))

    def tidy(self) -> None:
        """Nothing: who writes to it cannot be known."""

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def _all(self, prefix: str) -> list[tuple[str, int]]:
        with in_one_line(f"Cannot read {self.where}"):
            self.filesystem.invalidate_cache()  # listings of what others wrote since
            home = "/".join(filter(None, (self.root, prefix.rpartition("/")[0])))
            found = self.filesystem.find(home, detail=True) if self.filesystem.exists(home) else {}
            names = ((path.removeprefix(self.root).lstrip("/"), about["size"]) for path, about in found.items())
            return [(name, size) for name, size in names if name.startswith(prefix)]

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"


@contextlib.contextmanager
def in_one_line(what: str, comfort: str = "") -> Iterator[None]:
    """One line; each protocol raises exceptions of its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:LONGEST] or type(error).__name__
        raise UserError(f"{what}: {reason}.{comfort}") from error
