"""A real Ray cluster of two machines that are one: whoever is killed, stopped or interrupted, no byte is another."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import psutil
import pytest

from llama_jax.checkpoint import Checkpoint
from llama_jax.config import tiny
from llama_jax.plumbing.errors import UserError
from llama_lab.activations import ActivationSpec, Extractor, extract, finish, pending, ray_cluster, ray_engine
from llama_lab.activations.dealer import IN_HAND, Dealer
from llama_lab.activations.ray_engine import Pipeline
from llama_lab.activations.run import Progress, RunReport
from tests.activations import stores
from tests.activations.runs import UNITS, commits, content, done, finished, spawn, start
from tests.activations.stores import says
from tests.conftest import build

ROUNDS = 3  # runs, in each of which an actor is killed and then a machine
SOON = 60  # seconds
STORE = 80 << 20  # bytes


def until(condition, process, what):
    """Wait for it while a run goes on."""
    end = time.monotonic() + SOON
    while not (found := condition()):
        assert process.poll() is None, (what, process.communicate())
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return found


# Without Ray ---


def test_what_cannot_be_is_one_line(monkeypatch):
    for address in ("nonsense", "host", "host:port", "http://host:1", "ray://", ":1", "host:1/x"):
        with says("--address is", "; it is HOST:PORT, ray://HOST:PORT or auto"):
            ray_cluster.check(address)
    for address in ("127.0.0.1:99999", "no-such-host.invalid:1"):
        with says("No Ray cluster answers"):
            ray_cluster.check(address)
    for cpus, gpus, count, line in (
        ([1, 1], [0, 0], 3, "3 actors do not fit: the cluster has 2 cores."),
        ([0], [0], None, "1 actors do not fit: the cluster has 0 cores."),
        ([64], [1], 2, "2 actors do not fit: the cluster has 1 GPU."),
    ):
        with says(line):
            ray_cluster.shared_out(cpus, gpus, count)
    monkeypatch.setitem(sys.modules, "ray", None)
    with says("Ray is not installed here; `make ray` or pip install 'llama-jax[ray]'"):
        ray_engine.run(None, lambda done: None)


@pytest.mark.parametrize(
    ("cpus", "gpus", "count", "shared"),
    [
        ([2], [0], None, (1, 2, 0)),
        ([2], [0], 2, (2, 1, 0)),
        ([8, 8], [0, 0], None, (2, 8, 0)),
        ([8, 8], [0, 0], 5, (5, 2, 0)),
        ([0, 1, 1], [0, 0, 0], None, (2, 1, 0)),  # a head that computes nothing
        ([16, 4], [0, 0], None, (5, 4, 0)),
        ([32, 32], [4, 4], None, (8, 1, 1)),
        ([32, 32], [4, 4], 3, (3, 1, 1)),
    ],
)
def test_machines_are_shared_out(cpus, gpus, count, shared):
    assert ray_cluster.shared_out(cpus, gpus, count) == shared


def test_what_ray_writes_is_a_sentence_on_standard_error_and_nothing_once_all_is_done(capsys):
    dead = "\x1b[33m(raylet)\x1b[0m A worker died or was killed. To troubleshoot,\n  [state-dump] 1\n"
    with contextlib.redirect_stdout(ray_cluster.Overheard(sys.stdout)) as overheard:
        for _ in range(2):
            print(dead)
        overheard.over = True
        print("(raylet) Task Actor.do failed. It is tried again.")
        print("the report")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("the report\n", "Ray: A worker died or was killed.\n")


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_where_nobody_listens_is_said_at_once(form):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{held.getsockname()[1]}")
        with says(f"No Ray cluster answers at {address}:", "`ray start --head` begins one"):
            ray_cluster.check(address)
        held.listen()
        ray_cluster.check(address)


class Calls:
    """Stands in for Ray: a call is (actor, unit), and they end in the order that `ends` says."""

    def __init__(self, ends):
        self.ends = ends

    def wait(self, calls, num_returns):
        assert num_returns == 1
        assert calls
        return [min(calls, key=self.ends)], []

    def get(self, call):
        return Progress(1, 4, 10, 100, 0.1, 0, None, call[1])


def test_who_never_ends_is_overtaken_and_each_unit_is_heard_once():
    members = [SimpleNamespace(do=SimpleNamespace(remote=lambda unit, i=i: (i, unit))) for i in range(3)]
    heard = []
    stuck = Calls(lambda call: (call[0] == 1, call[1]))  # the second one: after everybody else
    needless = ray_engine.driven(stuck, members, Dealer(range(20)), lambda done: heard.append(done.unit))
    assert sorted(heard) == list(range(20))
    assert list(needless.values()).count(1) == IN_HAND


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are not chosen here")
def test_actors_of_one_machine_keep_to_cores_of_their_own(tmp_path):
    """All threads of each; one that finds none left keeps to all."""
    code = """
