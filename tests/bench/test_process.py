"""Real children that end in every way a child can."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from llama_jax.plumbing.errors import UserError
from llama_lab.bench import process, protocol

HERE = "tests.bench.children"


def start(task, limit=60.0, **options):
    said = []
    outcome = process.start(
        f"{HERE}:{task}", options.pop("arguments", {}), lambda *message: said.append(message), limit, **options
    )
    return outcome, said


def test_a_child_answers_and_its_printing_disturbs_nothing():
    outcome, said = start("answer", arguments={"b": [1, 2], "a": "text"})
    assert outcome.ok
    assert outcome.result["given"] == {"a": "text", "b": [1, 2]}
    assert ("seen", ["a", "b"]) in said
    assert outcome.result["pid"] != os.getpid()


def test_the_environment_is_clean_and_the_cores_are_fixed(monkeypatch, tmp_path):
    monkeypatch.setenv("SOMEBODYS_SETTING", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/somewhere")
    monkeypatch.setenv(process.INDUCTOR, "/somewhere")
    outcome, _ = start("answer", threads=1)
    given = outcome.result["environment"]
    folders = [given[process.INDUCTOR], start("answer", threads=1)[0].result["environment"][process.INDUCTOR]]
    assert len({"/somewhere", *folders}) == 3  # each child has one of its own, which goes with it
    assert not any(os.path.exists(folder) for folder in folders)
    assert outcome.result["cores"] == process.allowed_cores()[:1]
    assert {given[name] for name in process.BLAS_THREADS} == {"1"}
    assert "SOMEBODYS_SETTING" not in given
    assert "JAX_COMPILATION_CACHE_DIR" not in given
    assert (
        given["XLA_FLAGS"].split()[0] == "--xla_cpu_enable_fast_math=false"
    )  # a measured condition: kept, and recorded
    assert process.clean_environment(2, tmp_path)["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)


@pytest.mark.parametrize(
    ("task", "reason", "result"),
    [
        ("killed", "killed by SIGKILL: first line / the last words", {}),
        ("mumbling", "exit code 3: caf\ufffd \u2014 end", {}),  # last words in another encoding
        ("raising", "exit code 1: .*ZeroDivisionError: in the child", {}),
        ("stumbling", "", {"done": True}),  # one that stumbles while it leaves has done its work
    ],
)
def test_how_a_child_ended_is_an_outcome_in_one_line(task, reason, result, monkeypatch):
    monkeypatch.setenv("LC_ALL", "C")
    outcome, said = start(task)
    assert re.fullmatch(reason, outcome.reason)
    assert (outcome.ok, outcome.result) == (not reason, result)
    assert [message for message in said if message[0] == "starting"] == [("starting", {"what": "x"})] * (
        task == "killed"
    )


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [("refusing", {}, "no such thing"), ("answer", dict(threads=999), "999 threads asked for")],
)
def test_a_users_mistake_is_a_users_mistake(task, options, words):
    with pytest.raises(UserError, match=words):
        start(task, **options)


@pytest.mark.slow
def test_a_silent_child_is_stopped_with_all_it_started():
    before = {p.pid for p in psutil.process_iter()}
    outcome, _ = start("silent", limit=10)
    assert outcome.reason == "stopped after 10 s without a word: about to wait"
    left = [
        p
        for p in psutil.process_iter(["name", "cmdline", "status"])
        if p.pid not in before and p.info["cmdline"] == ["sleep", "300"] and p.info["status"] != psutil.STATUS_ZOMBIE
    ]
    assert left == []


def test_each_message_gives_a_child_its_time_anew():
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    watchdog = process.Watchdog(child, 1.0)
    for _ in range(5):
        time.sleep(0.4)
        watchdog.feed()
    assert child.poll() is None
    assert child.wait(30) == -signal.SIGKILL
    assert watchdog.expired


def test_the_parent_is_done_with_a_message_before_the_child_goes_on():
    seen = []

    def slowly(kind, value):
        if kind == "tick":
            time.sleep(0.3)
            seen.append((value, time.perf_counter()))

    outcome = process.start(f"{HERE}:ticking", {}, slowly, 60)
    heard = outcome.result["times"]
    assert [value for value, _ in seen] == [0, 1, 2]
    assert all(after >= handled for after, (_, handled) in zip(heard, seen, strict=True))


STARTING = """import contextlib, resource, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background is started deaf to these, under nohup
for sign in (signal.SIGQUIT, signal.SIGHUP): signal.signal(sign, signal.SIG_DFL)
from llama_lab.bench import process, protocol
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # SIGQUIT leaves none
with protocol.alone() as lock:
    process.start(sys.argv[1], {}, lambda kind, value: print(value, flush=True), held=(lock.fileno(),))
"""
ENDINGS = ("INT", "TERM", "HUP", "QUIT", "KILL", "TERM TERM", "INT INT", "TERM KILL", "HUP INT")


@pytest.mark.parametrize("signs", ENDINGS)
def test_no_child_outlives_its_parent_nor_does_its_lock(signs, own_lock, tmp_path):
    """Nor one that says nothing; the signals go to the whole group, as `timeout` and a closed terminal send them."""
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTING, f"{HERE}:asleep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    child = psutil.Process(int(parent.stdout.readline()))
    for sign in signs.split():
        os.killpg(parent.pid, signal.Signals[f"SIG{sign}"])
    with protocol.alone():
        pass
    assert parent.wait(30) != 0
    with contextlib.suppress(psutil.NoSuchProcess):  # where nobody reaps orphans it stays, as a zombie
        assert child.status() == psutil.STATUS_ZOMBIE


def test_a_child_whose_parent_is_gone_already_does_nothing():
    done = subprocess.run(
        [sys.executable, "-c", process.CHILD, "0", "1" if os.getpid() != 1 else "2"], input=b"{}", capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
