"""Past one process: the same bytes from any number of them, nothing lost with one that dies, and nobody left behind."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from llama_jax.activations import supervisor, workers
from llama_jax.activations.extraction import Progress, RunReport
from llama_jax.errors import UserError

MODEL = (
    "random:smollm2-135m,num_hidden_layers=2,hidden_size=64,intermediate_size=128,num_attention_heads=4,num_key_value_heads=2,"
    "head_dim=16,vocab_size=97"
)
COMMAND = ["extract", "--model", MODEL, "--sites", "resid_post:all q:0", "--batch", "4", "--length", "32", "--json"]
REPORT = RunReport(
    out="out",
    units=10,
    rows=100,
    bytes=1000,
    written=5,
    tokens=60,
    padding=0.25,
    compilations=1,
    seconds=2.0,
    tokens_per_second=30.0,
    complete=False,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Examples of token ids, enough for a run of some seconds."""
    draw = random.Random(0)
    rows = [{"text": [draw.randrange(97) for _ in range(draw.randrange(1, 60))]} for _ in range(1200)]
    path = tmp_path_factory.mktemp("source") / "ids.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def unbroken(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "out"
    assert finished(start(source, out)).returncode == 0
    return out


def start(source, out, *options, **environment):
    """`llama-jax extract` in a process and a session of its own."""
    arguments = [
        sys.executable,
        "-m",
        "llama_jax",
        *COMMAND,
        "--source",
        str(source),
        "--unit",
        "4",
        "--out",
        str(out),
        *options,
    ]
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
    )


def finished(process):
    out, err = process.communicate(timeout=120)
    return SimpleNamespace(returncode=process.returncode, out=out, err=err)


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def commits(out):
    return {int(p.stem) for p in Path(out).rglob("units/*/*.json") if not p.name.startswith(".")}