import os, sys, threading, time
from llama_lab.activations import ray_cluster
started, go = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (started.set(), go.wait(), print(sorted(os.sched_getaffinity(0)))))
thread.start()
started.wait()
ray_cluster.settle(1)
print(sorted(os.sched_getaffinity(0)), flush=True)
go.set()
thread.join()
sys.stdout.flush()
sys.stdin.read()
"""
    cores, found, children = sorted(os.sched_getaffinity(0)), [], []
    try:
        for _ in range(len(cores) + 1):
            children.append(spawn("-c", code, stdin=subprocess.PIPE, TMPDIR=str(tmp_path)))
            lines = [json.loads(children[-1].stdout.readline()) for _ in range(2)]
            assert lines[0] == lines[1]
            found.append(lines[0])
    finally:
        for process in children:
            process.communicate("")
    assert sorted(found[:-1]) == [[core] for core in cores]
    assert found[-1] == cores


# A pipeline that is given its units as they come ---


@pytest.fixture(scope="module")
def extractor():
    shape = tiny(num_hidden_layers=2)
    loaded = Checkpoint("tiny", shape, build(shape), None, "", "random:", "float32")
    return Extractor(loaded, ActivationSpec("resid_post:0", dtype="float32"), batch=(2, 8))


EXAMPLES = [[n % 90 + 1] * (n % 7 + 1) for n in range(13)]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_unit_is_committed_before_the_next_is_asked_for(extractor, tmp_path, depth):
    extract(extractor, EXAMPLES, tmp_path / "once", unit=3)
    pipeline = Pipeline(partial(extract, extractor, EXAMPLES, tmp_path / "fed", depth=depth, unit=3))
    for left, unit in ((4, 3), (3, 0), (2, 4), (1, 1)):
        took = pipeline.do(unit)
        assert (took.unit, took.units, took.examples) == (unit, 1, 1 if unit == 4 else 3)
        assert took.tokens == sum(map(len, EXAMPLES[unit * 3 : unit * 3 + 3]))
        assert len(pending(tmp_path / "fed")) == left
    again = pipeline.do(1)  # by another's hands or one's own: it is there
    assert (again.units, again.tokens, again.before) == (0, 0, 3)
    pipeline.do(2)
    report = pipeline.end()
    assert (report.written, report.tokens) == (5, sum(map(len, EXAMPLES)))
    assert finish(tmp_path / "fed")
    assert content(tmp_path / "fed") == content(tmp_path / "once")
    with pytest.raises(RuntimeError, match="ended"):
        pipeline.do(0)


def test_many_ask_at_once_and_one_unit_twice(extractor, tmp_path):
    pipeline = Pipeline(partial(extract, extractor, EXAMPLES, tmp_path / "out", unit=2))
    with ThreadPoolExecutor(8) as pool:
        took = list(pool.map(pipeline.do, [*range(7), 3]))
    assert sum(done.units for done in took if done.unit != 3) == 6
    assert pending(tmp_path / "out") == []
    assert pipeline.end().written == 7


def test_a_mistake_reaches_all_who_wait_and_all_who_come_later(extractor, tmp_path):
    pipeline = Pipeline(partial(extract, extractor, EXAMPLES, tmp_path / "out", unit=3))
    with pytest.raises(UserError, match="There is no unit 99"):
        pipeline.do(99)
    with pytest.raises(UserError, match="There is no unit 99"):
        pipeline.do(0)
    begun, go = threading.Event(), threading.Event()

    def fails(units, progress):
        progress(Progress(0, 0, 0, 0, 0.0, 0))
        assert next(units) in (1, 2)
        begun.set()
        go.wait(10)
        raise UserError("Disk full.")

    pipeline = Pipeline(fails)
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(pipeline.do, unit) for unit in (1, 2)]
        assert begun.wait(10)
        go.set()
        assert [repr(one.exception(10)) for one in asking] == ["UserError('Disk full.')"] * 2


# With Ray ---


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray", reason="`make ray` adds it")
    return ray_cluster.installed()


@pytest.fixture(scope="module")
def cluster(ray):
    """A head that computes nothing and two machines of one core each."""
    from ray.cluster_utils import Cluster

    head = dict(num_cpus=0, include_dashboard=False, object_store_memory=STORE)
    made = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    for _ in range(2):
        more(made)
    yield made
    made.shutdown()


def more(cluster):
    patiently(lambda: cluster.add_node(num_cpus=1, object_store_memory=STORE))


def patiently(begin, times=3):
    """Ray gives a machine half a minute to begin: on a busy one that may be too little."""
    for attempt in range(1, times + 1):
        try:
            return begin()
        except Exception as error:
            if attempt == times or "timed out during startup" not in str(error):
                raise


def machines(cluster):
    """The nodes that compute."""
    return [node for node in cluster.list_all_nodes() if node is not cluster.head_node]


def actors(cluster):
    """The processes of the actors, on any node."""
    found = []
    for node in machines(cluster):
        for raylet in node.all_processes["raylet"]:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(raylet.process.pid).children(recursive=True)
                found += [child for child in children if named(child).startswith("ray::Actor")]
    return found


def named(process):
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()) or process.name()
    return ""


def on(cluster, *options):
    return ("--engine", "ray", "--address", cluster.address, *options)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whoever_is_killed_at_whatever_moment_the_bytes_are_the_same(cluster, source, unbroken, tmp_path):
    """An actor, then a whole machine; what died is on another machine a moment later."""
    draw = random.Random(0)
    for turn in range(ROUNDS):
        out = tmp_path / str(turn)
        process = start(source, out, *on(cluster))
        target = draw.randrange(1, 40)
        until(lambda: len(commits(out)) >= target, process, "commits")  # noqa: B023
        draw.choice(until(lambda: actors(cluster), process, "actors")).kill()
        time.sleep(draw.random() / 2)
        assert process.poll() is None
        cluster.remove_node(draw.choice(machines(cluster)), allow_graceful=False)
        more(cluster)
        report = done(process)
        assert (report["units"], report["complete"]) == (UNITS, True)
        assert content(out) == content(unbroken)


@pytest.mark.slow
def test_one_that_stands_still_is_overtaken(cluster, source, unbroken, tmp_path):
    process = start(source, tmp_path / "out", *on(cluster))
    until(lambda: len(commits(tmp_path / "out")) > 20 and len(actors(cluster)) == 2, process, "both at work")
    stopped = actors(cluster)[0]
    stopped.suspend()
    assert done(process)["units"] == UNITS
    assert content(tmp_path / "out") == content(unbroken)
    with contextlib.suppress(psutil.NoSuchProcess):
        stopped.resume()
    assert not psutil.wait_procs([stopped], timeout=SOON)[1]


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_driver_the_folder_can_be_gone_on_with(cluster, source, unbroken, tmp_path, sign):
    out = tmp_path / "out"
    process = start(source, out, *on(cluster))
    until(lambda: len(commits(out)) > 8, process, "commits")
    at_work = actors(cluster)
    for one in at_work:
        one.suspend()  # however slow this machine is: the run is not over when the signal comes
    process.send_signal(sign)
    time.sleep(0.5)
    for one in at_work:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.resume()
    ended = finished(process)
    if sign != signal.SIGKILL:
        assert ended.returncode == 130
        assert ended.err.splitlines()[-1] == f"interrupted. {ray_cluster.AGAIN}"
    assert not psutil.wait_procs(at_work, timeout=SOON)[1]
    assert 0 < len(commits(out)) < UNITS
    done(start(source, out))  # by one process, without Ray
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_without_an_address_a_cluster_begins_and_ends_with_the_run(ray, source, unbroken, tmp_path):
    process = start(source, tmp_path / "out", "--engine", "ray", "--processes", "2")
    until(lambda: commits(tmp_path / "out"), process, "commits")
    begun = psutil.Process(process.pid).children(recursive=True)
    assert begun
    ended = finished(process)
    assert ended.returncode == 0, ended.err
    assert "Ray" not in ended.err
    report = json.loads(ended.out)
    assert (report["units"], report["complete"]) == (UNITS, True)
    assert content(tmp_path / "out") == content(unbroken)
    assert not psutil.wait_procs(begun, timeout=SOON)[1]


def test_a_report_is_of_the_store_and_of_those_who_said_something(tmp_path):
    stores.write(tmp_path / "out", finish=False, skip=(4,))
    told = []
    tally = ray_engine.Tally(str(tmp_path / "out"), told.append)
    assert (tally.done.before, tally.done.units, told[-1].unit) == (12, 0, None)
    tally.heard(Progress(1, 3, 40, 500, 1.0, 0, None, 4))
    tally.heard(Progress(0, 0, 0, 0, 0.0, 3, None, 2))  # found committed
    assert (told[-1].units, told[-1].examples, told[-1].tokens, told[-1].before, told[-1].unit) == (1, 3, 40, 15, 2)
    one = RunReport("out", 1, 1, 1, 1, 30, 0.25, 1, 1.0, 30.0, False)
    report = tally.report(False, [one, one], 2.0)
    assert (report.units, report.rows, report.written, report.tokens) == (4, 24, 1, 40)
    assert (report.padding, report.compilations, report.tokens_per_second) == (0.25, 2, 20.0)
    assert tally.report(False, [], 2.0).padding == 0.0
