"""Ollama and llama.cpp's own server: how they are built and started is replayed with programs of our own, what they
answer is asked of them where they are built."""

import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from llama_jax import checkpoint
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench.workload import Workload
from llama_lab.experiments.what_serving_needs import client, servers
from llama_lab.experiments.what_serving_needs.load import Ask
from llama_lab.peers import llama_server, native, ollama, ollama_native
from tests.peers.conftest import trial

GO = """#!/bin/sh
echo "$@" > "$SEEN"; echo "$CGO_CPPFLAGS" >> "$SEEN"
printf '#!/bin/sh\\necho "ollama version is 0"\\n' > "$GOBIN/ollama"; chmod +x "$GOBIN/ollama"
"""
CMAKE = """#!/bin/sh
echo "$@" >> "$SEEN"
case "$1" in --build) mkdir -p build/bin && printf '#!/bin/sh\\necho version: 7 >&2\\n' > build/bin/llama-server \\
    && chmod +x build/bin/llama-server;; *) test -f source/CMakeLists.txt;; esac
"""
SOURCE = ["vendor/stb/a.h", "vendor/nlohmann/json.hpp", "vendor/miniaudio/m.h", "vendor/x/y.h", "CMakeLists.txt"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    return tmp_path / "cache"


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is all of PATH, besides the system's shell; and pip's part: an archive with some of the source."""
    for name, text in {"c++": GO, "go": GO, "cmake": CMAKE}.items():
        program(tmp_path / "bin" / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))

    def fetch(command, settings, folder, real=native.run):
        if "pip" not in command:
            return real(command, settings, folder)
        with tarfile.open(f"{folder}/llama_cpp_python-9.tar.gz", "w:gz") as archive:
            for name in [*(f"vendor/llama.cpp/{name}" for name in SOURCE), "CMakeLists.txt"]:
                archive.addfile(tarfile.TarInfo(f"llama_cpp_python-9/{name}"), io.BytesIO())

    monkeypatch.setattr(native, "run", fetch)
    return tmp_path / "bin"


def make_ollama():
    """What `make ollama` calls."""
    native.make(f"Ollama {ollama_native.VERSION}", ollama_native.BUILT)


def test_ollama_is_built_with_native_flags_and_the_missing_headers_and_kept(cache, tools, tmp_path, capsys):
    assert ollama_native.BUILT.binary() is None
    make_ollama()
    output = capsys.readouterr().out
    asked, flags = (tmp_path / "seen").read_text().splitlines()
    assert asked.startswith("install ")
    assert asked.endswith(f"{ollama_native.MODULE}@v{ollama_native.VERSION}")
    assert sorted(os.listdir(flags.rpartition("-I")[2])) == sorted(ollama_native.HEADERS)
    path = ollama_native.BUILT.binary()
    assert path.is_relative_to(cache)
    for words in (f"{path.stat().st_size:,} bytes", f"Ollama {ollama_native.VERSION}", "built in"):
        assert words in output
    make_ollama()  # what is there is not built again
    assert "built in" not in capsys.readouterr().out


def test_llama_server_is_built_of_the_pinned_source_for_this_machine_and_kept(cache, tools, tmp_path, capsys):
    native.make("llama-server", llama_server.BUILT)
    assert "it says: version: 7" in capsys.readouterr().out
    configured, built = (tmp_path / "seen").read_text().splitlines()
    off = {"-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_UI=OFF", "-DBUILD_SHARED_LIBS=OFF"}
    assert {"-DGGML_NATIVE=ON", "-DLLAMA_BUILD_SERVER=ON", *off} <= set(configured.split())
    assert "--target llama-server" in built
    path = llama_server.BUILT.binary()
    assert path == cache / "llama-server" / llama_server.BUILT.version / "llama-server"
    assert list(path.parent.iterdir()) == [path]  # the source and what was built of it are gone


def test_where_there_is_amx_the_part_that_go_leaves_out_is_compiled_and_linked(cache, tools, tmp_path):
    kernels = tmp_path / "module" / ollama_native.KERNELS / "amx"
    kernels.mkdir(parents=True)
    for name in ("amx.cpp", "mmq.cpp", "mmq.h"):
        (kernels / name).write_text("")
    program(
        tools / "c++",
        """#!/bin/sh
case "$*" in *-dM*) echo "#define __AMX_INT8__ 1"; exit;; esac
echo "$@" > "$SEEN.c++"; touch amx.o mmq.o
""",
    )
    program(
        tools / "go",
        f"""#!/bin/sh
