"""Object code on disk: made once, made anew where it is damaged, and one clear line where it cannot be made."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from llama_jax import kernels
from llama_jax.kernels import build, isa
from llama_jax.plumbing import entries
from llama_jax.plumbing.errors import UserError
from tests.conftest import python

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
def test_where_others_could_have_written_nothing_is_read_and_a_warning_says_so(compilations, cache, capsys, which):
    """An entry with a right digest, which they can make as well as anybody."""
    build.code(WHERE)
    assert capsys.readouterr().err == ""
    (cache / "kernels" / which).chmod(0o777)
    build.entry(WHERE).write_bytes(entries.sealed(b"planted"))
    assert [build.code(WHERE), build.code(WHERE)] == [b"object 2", b"object 3"]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert "compiled for this process alone" in warnings[0]
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


@pytest.mark.parametrize(
    ("compiler", "limit", "interpreter", "words"),
    [
        ("no_such_module", 60, sys.executable, "could not be compiled for portable: .*No module named no_such_module"),
        ("http.server", 0.2, sys.executable, "not compiled within 0.2 s"),  # it hangs
        ("silent", 60, sys.executable, "could not be compiled for portable: it says nothing"),  # it dies without a word
        ("silent", 60, "/no/such/python", "cannot start /no/such/python: No such file"),
    ],
)
def test_a_compiler_that_gives_nothing_is_one_line(monkeypatch, tmp_path, compiler, limit, interpreter, words):
    (tmp_path / "silent.py").write_text("import os; os._exit(9)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(build, "COMPILER", compiler)
    monkeypatch.setattr(build, "LIMIT", limit)
    monkeypatch.setattr(build.sys, "executable", interpreter)
    with pytest.raises(UserError, match=words) as caught:
        build.compiled(WHERE)
    assert "\n" not in str(caught.value)


def test_a_file_of_the_working_directory_is_not_taken_for_a_library(monkeypatch, tmp_path):
    (tmp_path / "numba.py").write_text("raise SystemExit('the wrong numba')")
    (tmp_path / "llama_jax.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "COMPILER", "numba.core.types")
    with pytest.raises(UserError) as caught:  # it runs, and prints nothing
        build.compiled(WHERE)
    assert "wrong" not in str(caught.value)


# Where there are none -------------------------------------------------------------------------------------------------


def test_here_there_are_kernels():
    assert kernels.missing() is None
    status = kernels.status()
    assert status["isa"] in isa.NEEDS
    assert (status["compiled"], status["reason"]) == (False, None)  # this test's cache is empty
    path = build.entry(isa.target())
    path.parent.mkdir(parents=True)
    path.write_bytes(entries.sealed(b"object"))
    assert kernels.status()["compiled"]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        *(
            (lambda m, n=name: m.setattr(kernels.importlib.util, "find_spec", lambda asked: asked != n or None), words)
            for name, words in (("numba", "numba is not installed"), ("llvmlite", "llvmlite is not"))
        ),
        (lambda m: m.delattr(kernels.os, "sched_yield"), "64-bit, little-endian Unix"),
        (lambda m: m.setattr(kernels.sys, "byteorder", "big"), "64-bit, little-endian Unix"),
        (
            lambda m: m.setattr(kernels.jax, "default_backend", lambda: "gpu"),
            "JAX computes on gpu here; set JAX_PLAT",
        ),
        (lambda m: m.setenv(isa.VARIABLE, "avx3"), "LLAMA_JAX_ISA is 'avx3'"),
    ],
)
def test_where_there_are_none_a_placement_says_so_before_anything_is_computed(monkeypatch, break_it, words, tiny):
    import llama_jax as ll
    from llama_jax import engine

    monkeypatch.setattr(engine, "weights", lambda *a: pytest.fail("computed"))
    monkeypatch.setattr(engine, "prepare", lambda *a: pytest.fail("computed"))
    break_it(monkeypatch)
    for name in ("step+gemv", "loop+fused"):
        with pytest.raises(UserError, match=words):
            ll.build(None, name)
        with pytest.raises(UserError, match=words):
            ll.generate.bind(*tiny, ll.parse(name))
    status = kernels.status()
    assert (status["isa"], status["description"]) == (None, "XLA's own operations")


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
    report = json.loads(call("doctor", "--no-probe", "--json")[1].strip().splitlines()[-1])
    assert report["kernels"]["isa"] is None
    assert {"numba", "llvmlite"} <= set(report["packages"])


def test_records_name_the_instruction_set(monkeypatch):
    from llama_lab.bench import environment

    assert environment.capture()["kernels"] == isa.target().isa
    monkeypatch.setenv(isa.VARIABLE, "portable")
    here = environment.capture()
    assert (here["kernels"], here["settings"][isa.VARIABLE]) == ("portable", "portable")


# Real processes -------------------------------------------------------------------------------------------------------

START = """
import subprocess, threading
from llama_jax.kernels import build, gemv
from llama_jax.kernels.build import registered
real, count, names = subprocess.run, [], []
subprocess.run = lambda *a, **k: count.append(a) or real(*a, **k)
gate = threading.Barrier(4)
def first_use():
    gate.wait()
    names.append(registered("llama_jax_gemv"))
threads = [threading.Thread(target=first_use) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
from tests.kernels.test_gemv import activations, close, weight
x, w = activations(3, 96), weight("q4_0", 40, 96)
close(gemv.product(x, w.data, w.shape), x, w)
print(len(names), len(count), len(build.Library.loaded))
"""


@pytest.mark.slow
def test_two_processes_at_once_of_four_threads_each_and_one_after_them(cache):
    """One compilation a process, whichever of its threads needs it first, and one entry; then none."""
    start = partial(python, START, limit=300, LLAMA_JAX_ISA="portable")
    with ThreadPoolExecutor(2) as pool:
        assert {out for out, _ in pool.map(lambda _: start(), range(2))} == {"4 1 1"}
    assert len(list((cache / "kernels").iterdir())) == 1
    assert start()[0] == "4 0 1"  # nothing left to compile
