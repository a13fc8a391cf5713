"""The real Ollama: how it is built is replayed with a `go` of our own, what it answers is asked of it where it is
built."""

import io
import os
import signal
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from llama_jax import checkpoint
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import protocol
from llama_lab.bench.workload import Workload
from llama_lab.peers import native, ollama, ollama_native

GO = """#!/bin/sh
echo "$@" > "$SEEN"; echo "$CGO_CPPFLAGS" >> "$SEEN"
printf '#!/bin/sh\\necho "ollama version is 0"\\n' > "$GOBIN/ollama"; chmod +x "$GOBIN/ollama"
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is all of PATH, besides the system's shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("c++", "go"):
        (folder / name).write_text(GO)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return folder


@pytest.fixture
def archive(monkeypatch):
    """pip's part: an archive that holds the headers and other things."""

    def fetch(command, settings, folder, real=native.run):
        if "pip" not in command:
            return real(command, settings, folder)
        with tarfile.open(f"{folder}/llama_cpp_python-9.tar.gz", "w:gz") as made:
            for name in ("vendor/stb/a.h", "vendor/nlohmann/json.hpp", "vendor/miniaudio/m.h", "vendor/x/y.h", "z.c"):
                member = tarfile.TarInfo(f"llama_cpp_python-9/vendor/llama.cpp/{name}")
                member.size = 1
                made.addfile(member, io.BytesIO(b"\n"))

    monkeypatch.setattr(native, "run", fetch)


def make():
    """What `make ollama` calls."""
    native.make(f"Ollama {ollama_native.VERSION}", ollama_native.BUILT)


def test_where_there_is_amx_the_part_that_go_leaves_out_is_compiled_and_linked(cache, tools, archive, tmp_path):
    kernels = tmp_path / "module" / ollama_native.KERNELS / "amx"
    kernels.mkdir(parents=True)
    for name in ("amx.cpp", "mmq.cpp", "mmq.h"):
        (kernels / name).write_text("")
    (tools / "c++").write_text("""#!/bin/sh
case "$*" in *-dM*) echo "#define __AMX_INT8__ 1"; exit;; esac
echo "$@" > "$SEEN.c++"; touch amx.o mmq.o
""")
    (tools / "go").write_text(f"""#!/bin/sh
case "$*" in mod*) echo '{{"Dir": "{tmp_path / "module"}"}}'; exit;; esac
for archive in $CGO_LDFLAGS; do ar t "$archive" > "$SEEN"; done; touch "$GOBIN/ollama"
""")
    ollama_native.BUILT.build()
    assert (tmp_path / "seen").read_text().split() == ["amx.o", "mmq.o"]
    compiled = (tmp_path / "seen.c++").read_text().split()
    assert compiled[-2:] == [str(kernels / "amx.cpp"), str(kernels / "mmq.cpp")]
    assert compiled[compiled.index("-include") + 1] == str(ollama_native.TILES)
    assert ollama_native.TILES.is_file()


def test_the_build_lies_in_the_cache_with_native_flags_and_the_missing_headers(cache, tools, archive, tmp_path, capsys):
    assert ollama_native.BUILT.binary() is None
    make()
    said = capsys.readouterr().out
    asked, flags = (tmp_path / "seen").read_text().splitlines()
    assert asked.startswith("install ")
    assert asked.endswith(f"{ollama_native.MODULE}@v{ollama_native.VERSION}")
    include = flags.rpartition("-I")[2]
    assert sorted(os.listdir(include)) == sorted(ollama_native.HEADERS)
    path = ollama_native.BUILT.binary()
    assert path.is_relative_to(cache)
    assert f"{path.stat().st_size:,} bytes" in said
    assert f"Ollama {ollama_native.VERSION}" in said
    assert "built in" in said
    make()  # what is there is not built again
    assert "built in" not in capsys.readouterr().out


def test_a_machine_without_go_gets_one_line(cache, tools, monkeypatch, capsys):
    monkeypatch.setattr(native.shutil, "which", lambda name: None if name == "go" else name)
    with pytest.raises(SystemExit) as stopped:
        make()
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: go is missing")
    assert error.count("\n") == 1


def test_a_build_that_fails_says_why_and_leaves_nothing(cache, tools, archive):
    (tools / "go").write_text("#!/bin/sh\necho 'x.cpp: fatal error: y.h: No such file' >&2\nexit 1\n")
    with pytest.raises(UserError, match="fatal error: y.h"):
        ollama_native.BUILT.build()
    assert ollama_native.BUILT.binary() is None


def test_the_one_that_was_built_is_used_unless_another_is_named(cache, monkeypatch):
    assert not ollama.ours()
    path = cache / "ollama" / ollama_native.VERSION / "ollama"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert ollama.ours()
    assert peers.missing(["ollama"], checkpoint.DEFAULT) == []  # and nothing was started
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")
    assert not ollama.ours()


def test_a_server_that_dies_at_once_says_its_last_words(cache):
    path = cache / "ollama" / ollama_native.VERSION / "ollama"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text("#!/bin/sh\necho Error: $OLLAMA_NUM_PARALLEL is no luck\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(UserError, match="did not start: Error: 1 is no luck"):
        ollama_native.start()
    with pytest.raises(UserError, match="did not start: Error: 4 is no luck"):  # settings of a caller's own
        ollama_native.start(OLLAMA_NUM_PARALLEL="4")


CHILD = (
    "import time; from llama_lab.peers import ollama_native; print(ollama_native.server(), flush=True); time.sleep(600)"
)


@pytest.mark.ollama
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_server_ends_with_the_process_that_started_it(how):
    import time

    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    host = child.stdout.readline().strip().removeprefix("http://")
    assert native.listening(host)
    child.send_signal(how)
    child.wait()
    for _ in range(100):
        if not native.listening(host):
            break
        time.sleep(0.1)
    assert not native.listening(host)


@pytest.mark.ollama
@pytest.mark.slow
def test_a_real_ollama_is_a_subject_with_the_same_prompt_and_its_own_clock(packaged, monkeypatch):
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    who = ollama.subject(packaged, "ollama")
    ids = tuple(packaged.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 3))
    work = Workload((ids,), new_tokens=8, length=64)
    where = dict(run="", block=0, order=0, process=0, phase="warm")
    record, tokens = protocol.trial(who, work, 0, **where)
    assert record.valid, record.reason
    assert tokens.shape == (8, 1)
    assert tokens.dtype == np.int32
    assert record.server_tokens == 8
    assert record.server_prompt_tokens == len(ids)
    assert record.server_decode_ns > 0
