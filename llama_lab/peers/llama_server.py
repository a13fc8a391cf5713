"""llama.cpp's own server, `llama-server`: built from the source that llama-cpp-python's archive carries (`make
llama-server`), so that it is the llama.cpp that is measured elsewhere, started on loopback for a load, ended with it.

Without its page, which would be fetched while it is built, and without what fetches models.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab.peers import llamacpp, native

TOOLS = {"cmake": "apt install cmake", "c++": "apt install build-essential"}
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_CURL": "OFF",
}
REMEDY = "Run `make llama-server`."


def version() -> str:
    return native.pinned().partition("==")[2]


def binary() -> Path | None:
    """The server that was built here; None where none was."""
    path = paths.cache("llama-server", version(), "llama-server")
    return path if path.is_file() else None


def missing(model: str) -> tuple[str, str] | None:
    """Why it cannot serve this model here, and what would help."""
    if binary() is None:
        return "llama.cpp's server is not built here.", REMEDY
    return llamacpp.no_file(model)


def build() -> Path:
    """Build it. Raises UserError where a tool is missing or the build fails."""
    native.require(TOOLS, "llama.cpp's server", "make llama-server")
    folder = paths.private("llama-server", version())
    with tempfile.TemporaryDirectory(dir=folder) as made, native.llama_cpp() as extract:
        extract("", Path(made, "source"))
        options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
        native.run(["cmake", "-S", "source", "-B", "build", *options], {}, made)
        cores = str(len(os.sched_getaffinity(0)))
        native.run(["cmake", "--build", "build", "--target", "llama-server", "--parallel", cores], {}, made)
        os.replace(Path(made, "build", "bin", "llama-server"), folder / "llama-server")
    return folder / "llama-server"


def start(file: Path, slots: int, context: int, threads: int) -> tuple[subprocess.Popen, str]:
    """(the process, its address once the model is loaded): as many slots of so many tokens, none of which keeps what it
    read of another request. Raises UserError where it is not built or does not start."""
    if (path := binary()) is None:
        raise UserError(f"llama.cpp's server is not built here; {REMEDY[0].lower()}{REMEDY[1:]}")
    port = native.free_port()
    url, each = f"http://127.0.0.1:{port}", str(threads)
    command = [
        *(str(path), "--host", "127.0.0.1", "--port", str(port), "--offline", "--model", str(file)),
        *("--parallel", str(slots), "--ctx-size", str(slots * context), "--no-kv-unified", "--fit", "off"),
        *("--threads", each, "--threads-batch", each, "--no-cache-prompt", "--cache-ram", "0"),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
    return native.start(command, kept, lambda: ready(url), "The llama-server"), url


def ready(url: str) -> bool:
    """Whether it answers that its model is loaded."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:  # nobody listens yet, or it loads
        return False


if __name__ == "__main__":
    native.make(f"llama-server of llama-cpp-python {version()}", binary, build)
