"""Files appear whole or not at all: here, behind a URL, on a full disk, and when the writer is killed in between."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import fsspec
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.activations.folder import LocalFolder, RemoteFolder, is_temporary, open_folder, temporary
from tests.activations.stores import says

KINDS = ("local", "file URL", "memory URL", "fsspec file system", "object store", "S3")


@pytest.fixture(params=KINDS)
def folder(request, tmp_path, monkeypatch):
    if request.param == "S3":
        return open_folder(f"{request.getfixturevalue('bucket')}/{tmp_path.name}/run")
    memory = f"memory://{tmp_path.name}-{request.param.replace(' ', '-')}/run"
    if request.param == "fsspec file system":
        return RemoteFolder(f"file://{tmp_path}", fsspec.filesystem("file"), str(tmp_path))
    made = open_folder(
        {"local": tmp_path / "deep" / "run", "file URL": f"file://{tmp_path}/run"}.get(request.param, memory)
    )
    if request.param == "object store":
        made.atomic = True
        monkeypatch.setattr(made.filesystem, "makedirs", None)  # a request for what an object store has not
    return made


def test_what_is_written_is_read(folder):
    assert folder.read("a.json") is None
    assert folder.size("a.json") is None
    assert folder.sizes() == {}
    folder.write("units/000/a.json", b"first")
    folder.write("units/000/a.json", b"second")
    folder.write("b", b"")
    folder.write("units/000/b.json", bytes(range(256)))
    assert folder.read("units/000/a.json") == b"second"
    assert folder.sizes() == {"b": 0, "units/000/a.json": 6, "units/000/b.json": 256}
    assert folder.names("units/000/b") == ["units/000/b.json"]
    assert folder.names("unit") == ["units/000/a.json", "units/000/b.json"]
    assert folder.size("units/000/b.json") == 256
    part = folder.part("units/000/b.json", 10, 13)
    assert part.tolist() == [10, 11, 12]
    assert not part.flags.writeable
    assert len(folder.part("units/000/b.json", 7, 7)) == 0
    folder.remove("units/000/a.json")
    folder.remove("units/000/a.json")
    assert folder.names() == ["b", "units/000/b.json"]
    assert folder.leftovers() == []


def test_leftovers_are_no_files_and_are_swept(folder):
    folder.write("units/000/a.json", b"{}")
    half = [temporary("units/000/b.json"), temporary("units/000/b.json"), temporary("c")]
    for name in half:
        folder.write(name, b"half")  # as a killed writer leaves it
    assert folder.names() == ["units/000/a.json"]
    assert folder.leftovers() == sorted(half)
    folder.write("units/000/b.json", [memoryview(b"who"), memoryview(b""), memoryview(b"le")])
    assert folder.read("units/000/b.json") == b"whole"
    folder.write(".mine.tmp", b"precious")  # files of others
    assert folder.sweep() == sorted(half)
    assert folder.leftovers() == []
    assert folder.names() == [".mine.tmp", "units/000/a.json", "units/000/b.json"]


def test_a_missing_file_has_no_part(folder):
    with pytest.raises(UserError, match=r"none\.bin"):
        folder.part("none.bin", 0, 4)


@pytest.mark.parametrize(
    "url",
    ["nonsense://x", "s3://", "zip://x::nonsense", "zip://a.zip", "ftp://127.0.0.1:1/x", "http://127.0.0.1:1/x", "://x",
     "github://x", "hdfs://127.0.0.1:1/x", "sftp://127.0.0.1:1/x", "data://x", "filecache://x", "git://x", "x" * 999 + "://"],
)  # fmt: skip
def test_each_protocol_fails_in_one_line(url):
    with pytest.raises(UserError) as caught:
        open_folder(url).write("run.json", b"{}")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "No space left"), (errno.EDQUOT, "quota"), (errno.EROFS, "Read-only")]
)
@pytest.mark.parametrize("stage", ["fsync", "replace"])
def test_a_full_or_read_only_disk_is_one_line_and_leaves_no_half_file(number, words, stage, tmp_path, monkeypatch):
    folder = LocalFolder(tmp_path)
    folder.write("a.json", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, stage, Mock(side_effect=OSError(number, os.strerror(number))))
        with says(f"{tmp_path}/a.json", words, "stays valid", "run again"):
            folder.write("a.json", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert folder.read("a.json") == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is always full")
def test_a_disk_that_is_really_full(tmp_path, monkeypatch):
    folder = LocalFolder(tmp_path)
    monkeypatch.setattr("llama_lab.activations.folder.temporary", lambda name: ".a.tmp")
    (tmp_path / ".a.tmp").symlink_to("/dev/full")
    with says("No space left on device"):
        folder.write("a.json", b"x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        folder = open_folder(out)
        assert folder.read("run.json") is None
        with pytest.raises(UserError, match=r"Cannot write .*file.*no file in its way"):
            folder.write("units/a.json", b"{}")
        with pytest.raises(UserError, match=r"Cannot write to .*file"), folder.writing():
            pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_remote_failure_is_one_line(tmp_path):
    class Broken(fsspec.implementations.memory.MemoryFileSystem):
        def pipe_file(self, *_, **__):
            raise ConnectionError("bucket\nis gone")

    folder = RemoteFolder("memory://broken", Broken(), "/broken")
    with says("Cannot write memory://broken/a: bucket is gone"):
        folder.write("a", b"x")


HOLD = """
import sys
from llama_lab.activations.folder import open_folder
folder = open_folder(sys.argv[1])
with folder.writing():
    folder.write("a/.b." + "0" * 32 + ".tmp", b"half")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_nobody_tidies_while_another_process_writes(tmp_path):
    folder = open_folder(tmp_path / "out")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        folder.tidy()
        with folder.writing():  # any number may write
            assert len(folder.leftovers()) == 1
    finally:
        holder.kill()  # a killed one holds nothing
        holder.communicate()
    folder.tidy()
    assert folder.leftovers() == []


