"""Object code on disk: made once, made anew where it is damaged, and one clear line where it cannot be made."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from llama_jax import kernels
from llama_jax.kernels import build, isa
from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError

WHERE = isa.Target("portable", "some-cpu", "+some")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch):
    """Compile in no time, and count: each gives other bytes."""
    made = []
    monkeypatch.setattr(build, "compiled", lambda where: made.append(where) or b"object %d" % len(made))
    return made


def test_a_second_start_compiles_nothing(compilations):
    assert [build.code(WHERE) for _ in range(3)] == [b"object 1"] * 3
    assert compilations == [WHERE]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:40],
        lambda content: b"",
        lambda content: b"\n",
        lambda content: content + b"\0",
        *(lambda content, i=i: content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in (0, 63, 64, 65, 72)),
    ],
)
def test_a_damaged_entry_is_made_anew(compilations, damage):
    build.code(WHERE)
    path = build.entry(WHERE)
    path.write_bytes(damage(path.read_bytes()))
    assert build.code(WHERE) == b"object 2"
    assert build.code(WHERE) == b"object 2"
    assert len(compilations) == 2


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_in_its_place_is_left_alone(compilations, make):
    build.entry(WHERE).parent.mkdir(parents=True)
    make(build.entry(WHERE))
    assert [build.code(WHERE), build.code(WHERE)] == [b"object 1", b"object 2"]
    assert not build.entry(WHERE).is_file()
    # and nothing half-written beside it
    assert [p.name for p in build.entry(WHERE).parent.iterdir()] == [build.entry(WHERE).name]


def test_where_nothing_can_be_written_every_process_compiles(compilations, cache):
    cache.write_text("a file where the folder would be")
    assert [build.code(WHERE), build.code(WHERE)] == [b"object 1", b"object 2"]


def test_an_entry_that_is_too_long_is_not_read(compilations, monkeypatch):
    build.code(WHERE)
    monkeypatch.setattr(build, "LARGEST", 20)
    assert build.kept(build.entry(WHERE)) is None


@pytest.mark.parametrize("which", ["..", "."])
def test_where_others_could_have_written_nothing_is_read_and_it_is_said(compilations, cache, capsys, which):
    """An entry with a right digest, which they can make as well as anybody."""
    build.code(WHERE)
    assert capsys.readouterr().err == ""
    (cache / "kernels" / which).chmod(0o777)
    build.entry(WHERE).write_bytes(build.sealed(b"planted"))
    assert [build.code(WHERE), build.code(WHERE)] == [b"object 2", b"object 3"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "compiled for this process alone" in said[0]
    assert build.kept(build.entry(WHERE)) == b"planted"  # nor is anything written


def test_the_folder_is_the_users_alone(compilations, cache):
    build.code(WHERE)
    assert (cache / "kernels").stat().st_mode & 0o777 == 0o700


def test_other_source_libraries_or_processor_are_other_entries(monkeypatch, tmp_path):
    names = {build.entry(WHERE), *(build.entry(replace(WHERE, **{f: "avx2"})) for f in ("isa", "cpu", "features"))}
    monkeypatch.setattr(build.importlib.metadata, "version", lambda name: "0")
    names.add(build.entry(WHERE))
    (tmp_path / "native").mkdir()
    for text in ("one", "two"):
        (tmp_path / "native" / "a.py").write_text(text)
        monkeypatch.setattr(build, "SOURCES", tmp_path / "native")
        names.add(build.entry(WHERE))
    assert len(names) == 7


def test_old_entries_go_and_those_of_other_instruction_sets_stay(compilations, cache):
    folder = cache / "kernels"
    folder.mkdir(parents=True)
    for i in range(30):
        (folder / f"portable-{i}.o").write_text("x")
        os.utime(folder / f"portable-{i}.o", (i, i))
    (folder / "avx2-0.o").write_text("x")
    build.code(WHERE)
    left = {p.name for p in folder.iterdir()}
    assert left == {"avx2-0.o", build.entry(WHERE).name, *(f"portable-{i}.o" for i in range(30 - build.KEPT + 1, 30))}


def test_a_compiler_that_fails_is_one_line(monkeypatch):
    monkeypatch.setattr(build, "COMPILER", "no_such_module")
    with pytest.raises(
        UserError, match="could not be compiled for portable: .*No module named no_such_module"
    ) as caught:
        build.compiled(WHERE)
    assert "\n" not in str(caught.value)


def test_a_compiler_that_hangs_is_one_line(monkeypatch):
    monkeypatch.setattr(build, "LIMIT", 0.2)
    monkeypatch.setattr(build, "COMPILER", "http.server")
    start = time.monotonic()
    with pytest.raises(UserError, match="not compiled within 0.2 s"):
        build.compiled(WHERE)
    assert time.monotonic() - start < 60


def test_without_an_interpreter_it_is_one_line(monkeypatch):
    monkeypatch.setattr(build.sys, "executable", "/no/such/python")
    with pytest.raises(UserError, match="cannot start /no/such/python: No such file"):
        build.compiled(WHERE)


def test_a_compiler_that_dies_without_a_word_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "silent.py").write_text("import os; os._exit(9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(build, "COMPILER", "silent")
    with pytest.raises(UserError, match="could not be compiled for portable: it says nothing"):
        build.compiled(WHERE)


def test_a_file_of_the_working_directory_is_not_taken_for_a_library(monkeypatch, tmp_path):
    (tmp_path / "numba.py").write_text("raise SystemExit('the wrong numba')")
    (tmp_path / "llama_jax.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "COMPILER", "numba.core.types")
    with pytest.raises(UserError) as caught:  # it runs, and prints nothing
        build.compiled(WHERE)
    assert "wrong" not in str(caught.value)


# Where there are none -------------------------------------------------------------------------------------------------


def without(library):
    return lambda name: None if name == library else object()


def test_here_there_are_kernels():
    assert kernels.missing() is None
    found = kernels.status()
    assert found["isa"] in isa.NEEDS
    assert (found["compiled"], found["reason"]) == (False, None)  # this test's cache is empty
    path = build.entry(isa.target())
    path.parent.mkdir(parents=True)
    path.write_bytes(build.sealed(b"object"))
    assert kernels.status()["compiled"]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (
            lambda m: m.setattr(kernels.importlib.util, "find_spec", lambda name: None if name == "numba" else name),
            "numba is not installed",
        ),
        (
            lambda m: m.setattr(kernels.importlib.util, "find_spec", lambda name: None if name == "llvmlite" else name),
            "llvmlite is not",
        ),
        (lambda m: m.delattr(kernels.os, "sched_yield"), "64-bit, little-endian Unix"),
        (lambda m: m.setattr(kernels.sys, "byteorder", "big"), "64-bit, little-endian Unix"),
        (
            lambda m: m.setattr(kernels.jax, "default_backend", lambda: "gpu"),
            "JAX computes on gpu here; set JAX_PLATFORMS=cpu",
        ),
        (lambda m: m.setenv(isa.VARIABLE, "avx3"), "LLAMA_JAX_ISA is 'avx3'"),
    ],
)
def test_where_there_are_none_a_placement_says_so_before_anything_is_computed(monkeypatch, break_it, words, tiny):
    import llama_jax as ll
    from llama_jax import engine
    from llama_lab import doctor
    from llama_lab.bench import environment

    monkeypatch.setattr(engine, "weights", lambda *a: pytest.fail("computed"))
    monkeypatch.setattr(engine, "prepare", lambda *a: pytest.fail("computed"))
    break_it(monkeypatch)
    for name in ("step+gemv", "loop+fused"):
        with pytest.raises(UserError, match=words):
            ll.build(None, name)
        with pytest.raises(UserError, match=words):
            ll.generate.bind(*tiny, ll.parse(name))
    found = kernels.status()
    assert (found["isa"], found["description"]) == (None, "XLA's own operations")
    assert doctor.kernels.status()["reason"] == found["reason"]
    assert environment.kernels.status()["isa"] is None


def test_doctor_says_which_path_and_why_not(call, monkeypatch):
    import json

    monkeypatch.setattr("llama_lab.doctor.find_peers", lambda: ({}, []))
    out = call("doctor", "--no-probe")[1]
    assert f"isa                {isa.target().isa}" in out
    assert "reason" not in out
    monkeypatch.setenv(isa.VARIABLE, "avx3")
    out = call("doctor", "--no-probe")[1]
    assert "XLA's own operations" in out
    assert out.count("LLAMA_JAX_ISA is 'avx3'") == 2  # why, and among the advice
    found = json.loads(call("doctor", "--no-probe", "--json")[1].strip().splitlines()[-1])
    assert found["kernels"]["isa"] is None
    assert {"numba", "llvmlite"} <= set(found["packages"])


def test_records_name_the_instruction_set(monkeypatch):
    from llama_lab.bench import environment

    assert environment.capture()["kernels"] == isa.target().isa
    monkeypatch.setenv(isa.VARIABLE, "portable")
    found = environment.capture()
    assert (found["kernels"], found["settings"][isa.VARIABLE]) == ("portable", "portable")


# Real processes -------------------------------------------------------------------------------------------------------

START = """
import subprocess, threading
from llama_jax.kernels import build, gemv
from llama_jax.kernels.registry import registered
real, count, found = subprocess.run, [], []
subprocess.run = lambda *a, **k: count.append(a) or real(*a, **k)
gate = threading.Barrier(4)
def first_use():
    gate.wait()
    found.append(registered("llama_jax_gemv"))
threads = [threading.Thread(target=first_use) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
from tests.kernels.test_gemv import activations, close, weight
x, w = activations(3, 96), weight("q4_0", 40, 96)
close(gemv.product(x, w.data, w.shape), x, w)
print(len(found), len(count), len(build.Library.loaded))
"""


def start():
    environment = os.environ | {"LLAMA_JAX_ISA": "portable", "PYTHONPATH": str(paths.ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", START], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_two_processes_at_once_of_four_threads_each_and_one_after_them(cache):
    """One compilation a process, whichever of its threads needs it first, and one entry; then none."""
    both = [start(), start()]
    said = [p.communicate(timeout=300) for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert {out.strip() for out, _ in said} == {"4 1 1"}
    entries = [p.name for p in (cache / "kernels").iterdir()]
    assert len(entries) == 1
    third = start()
    assert third.communicate(timeout=120)[0].strip() == "4 0 1"  # nothing left to compile