case "$*" in mod*) echo '{{"Dir": "{tmp_path / "module"}"}}'; exit;; esac
for archive in $CGO_LDFLAGS; do ar t "$archive" > "$SEEN"; done; touch "$GOBIN/ollama"
""",
    )
    ollama_native.BUILT.build()
    assert (tmp_path / "seen").read_text().split() == ["amx.o", "mmq.o"]
    compiled = (tmp_path / "seen.c++").read_text().split()
    assert compiled[-2:] == [str(kernels / "amx.cpp"), str(kernels / "mmq.cpp")]
    assert compiled[compiled.index("-include") + 1] == str(ollama_native.TILES)


def test_a_machine_without_go_gets_one_line(cache, tools, monkeypatch, capsys):
    monkeypatch.setattr(native.shutil, "which", lambda name: None if name == "go" else name)
    with pytest.raises(SystemExit) as stopped:
        make_ollama()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: go is missing")
    assert error.count("\n") == 1


def test_a_build_that_fails_says_why_and_leaves_nothing(cache, tools):
    program(tools / "go", "#!/bin/sh\necho 'x.cpp: fatal error: y.h: No such file' >&2\nexit 1\n")
    with pytest.raises(UserError, match="fatal error: y.h"):
        ollama_native.BUILT.build()
    assert ollama_native.BUILT.binary() is None


def test_the_one_that_was_built_is_used_unless_another_is_named(cache, monkeypatch):
    assert not ollama.ours()
    program(cache / "ollama" / ollama_native.VERSION / "ollama", "")
    assert ollama.ours()
    assert peers.missing(["ollama"], checkpoint.DEFAULT) == []  # and nothing was started
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    assert not ollama.ours()


def test_a_server_that_dies_at_once_says_its_last_words(cache):
    program(
        cache / "ollama" / ollama_native.VERSION / "ollama",
        "#!/bin/sh\necho Error: $OLLAMA_NUM_PARALLEL is no luck\nexit 1\n",
    )
    with pytest.raises(UserError, match="did not start: Error: 1 is no luck"):
        ollama_native.start()
    with pytest.raises(UserError, match="did not start: Error: 4 is no luck"):  # settings of a caller's own
        ollama_native.start(OLLAMA_NUM_PARALLEL="4")
    with pytest.raises(UserError, match="not built here; run `make llama-server`"):
        llama_server.start("m.gguf", 2, 64, 2)
    folder = cache / "llama-server" / llama_server.BUILT.version
    program(folder / "llama-server", '#!/bin/sh\necho "no luck with $@"\nexit 1\n')
    with pytest.raises(UserError, match="did not start: no luck with .*--parallel 2 --ctx-size 128.*--no-cache"):
        llama_server.start("m.gguf", 2, 64, 3)
    with pytest.raises(UserError, match="--threads-batch 3$"):  # its own settings of what it keeps
        llama_server.start("m.gguf", 2, 64, 3, keeps=True)


CHILD = (
    "import time; from llama_lab.peers import ollama_native; print(ollama_native.server(), flush=True); time.sleep(600)"
)


@pytest.mark.ollama
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_process_that_started_it(how):
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    host = child.stdout.readline().strip().removeprefix("http://")
    assert native.listening(host)
    child.send_signal(how)
    child.wait()
    deadline = time.monotonic() + 10
    while native.listening(host) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not native.listening(host)


@pytest.mark.ollama
@pytest.mark.slow
def test_a_real_ollama_is_a_subject_with_the_same_prompt_and_its_own_clock(packaged, monkeypatch):
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    ids = tuple(packaged.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 3))
    record, tokens = trial(ollama.subject(packaged, "ollama"), Workload((ids,), new_tokens=8, length=64))
    assert record.valid, record.reason
    assert (tokens.shape, tokens.dtype) == ((8, 1), "int32")
    assert (record.server_tokens, record.server_prompt_tokens) == (8, len(ids))
    assert record.server_decode_ns > 0


@pytest.mark.slow
@pytest.mark.skipif(llama_server.BUILT.binary() is None, reason="llama.cpp's server is not built: `make llama-server`")
def test_a_real_llama_server_answers_in_our_shape_and_ends(packaged):
    with servers.llamacpps(packaged, 2, 4) as server:
        bodies = [client.body(server.api, server.model, Ask(0, "1, 2, 3, 4, 5,", 15, 6), 512, 2)] * 3
        answers = client.load(server.api, server.url, bodies, [0.0] * 3)
    ids = packaged.tokenizer.encode("1, 2, 3, 4, 5,")
    assert {(a.status, a.reason, a.tokens, a.prompt_tokens) for a in answers} == {(200, "", 6, len(ids))}
    assert len({a.text for a in answers}) == 1
    assert not native.listening(server.url.removeprefix("http://"))


CODE = """
#include <immintrin.h>
struct alignas(64) config {
    unsigned char palette, start, reserved[14];
    unsigned short widths[16];
    unsigned char rows[16];
};
void configure() { config c = {}; c.palette = 1; c.widths[7] = 12345; c.rows[7] = 91; _tile_loadconfig(&c); }
"""


@pytest.mark.skipif(shutil.which("c++") is None or platform.machine() != "x86_64", reason="no C++ compiler for AMX")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_all_bytes_of_a_tile_configuration_are_written(tmp_path, level):
    """The header that llama.cpp is compiled with: on processors with AMX it crashes without it."""
    (tmp_path / "tiles.cpp").write_text(CODE)
    command = ["c++", "-std=c++17", level, "-mamx-tile", "-include", ollama_native.TILES, "-S", "-o", "-", "tiles.cpp"]
    made = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    if "mamx-tile" in made.stderr:
        pytest.skip("this compiler knows no AMX")
    assert made.returncode == 0, made.stderr
    written, _, _ = made.stdout.partition("ldtilecfg")
    assert written != made.stdout
    assert "$12345" in written
    assert "$91" in written


def test_every_build_of_llama_cpp_has_that_header():
    recipes = (paths.ROOT / "Makefile").read_text().split("\n\n")
    assert f"AMX := -include $(CURDIR)/{ollama_native.TILES.relative_to(paths.ROOT)}" in "\n".join(recipes)
    for target in ("$(PEERS): requirements", "llama-server: "):
        (recipe,) = [recipe for recipe in recipes if recipe.startswith(target)]
        assert "$(AMX)" in recipe, target