def test_what_cannot_be_locked_is_not_tidied(tmp_path, monkeypatch):
    folder = LocalFolder(tmp_path)
    folder.write(temporary("a"), b"perhaps somebody is writing it")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EBADF, "NFS locks no folders")))
    folder.tidy()
    with folder.writing():
        assert len(folder.leftovers()) == 1


def test_only_the_first_creates_a_file(folder):
    assert folder.create("run.json", b"first")
    assert not folder.create("run.json", b"second")
    assert folder.read("run.json") == b"first"
    assert folder.leftovers() == []
    folder.write("run.json", b"written over")
    assert folder.read("run.json") == b"written over"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_is_created_where_there_are_no_links(number, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(number, os.strerror(number))))
    folder = LocalFolder(tmp_path)
    assert folder.create("run.json", b"first")
    assert not folder.create("run.json", b"second")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"run.json": b"first"}


def test_a_write_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """The order that makes a power cut harmless: content, then name, then the folder's list of names."""
    done, content = [], {}

    def fsync(handle):
        path = os.readlink(f"/proc/self/fd/{handle}") if Path("/proc/self/fd").exists() else str(handle)
        content[len(done)] = os.fstat(handle).st_size
        done.append(("fsync", Path(path).name))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(
        os, "replace", lambda a, b, replace=os.replace: (done.append(("replace", Path(b).name)), replace(a, b))
    )
    LocalFolder(tmp_path).write("units/a", b"content")
    assert is_temporary(done[-3][1])
    assert done[-3:] == [("fsync", done[-3][1]), ("replace", "a"), ("fsync", "units")]
    assert content[len(done) - 3] == len(b"content")
    # the new folder, and its name in its parent
    assert {("fsync", "units"), ("fsync", tmp_path.name)} <= set(done[:-3])
