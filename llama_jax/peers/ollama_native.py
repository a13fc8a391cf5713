"""A real Ollama of our own: built from source for this machine (`make ollama`), started on loopback for a measurement,
ended with it.

VERSION is the last release whose llama.cpp lies in Ollama's own tree; later ones fetch it while they are built. Go
leaves folders named `vendor` out of the modules that it hands over, so three headers that llama.cpp keeps in one are
missing: they are taken from the source archive of llama-cpp-python, which carries the same llama.cpp.

The binary, its models and its key lie in the user's cache; an Ollama that is installed or runs here is not touched.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from llama_jax import paths
from llama_jax.errors import UserError

VERSION = "0.24.0"
MODULE = "github.com/ollama/ollama"
HEADERS = ("miniaudio", "nlohmann", "stb")  # folders below llama.cpp/vendor
OPTIMISED = "-O3 -march=native"
LINKED = f"-s -w -X={MODULE}/version.Version={VERSION}"  # no symbols; what the server says its version is
SETTINGS = {  # of the server: nothing leaves this machine, one model at a time, one request at a time
    "OLLAMA_NO_CLOUD": "1",
    "OLLAMA_NOPRUNE": "1",
    "OLLAMA_MAX_LOADED_MODELS": "1",
    "OLLAMA_NUM_PARALLEL": "1",
}
TOOLS = {"go": "install Go 1.26 or newer (https://go.dev/dl)", "c++": "install a C++ compiler"}
STARTS_S, ENDS_S = 30.0, 10.0
FOLLOWER = """import os, signal, sys
from llama_jax import parent
parent.follow(int(sys.argv[1]), signal.SIGTERM)  # which it hands on to the process that holds the model
os.execv(sys.argv[2], sys.argv[2:])"""


def binary() -> Path | None:
    """The Ollama that was built here; None where none was."""
    path = paths.cache("ollama", VERSION, "ollama")
    return path if path.is_file() else None


def build() -> tuple[Path, float]:
    """Build it: (the binary, seconds). Raises UserError where a tool is missing or the build fails."""
    for tool, remedy in (
        ("go", "install Go 1.26 or newer (https://go.dev/dl)"),
        ("c++", "apt install build-essential"),
    ):
        if shutil.which(tool) is None:
            raise UserError(f"{tool} is missing, so Ollama cannot be built here; {remedy}, then `make ollama`.")
    folder, start = paths.private("ollama", VERSION), time.perf_counter()
    include = headers(paths.private("ollama", "headers"))
    with tempfile.TemporaryDirectory(dir=folder) as made:
        settings = dict(
            GOBIN=made,
            CGO_ENABLED="1",
            CGO_CFLAGS=OPTIMISED,
            CGO_CXXFLAGS=OPTIMISED,
            CGO_CPPFLAGS=f"-DGGML_USE_CPU_REPACK -I{include}",  # repacked blocks: llama.cpp's default everywhere else
        )
        command = ["go", "install", "-trimpath", "-ldflags", LINKED, f"{MODULE}@v{VERSION}"]
        run(command, settings, made)
        os.replace(Path(made, "ollama"), folder / "ollama")
    return folder / "ollama", time.perf_counter() - start


def headers(folder: Path) -> Path:
    """The folder with HEADERS in it, filled where it is not. Raises UserError where the archive cannot be had."""
    if all((folder / name).is_dir() for name in HEADERS):
        return folder
    needed = (paths.ROOT / "requirements-peers.txt").read_text().split()
    package = next(line for line in needed if line.startswith("llama-cpp-python=="))
    with tempfile.TemporaryDirectory() as here:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        run([*fetch, "-d", here, package], {}, here)
        with tarfile.open(next(Path(here).glob("llama_cpp_python-*.tar.gz"))) as archive:
            for member in archive.getmembers():
                _, _, path = member.name.partition("/llama.cpp/vendor/")
                if path.split("/")[0] in HEADERS and member.isfile():
                    member.name = path
                    archive.extract(member, folder, filter="data")
    return folder


def run(command: list[str], settings: dict[str, str], folder: str) -> None:
    """A step of the build. Raises UserError with its last line of error."""
    done = subprocess.run(command, env=os.environ | settings, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise UserError(f"`{' '.join(command[:3])}` failed: {(errors or ['no message'])[-1]}")


@functools.cache
def server() -> str:
    """The address of this process's own server, started when first asked for, on a port that the system chose; it ends
    with the process. Raises UserError where it does not start."""
    process, url = start()
    atexit.register(end, process)
    return url


def start() -> tuple[subprocess.Popen, str]:
    """(the process, its address once it answers). Raises UserError where it is not built or does not start."""
    if (path := binary()) is None:
        raise UserError("Ollama is not built here; run `make ollama`.")
    host = f"127.0.0.1:{free_port()}"
    home = paths.private("ollama", "home")
    settings = SETTINGS | dict(OLLAMA_HOST=host, OLLAMA_MODELS=str(paths.private("ollama", "models")), HOME=str(home))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OLLAMA_")}
    log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (the server's to write)
    process = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(os.getpid()), str(path), "serve"],
        env=kept | settings,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    deadline = time.monotonic() + STARTS_S
    while not listening(host):
        if process.poll() is not None or time.monotonic() > deadline:
            end(process)
            log.seek(0)
            last = (log.read().strip().splitlines() or ["no message"])[-1]
            raise UserError(f"The Ollama that was built here did not start: {last[-300:]}")
        time.sleep(0.05)
    return process, f"http://{host}"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def listening(host: str) -> bool:
    name, _, port = host.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((name, int(port)), timeout=1):
        return True
    return False


def end(process: subprocess.Popen) -> None:
    """End the server, which ends what holds its model; by force where it does not."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    """`make ollama`."""
    try:
        if (path := binary()) is None:
            print(f"building Ollama {VERSION} from source; some minutes on two idle cores", flush=True)
            path, seconds = build()
            print(f"built in {seconds:.0f} s")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    print(f"Ollama {VERSION}: {path.stat().st_size:,} bytes at {path}; it says: {said[-1] if said else 'nothing'}")


if __name__ == "__main__":
    main()