def when_running(process, out, least=8):
    """The two workers of a supervisor, in order, once each has committed something."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        written = commits(out)
        if len(written) >= least and {n % 2 for n in written} == {0, 1}:
            return sorted(psutil.Process(process.pid).children(), key=index_of)
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def index_of(child):
    return int(child.environ()[workers.VARIABLE].partition("/")[0])


def gone(processes):
    return not psutil.wait_procs(processes, timeout=20)[1]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_writes_the_same_bytes(source, unbroken, tmp_path, processes):
    done = finished(start(source, tmp_path / "out", "--processes", str(processes)))
    assert done.returncode == 0, done.err
    report, *others = [json.loads(line) for line in done.out.splitlines()]
    assert not others
    assert (report["units"], report["written"], report["compilations"], report["complete"]) == (
        300,
        300,
        processes,
        True,
    )
    assert content(tmp_path / "out") == content(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_leaves_the_others_their_work_and_its_own_to_whoever_resumes(
    source, unbroken, tmp_path, victim
):
    """The first one too, though it is the one that all of them meet at."""
    out = tmp_path / "out"
    process = start(source, out, "--processes", "2")
    children = when_running(process, out)
    children[victim].kill()
    ended = finished(process)
    assert ended.returncode == 2
    assert not ended.out
    line = (
        f"error: Worker {victim} of 2 was killed by SIGKILL. What is committed stays valid: run the same"
        " command again with --resume.\n"
    )
    assert ended.err == line
    assert gone(children)
    mine, others = ({n for n in range(300) if n % 2 == index} for index in (victim, 1 - victim))
    assert others <= commits(out)  # all of the survivor's units
    assert not mine <= commits(out)
    assert not (out / "complete.json").exists()
    found = len(commits(out))
    again = finished(start(source, out, "--resume", "--processes", "3"))
    assert again.returncode == 0, again.err
    assert json.loads(again.out)["written"] == 300 - found
    assert content(out) == content(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_behind(source, unbroken, tmp_path, sign):
    """Whatever ends the supervisor, and whether or not it can do something about it."""
    out = tmp_path / "out"
    process = start(source, out, "--processes", "2")
    children = when_running(process, out)
    for child in children:
        child.suspend()  # however slow this machine is: the run is not over when the signal comes
    process.send_signal(sign)
    time.sleep(0.5)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.resume()
    ended = finished(process)
    assert gone(children)
    assert not ended.out
    if sign != signal.SIGKILL:
        assert (ended.returncode, ended.err) == (130, f"interrupted. {supervisor.AGAIN}\n")
    assert 0 < len(commits(out)) < 300
    again = finished(start(source, out, "--resume"))
    assert again.returncode == 0, again.err
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_over_a_mesh_all_work_on_each_unit_and_one_writes_it(source, tmp_path):
    """Two processes of two devices each make what one device makes, and one that dies ends the other."""
    options = ("--limit", "60", "--keep", "float32", "--mesh", "2x2")
    meshed, single = tmp_path / "meshed", tmp_path / "single"
    done = finished(start(source, meshed, *options, "--processes", "2", JAX_NUM_CPU_DEVICES="2"))
    assert done.returncode == 0, done.err
    report = json.loads(done.out)
    assert (report["units"], report["written"], report["compilations"], report["complete"]) == (15, 15, 2, True)
    assert finished(start(source, single, *options[:4])).returncode == 0
    for file in sorted(single.rglob("*.safetensors")):
        with safe_open(file, "np") as one, safe_open(meshed / file.relative_to(single), "np") as two:
            for name in one.keys():  # noqa: SIM118
                a, b = one.get_tensor(name), two.get_tensor(name)
                assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), (file, name)
    out = tmp_path / "killed"
    process = start(source, out, *options[2:], "--processes", "2", JAX_NUM_CPU_DEVICES="2")
    children = when_running(process, out, least=4)
    children[1].kill()
    ended = finished(process)
    assert gone(children)
    assert (ended.returncode, ended.out) == (2, "")
    assert "Worker 1 of 2 was killed by SIGKILL" in ended.err
    assert "--resume" in ended.err
    assert ended.err.count("\n") == 1, ended.err


@pytest.mark.slow
def test_a_launcher_is_enough(source, unbroken, tmp_path):
    """SLURM's variables, as srun sets them: each process finds its place, and the last to end completes the store."""
    out = tmp_path / "out"
    slurm = dict(
        SLURM_JOB_ID="7",
        SLURM_STEP_NODELIST="localhost",
        SLURM_NTASKS="2",
        JAX_COORDINATOR_PORT=str(supervisor.free_port()),
    )
    both = [start(source, out, "--distributed", **slurm, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(2)]
    ended = [finished(process) for process in both]
    assert [e.returncode for e in ended] == [0, 0], [e.err for e in ended]
    reports = [json.loads(e.out) for e in ended]
    assert [r["written"] for r in reports] == [150, 150]
    assert any(r["complete"] for r in reports)
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_a_program_with_a_runtime_of_its_own_keeps_it(source, tmp_path):
    """Two extractions one after the other, then something that needs the runtime."""
    code = """if True:
        import sys, jax, numpy
        from jax.experimental import multihost_utils
        from llama_jax import checkpoint
        from llama_jax.activations import ActivationSpec, Extractor, extract
        index, port, model, source, out = sys.argv[1:]
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), coordinator_bind_address=f"127.0.0.1:{port}")
        extractor = Extractor(checkpoint.load(model), ActivationSpec("resid_post:0"), batch=(4, 32))
        for part in ("a", "b"):
            written = extract(extractor, source, f"{out}/{part}", unit=100).written
            assert written == 6, written
        assert multihost_utils.process_allgather(numpy.int32(index)).tolist() == [0, 1]
        """
    given = (str(supervisor.free_port()), MODEL, str(source), str(tmp_path))
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(i), *given],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for i in range(2)
    ]
    ended = [finished(process) for process in both]
    assert [e.returncode for e in ended] == [0, 0], [e.err for e in ended]
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert (tmp_path / "a" / "complete.json").exists()


