"""Shared by Ollama and llama.cpp's server: built from source into the user's cache, started on loopback on a free port,
ended with the process that started them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import parent

STARTS_S, ENDS_S = 30.0, 10.0


@dataclass(frozen=True)
class Built:
    """A program that `make NAME` builds from source into the user's cache, as NAME/VERSION/NAME there.

    title: as messages call it. tools: {program that the build needs: remedy where it is missing}. compile: given an
    empty folder, builds there and returns the program.
    """

    name: str
    version: str
    title: str
    tools: Mapping[str, str]
    compile: Callable[[str], Path]

    def binary(self) -> Path | None:
        """The program that was built here; None if none was."""
        path = paths.cache(self.name, self.version, self.name)
        return path if path.is_file() else None

    def required(self) -> Path:
        """The same. Raises UserError if none was built."""
        if (path := self.binary()) is None:
            raise UserError(f"{self.title} is not built here; run `make {self.name}`.")
        return path

    def build(self) -> Path:
        """Build it. Raises UserError if a tool is missing or the build fails."""
        for tool, remedy in self.tools.items():
            if shutil.which(tool) is None:
                raise UserError(
                    f"{tool} is missing, so {self.title} cannot be built here; {remedy}, then `make {self.name}`."
                )
        folder = paths.private(self.name, self.version)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            os.replace(self.compile(scratch), folder / self.name)
        return folder / self.name


def run(command: list[str], settings: dict[str, str], folder: str) -> str:
    """Run a step of a build; returns its output. Raises UserError with its last error line."""
    done = subprocess.run(command, env=os.environ | settings, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise UserError(f"`{' '.join(command[:3])}` failed: {(errors or ['no message'])[-1]}")
    return done.stdout


def pinned() -> str:
    """llama-cpp-python as requirements-peers.txt pins it, whose source archive carries llama.cpp."""
    needed = (paths.ROOT / "requirements-peers.txt").read_text().split()
    return next(line for line in needed if line.startswith("llama-cpp-python=="))


def extract(part: str, folder: Path, names: Sequence[str] = ()) -> None:
    """What lies below `names` of a part of llama.cpp's source, all of it by default, into a folder. Raises UserError
    where the archive cannot be had."""
    with tempfile.TemporaryDirectory() as here:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        run([*fetch, "-d", here, pinned()], {}, here)
        with tarfile.open(next(Path(here).glob("llama_cpp_python-*.tar.gz"))) as archive:
            for member in archive.getmembers():
                _, separator, path = member.name.partition(f"/vendor/llama.cpp/{part}")
                if separator and member.isfile() and (not names or path.split("/")[0] in names):
                    target = folder / path
                    if not target.resolve().is_relative_to(folder.resolve()):
                        raise UserError(f"The source archive of llama.cpp has a file outside of it: {member.name}.")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.extractfile(member) as source, target.open("wb") as written:
                        shutil.copyfileobj(source, written)
                    target.chmod(member.mode & 0o755)


def last_words(log: IO[str]) -> str:
    log.seek(0)
    return (log.read().strip().splitlines() or ["no message"])[-1][-300:]


def start(
    command: Sequence[str], settings: Mapping[str, str], answers: Callable[[], bool], server: str
) -> subprocess.Popen:
    """A server's process once it answers; it ends with this one. Raises UserError if it does not, with its last
    words."""
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (the server's to write)
    follower = [sys.executable, "-c", parent.FOLLOWER, str(os.getpid())]
    process = subprocess.Popen([*follower, *command], env=settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + STARTS_S
    while not answers():
        if process.poll() is not None or time.monotonic() > deadline:
            end(process)
            raise UserError(f"{server} that was built here did not start: {last_words(log)}")
        time.sleep(0.05)
    return process


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def listening(host: str) -> bool:
    name, _, port = host.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((name, int(port)), timeout=1):
        return True
    return False


@contextlib.contextmanager
def speaking(command: Sequence[str], server: str, ends_s: float) -> Iterator[str]:
    """The first line of a server's standard output, once it answers; at the end it gets this many seconds to stop.
    Raises UserError with its last words if it ends without one."""
    with tempfile.TemporaryFile("w+", errors="replace") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
        try:
            if not (line := process.stdout.readline()):
                process.wait()
                raise UserError(f"{server} did not start: {last_words(complaints)}")
            yield line
        finally:
            end(process, ends_s)
            process.stdout.close()


def end(process: subprocess.Popen, ends_s: float = ENDS_S) -> None:
    """End a server and its model's processes; by force if necessary."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ends_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def make(what: str, built: Built) -> None:
    """A target of the Makefile: build it unless it is there, and say how large it is and what it says of itself."""
    try:
        if (path := built.binary()) is None:
            print(f"building {what} from source; some minutes on two idle cores", flush=True)
            start = time.perf_counter()
            path = built.build()
            print(f"built in {time.perf_counter() - start:.0f} s")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    lines = (done.stdout + done.stderr).strip().splitlines()
    print(f"{what}: {path.stat().st_size:,} bytes at {path}; it says: {lines[-1] if lines else 'nothing'}")
