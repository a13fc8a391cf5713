"""llama.cpp's own server: how it is built and started is replayed with programs of our own, what it answers is asked
of it where it is built."""

import io
import tarfile

import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.experiments.what_serving_needs import client, servers
from llama_lab.experiments.what_serving_needs.load import Ask
from llama_lab.peers import llama_server, native

CMAKE = """#!/bin/sh
echo "$@" >> "$SEEN"
case "$1" in --build) mkdir -p build/bin && printf '#!/bin/sh\\necho version: 7 >&2\\n' > build/bin/llama-server \\
    && chmod +x build/bin/llama-server;; *) test -f source/CMakeLists.txt;; esac
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A cmake of our own, and pip's part: an archive with one file of the source in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("c++", "cmake"):
        (folder / name).write_text(CMAKE)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))

    def fetch(command, settings, where, real=native.run):
        if "pip" not in command:
            return real(command, settings, where)
        with tarfile.open(f"{where}/llama_cpp_python-9.tar.gz", "w:gz") as made:
            made.addfile(tarfile.TarInfo("llama_cpp_python-9/vendor/llama.cpp/CMakeLists.txt"), io.BytesIO())
            made.addfile(tarfile.TarInfo("llama_cpp_python-9/CMakeLists.txt"), io.BytesIO())

    monkeypatch.setattr(native, "run", fetch)
    return folder


def make():
    """What `make llama-server` calls."""
    native.make("llama-server", llama_server.BUILT)


def test_it_is_built_of_the_pinned_source_for_this_machine_and_kept(cache, tools, tmp_path, capsys):
    assert llama_server.BUILT.binary() is None
    make()
    said = capsys.readouterr().out
    configured, built = (tmp_path / "seen").read_text().splitlines()
    assert {"-DGGML_NATIVE=ON", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_CURL=OFF"} <= set(configured.split())
    assert "--target llama-server" in built
    path = llama_server.BUILT.binary()
    assert path == cache / "llama-server" / llama_server.BUILT.version / "llama-server"
    assert list(path.parent.iterdir()) == [path]  # the source and what was built of it are gone
    assert "it says: version: 7" in said
    make()  # what is there is not built again
    assert "built in" not in capsys.readouterr().out


def test_a_server_that_dies_at_once_says_its_last_words(cache):
    with pytest.raises(UserError, match="not built here; run `make llama-server`"):
        llama_server.start("m.gguf", 2, 64, 2)
    path = cache / "llama-server" / llama_server.BUILT.version / "llama-server"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text('#!/bin/sh\necho "no luck with $@"\nexit 1\n')
    path.chmod(0o755)
    with pytest.raises(UserError, match="did not start: no luck with .*--parallel 2 --ctx-size 128.*--threads 3"):
        llama_server.start("m.gguf", 2, 64, 3)


@pytest.mark.slow
@pytest.mark.skipif(llama_server.BUILT.binary() is None, reason="llama.cpp's server is not built: `make llama-server`")
def test_the_real_one_answers_in_our_shape_and_ends(packaged):
    with servers.llamacpps(packaged, 2, 4) as server:
        bodies = [client.body(server.api, server.model, Ask(0, "1, 2, 3, 4, 5,", 15, 6), 512, 2)] * 3
        answers = client.load(server.api, server.url, bodies, [0.0] * 3)
    ids = packaged.tokenizer.encode("1, 2, 3, 4, 5,")
    assert {(a.status, a.reason, a.tokens, a.prompt_tokens) for a in answers} == {(200, "", 6, len(ids))}
    assert len({a.text for a in answers}) == 1
    assert not native.listening(server.url.removeprefix("http://"))