@pytest.mark.slow
def test_a_worker_that_dies_while_all_are_starting_ends_them_all(source, tmp_path):
    process = start(source, tmp_path / "out", "--processes", "2")
    end = time.monotonic() + 60
    while len(children := psutil.Process(process.pid).children()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.5)  # both are importing, or meeting
    children[1].kill()
    ended = finished(process)
    assert gone(children)
    assert (ended.returncode, ended.out) == (2, "")
    assert ended.err == f"error: Worker 1 of 2 was killed by SIGKILL. {supervisor.AGAIN}\n"
    assert not commits(tmp_path / "out")


@pytest.mark.slow
def test_a_mistake_is_one_line_whoever_makes_it(source, unbroken, tmp_path):
    before = content(unbroken)
    for options, words in (
        (("--out", str(unbroken)), "holds this run already"),
        (("--out", str(unbroken), "--resume", "--length", "16"), "another run: batch is .* there"),
        (("--mesh", "3x1"), "A mesh of 3 x 1 needs 3 devices; JAX sees 2"),
    ):
        ended = finished(start(source, tmp_path / "out", "--processes", "2", *options))
        assert (ended.returncode, ended.out) == (2, "")
        assert re.fullmatch(f"error: .*{words}.*\n", ended.err), ended.err
    assert content(unbroken) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--processes", "2", "--source", "-"), "read by one process only"),
        (("--processes", "2", "--distributed"), "give one of them"),
        (("--distributed", "--source", "manual"), "No launcher is detected"),
        (("--mesh", "two", "--source", "manual"), "write DATAxTENSOR"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(tmp_path, options, words):
    ended = finished(start("manual", tmp_path / "out", *options))
    assert ended.returncode == 2
    assert re.fullmatch(f"error: .*{words}.*\n", ended.err), ended.err
    assert not (tmp_path / "out").exists()


def child(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=60,
    )


@pytest.mark.parametrize("index", [0, 1])
def test_who_does_not_come_is_waited_for_only_so_long(index):
    """JAX's own runtime would abort with a core dump."""
    port = supervisor.free_port()
    ended = child(f"from llama_jax.activations import workers\nworkers.join('127.0.0.1:{port}', 2, {index}, seconds=2)")
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        f"error: 127.0.0.1:{port} or another process did not answer within 2 s"
    )


def test_a_port_in_use_is_said_so():
    with contextlib.closing(supervisor.socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"Cannot listen on 127.0.0.1:{port}: Address already in use"):
            workers.check_port("127.0.0.1", port)
    workers.check_port("127.0.0.1", supervisor.free_port())


@given(st.integers(1, 64), st.integers(1, 80))
def test_cores_are_shared_out_evenly(cores, count):
    shares = [workers.share_of(list(range(10, 10 + cores)), index, count) for index in range(count)]
    assert set().union(*shares) == set(range(10, 10 + cores))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if count <= cores:
        assert sum(sizes) == cores  # no core is anyone else's
    else:
        used = [next(iter(share)) for share in shares]
        assert max(map(used.count, used)) - min(map(used.count, used)) <= 1


def test_alone_everything_goes_on_at_once():
    seen = []
    workers.first(lambda: seen.append(1))
    workers.meet()
    workers.part()
    assert seen == [1]
    assert not workers.joined()
    with pytest.raises(ZeroDivisionError), workers.leaving():
        raise ZeroDivisionError


def test_a_place_is_in_the_environment(monkeypatch):
    monkeypatch.delenv(workers.VARIABLE, raising=False)
    assert workers.place() is None
    monkeypatch.setenv(workers.VARIABLE, "3/8/127.0.0.1:4000")
    assert workers.place() == workers.Place(3, 8, "127.0.0.1:4000")
    for text in ("3", "3/8", "a/b/c", "3/8/nowhere", "-1/8/127.0.0.1:4000"):
        monkeypatch.setenv(workers.VARIABLE, text)
        with pytest.raises(UserError, match="LLAMA_JAX_WORKER is"):
            workers.place()


