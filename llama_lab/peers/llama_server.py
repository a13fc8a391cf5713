"""llama.cpp's own server, `llama-server`: built from the source in llama-cpp-python's archive (`make llama-server`), so
that it is the same llama.cpp as elsewhere. It is started on loopback for a load test and stopped afterwards.

It is built without its web page, which the build would download, and without the code that fetches models.
"""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path

from llama_lab.peers import llamacpp, native

TOOLS = {"cmake": "apt install cmake", "c++": "apt install build-essential"}
LEFT_OUT = ("TESTS", "EXAMPLES", "APP", "UI")
OPTIONS = {"CMAKE_BUILD_TYPE": "Release", "GGML_NATIVE": "ON", "LLAMA_BUILD_SERVER": "ON"}
OPTIONS |= dict.fromkeys(("BUILD_SHARED_LIBS", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL", "LLAMA_CURL"), "OFF")
OPTIONS |= {f"LLAMA_BUILD_{part}": "OFF" for part in LEFT_OUT}


def compiled(folder: str, target: str = "llama-server") -> Path:
    """Build it, or another of llama.cpp's programs, in a folder. Raises UserError if a step fails."""
    native.extract("", Path(folder, "source"))
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    native.run(["cmake", "-S", "source", "-B", "build", *options], {}, folder)
    cores = str(len(os.sched_getaffinity(0)))
    native.run(["cmake", "--build", "build", "--target", target, "--parallel", cores], {}, folder)
    return Path(folder, "build", "bin", target)


BUILT = native.Built("llama-server", native.pinned().partition("==")[2], "llama.cpp's server", TOOLS, compiled)


def missing(model: str) -> tuple[str, str] | None:
    """Why it cannot serve this model here, and what would help."""
    if BUILT.binary() is None:
        return "llama.cpp's server is not built here.", "Run `make llama-server`."
    return llamacpp.no_file(model)


def start(file: Path, slots: int, context: int, threads: int, keeps: bool = False) -> tuple[subprocess.Popen, str]:
    """(the process, its address once the model is loaded): as many slots of so many tokens. keeps: whether it keeps
    what it read of earlier requests, its default. Raises UserError if it is not built or does not start."""
    path, port = BUILT.required(), native.free_port()
    url, cores = f"http://127.0.0.1:{port}", str(threads)
    command = [
        *(str(path), "--host", "127.0.0.1", "--port", str(port), "--offline", "--model", str(file)),
        *("--parallel", str(slots), "--ctx-size", str(slots * context), "--no-kv-unified", "--fit", "off"),
        *("--threads", cores, "--threads-batch", cores),
        *(() if keeps else ("--no-cache-prompt", "--cache-ram", "0")),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}

    def ready() -> bool:
        """Whether it answers that its model is loaded."""
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                return answer.status == 200
        except OSError:  # nobody listens yet, or it loads
            return False

    return native.start(command, kept, ready, "The llama-server"), url


if __name__ == "__main__":
    native.make(f"llama-server of llama-cpp-python {BUILT.version}", BUILT)
