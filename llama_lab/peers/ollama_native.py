"""A real Ollama, built from source for this machine (`make ollama`), started on loopback for a measurement and stopped
afterwards.

VERSION is the last release with llama.cpp in Ollama's own tree; later ones download it during the build. Go omits
folders named `vendor` from modules, so three headers of llama.cpp are missing; they come from the source archive of
llama-cpp-python, which has the same llama.cpp. Go also skips folders without a Go file, such as ggml's part for AMX. If
the processor has AMX, that part is compiled here, because Ollama's own releases include it.

The binary, its models and its key are in the user's cache; an installed or running Ollama is not touched.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

from llama_jax.plumbing import paths
from llama_lab import interruption
from llama_lab.peers import native

VERSION = "0.24.0"
MODULE = "github.com/ollama/ollama"
HEADERS = ("miniaudio", "nlohmann", "stb")  # folders below llama.cpp/vendor
OPTIMISED = "-O3 -march=native"
REPACKED = "-DGGML_USE_CPU_REPACK"  # repacked blocks: llama.cpp's default everywhere else
KERNELS = "ml/backend/ggml/ggml/src/ggml-cpu"
TILES = Path(__file__).with_name("tile_config.h")
LINKED = f"-s -w -X={MODULE}/version.Version={VERSION}"  # no symbols; what the server says its version is
SETTINGS = {  # of the server: nothing leaves this machine, one model at a time, one request at a time
    "OLLAMA_NO_CLOUD": "1",
    "OLLAMA_NOPRUNE": "1",
    "OLLAMA_MAX_LOADED_MODELS": "1",
    "OLLAMA_NUM_PARALLEL": "1",
}
TOOLS = {"go": "install Go 1.26 or newer (https://go.dev/dl)", "c++": "apt install build-essential"}


def compiled(folder: str) -> Path:
    """Build it in a folder. Raises UserError if a step fails."""
    include = paths.private("ollama", "headers")
    if not all((include / name).is_dir() for name in HEADERS):
        native.extract("vendor/", include, HEADERS)
    settings = dict(
        GOBIN=folder,
        CGO_ENABLED="1",
        CGO_CFLAGS=OPTIMISED,
        CGO_CXXFLAGS=OPTIMISED,
        CGO_CPPFLAGS=f"{REPACKED} -I{include}",
        CGO_LDFLAGS=amx(folder),
    )
    native.run(["go", "install", "-trimpath", "-ldflags", LINKED, f"{MODULE}@v{VERSION}"], settings, folder)
    return Path(folder, "ollama")


BUILT = native.Built("ollama", VERSION, "Ollama", TOOLS, compiled)


def amx(folder: str) -> str:
    """The archive of ggml's part for AMX, compiled into a folder; "" if the compiler knows of none here. Raises
    UserError where that fails."""
    compiler = ["c++", *OPTIMISED.split()]
    if "__AMX_INT8__" not in native.run([*compiler, "-dM", "-E", "-x", "c++", os.devnull], {}, folder):
        return ""
    module = json.loads(native.run(["go", "mod", "download", "-json", f"{MODULE}@v{VERSION}"], {}, folder))
    source = Path(module["Dir"], KERNELS)
    parts = sorted((source / "amx").glob("*.cpp"))
    places = (source / "amx", source, source.parent, source.parent.parent / "include")
    options = ["-std=c++17", "-DNDEBUG", "-D_GNU_SOURCE", REPACKED, "-include", str(TILES), *(f"-I{p}" for p in places)]
    native.run([*compiler, *options, "-c", *map(str, parts)], {}, folder)
    native.run(["ar", "rcs", "amx.a", *(f"{part.stem}.o" for part in parts)], {}, folder)
    return str(Path(folder, "amx.a"))


@functools.cache
def server() -> str:
    """The address of this process's own server, started when first asked for, on a port that the system chose; it ends
    with the process. Raises UserError if it does not start."""
    process, url = start()
    interruption.at_end(native.end, process)
    return url


def start(**more: str) -> tuple[subprocess.Popen, str]:
    """(the process, its address once it answers). more: settings in place of those of SETTINGS. Raises UserError where
    it is not built or does not start."""
    path = BUILT.required()
    host = f"127.0.0.1:{native.free_port()}"
    home = paths.private("ollama", "home")
    models = str(paths.private("ollama", "models"))
    settings = {**SETTINGS, **more, "OLLAMA_HOST": host, "OLLAMA_MODELS": models, "HOME": str(home)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OLLAMA_")}
    process = native.start([str(path), "serve"], kept | settings, lambda: native.listening(host), "The Ollama")
    return process, f"http://{host}"


if __name__ == "__main__":
    native.make(f"Ollama {VERSION}", BUILT)