def worker(index, code, error="", report=REPORT, progress=None, stopped=False):
    process = SimpleNamespace(returncode=code, poll=lambda: code)
    return supervisor.Worker(
        index, process, progress or Progress(0, 0, 0, 0, 0.0, 0), report if code == 0 else None, error, stopped
    )


def test_the_line_names_the_worker_that_was_the_cause():
    supervisor.check([worker(0, 0), worker(1, 0)])
    for given_workers, line in (
        ([worker(0, 0), worker(1, -9)], "Worker 1 of 2 was killed by SIGKILL. What"),
        ([worker(0, -6), worker(1, -9)], "Worker 1 of 2 was killed by SIGKILL. So did 1 more."),
        # it lost its connection at once
        ([worker(0, 1), worker(1, -9)], "Worker 1 of 2 was killed by SIGKILL. So did 1 more."),
        ([worker(0, -6), worker(1, 1)], "Worker 1 of 2 ended with exit code 1. So did 1 more."),
        (
            [worker(0, -9, stopped=True), worker(1, 2, "Disk full.")],
            "Worker 1 of 2 ended with exit code 2: Disk full. What",
        ),
        ([worker(0, 0), worker(1, 0, report=None)], "Worker 1 of 2 ended with exit code 0. What"),
    ):
        with pytest.raises(UserError, match=re.escape(line)):
            supervisor.check(given_workers)
    for each in (early := [worker(0, 2, "No such model."), worker(1, 2, "No such model.")]):
        each.progress = None
    with pytest.raises(UserError, match="^No such model.$"):
        supervisor.check(early)


def test_reports_are_summed():
    other = replace(
        REPORT, units=15, rows=150, bytes=1500, written=10, tokens=40, padding=0.5, seconds=4.0, complete=True
    )
    found = supervisor.summed([other, REPORT, replace(REPORT, tokens=0, written=0, padding=0.0)])
    assert (found.units, found.rows, found.bytes, found.complete) == (15, 150, 1500, True)
    assert (found.written, found.tokens, found.compilations, found.seconds, found.tokens_per_second) == (
        15,
        100,
        3,
        4.0,
        25.0,
    )
    assert found.padding == pytest.approx(1 - 100 / (80 + 80))


def test_what_a_worker_says_is_heard(capsys):
    heard, one = [], worker(0, None)
    one.hear(
        '{"progress": {"units": 2, "examples": 8, "tokens": 90, "bytes": 7, "seconds": 1.5, "before": 4}}\n',
        lambda: heard.append(one.progress),
    )
    for line in ("no JSON at all\n", "7\n", "[]\n", '{"reports": 1}\n', '{"progress": {"uni'):
        one.hear(line, lambda: heard.append("wrong"))
    assert heard == [Progress(2, 8, 90, 7, 1.5, 4)]
    one.hear(json.dumps({"report": vars(REPORT)}), lambda: heard.append("wrong"))
    assert one.report == REPORT
    one.overhear("error: Disk full.\n", quiet=False)
    one.overhear("a warning\n", quiet=False)
    one.overhear("core dumped\n", quiet=True)
    assert one.error == "Disk full."
    assert capsys.readouterr().err == "[0] a warning\n"


def test_what_jax_says_of_another_workers_mistake_is_held_back(capsys):
    def starting():
        first, second = worker(0, 2, "No such model."), worker(1, -6)
        first.progress = second.progress = None
        second.overhear("F1122 another task died\n", quiet=False)
        return [first, second]

    with pytest.raises(UserError, match="^No such model.$"):
        supervisor.check(starting())
    assert capsys.readouterr().err == ""
    silent = starting()
    silent[0].error = ""
    with pytest.raises(UserError, match="Worker 0 of 2 ended with exit code 2"):
        supervisor.check(silent)
    assert capsys.readouterr().err == "[1] F1122 another task died\n"
