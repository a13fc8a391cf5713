"""Past one process: the same bytes from any number of them, in any order, nothing lost with one that dies, nobody waits
for a slow one, and nobody is left behind."""

import contextlib
import io
import json
import random
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_lab.activations import supervisor
from llama_lab.activations.dealer import IN_HAND, Dealer
from llama_lab.activations.run import Progress, RunReport
from llama_lab.cli.extract import ranges
from tests.activations import stores
from tests.activations.runs import COMMAND, MODEL, UNITS, commits, content, done, finished, free_port, spawn, start
from tests.activations.stores import says

REPORT = RunReport(out="out", units=10, rows=100, bytes=1000, written=5, tokens=60, padding=0.25, compilations=1,
                   seconds=2.0, tokens_per_second=30.0, complete=False)  # fmt: skip


def when_running(process, out, least=8):
    """The workers of a supervisor, in order, once so much is committed."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        if len(commits(out)) >= least:
            return sorted(psutil.Process(process.pid).children(), key=index_of)
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def index_of(child):
    return int(child.environ()[supervisor.VARIABLE].partition("/")[0])


def held(source, folder):
    """A run that is not over, its workers suspended, however fast they are and however slow whoever looks on: (folder,
    supervisor, workers)."""
    for attempt in range(5):
        out = folder / f"out{attempt}"
        process = start(source, out, "--processes", "2")
        children = when_running(process, out, least=1)
        for child in children:
            child.suspend()
        if len(commits(out)) < UNITS:
            return out, process, children
        for child in children:
            child.resume()
        finished(process)
    raise AssertionError("every run was over before it could be held")


def told(child):
    """Whether a process that stands still has a signal to come, or is no more."""
    try:
        lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return any(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))


def gone(processes):
    return not psutil.wait_procs(processes, timeout=20)[1]


def pending(document, out, *options):
    return document("extract", "--pending", "--out", out, "--json", *options)[0]["pending"]


# Shards ---


@pytest.mark.slow
def test_shards_in_any_order_are_one_store_and_what_is_pending_is_said(source, unbroken, tmp_path, call, document):
    """Some together, some later, one twice, one by a scheduler's variables; none needs another."""
    out = tmp_path / "out"
    together = [start(source, out, "--shard", f"{i}/5") for i in (3, 1)]
    assert [done(process)["units"] for process in together] == [60, 60]
    assert pending(document, out) == [n for n in range(UNITS) if n % 5 not in (1, 3)]
    assert pending(document, out, "--shard", "4/5") == list(range(4, UNITS, 5))
    code, said, _ = call("extract", "--pending", "--out", out, "--shard", "0/5")
    assert (code, said[:44]) == (0, f"{out}: 60 of 60 units pending: 0, 5, 10, 15"[:44])
    by_scheduler = dict(SLURM_ARRAY_TASK_ID="9", SLURM_ARRAY_TASK_COUNT="5", SLURM_ARRAY_TASK_MIN="5")
    for options, environment, written in (
        (["auto"], by_scheduler, 60),
        (["1/5"], {}, 0),
        (["0/10"], {}, 30),
        (["1/4", "--processes", "2"], {}, 30),
    ):
        report = done(start(source, out, "--shard", *options, **environment))
        assert (report["written"], report["complete"]) == (written, False)
    assert "shard 4/5, from SLURM_ARRAY_TASK_ID" in finished(start(source, out, "--shard", "auto", **by_scheduler)).err
    left = pending(document, out)
    last = done(start(source, out))  # the same command does just what is missing
    assert (last["written"], last["units"], last["complete"]) == (len(left), UNITS, True)
    assert pending(document, out) == []
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_two_that_start_at_once_do_the_same_units(source, unbroken, tmp_path):
    """The very same command, on an empty folder: both claim it, both do what they find, and the bytes are the same."""
    out = tmp_path / "out"
    reports = [done(process) for process in [start(source, out) for _ in range(2)]]
    assert [r["units"] for r in reports] == [UNITS, UNITS]
    assert sum(r["written"] for r in reports) >= UNITS
    assert all(r["complete"] for r in reports)
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_killed_at_random_moments_shards_go_on(source, unbroken, tmp_path):
    """Two shards at a time, one of which is killed, until nothing is missing."""
    rng, out, killed = random.Random(0), tmp_path / "out", 0
    for attempt in range(12):
        both = [start(source, out, "--shard", f"{i}/2") for i in (0, 1)]
        victim = both[attempt % 2]
        enough = len(commits(out)) + rng.randrange(1, 20)
        while len(commits(out)) < enough and victim.poll() is None:
            time.sleep(0.01)
        victim.kill()
        killed += victim.wait() == -signal.SIGKILL
        victim.communicate()
        other = finished(both[1 - attempt % 2])
        assert other.returncode == 0, other.err
        if (out / "complete.json").exists():
            break
    assert killed
    done(start(source, out))
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_a_process_reads_its_own_part_of_the_source_only(source, unbroken, tmp_path):
    """As the system counts the bytes that it reads. The first process makes the plan."""
    wide = tmp_path / "wide.jsonl"
    with wide.open("w") as file:
        for row in source.read_text().splitlines():
            file.write(json.dumps(json.loads(row) | {"more": "x" * 50_000}) + "\n")
    out, spy = tmp_path / "out", tmp_path / "spy.py"
    spy.write_text(SPY)
    for shard, most in (("0/100", 2.3), ("1/100", 0.05)):
        ended = finished(spawn(spy, *COMMAND, "--unit", 4, "--source", wide, "--out", out, "--shard", shard))
        assert ended.returncode == 0, ended.err
        assert 0 < int(ended.err.split()[-1]) < most * wide.stat().st_size
    ours = {n: b for n, b in content(out).items() if n.endswith("safetensors")}
    assert len(ours) == 6
    assert ours.items() <= content(unbroken).items()


SPY = """
import io, os, sys
from pathlib import Path
from llama_lab.__main__ import main
seen, original = [], Path.open

class Spy(io.FileIO):
    def readinto(self, buffer):
        size = super().readinto(buffer)
        seen.append(size)
        return size

def opened(path, mode="r", *rest, **options):
    if path.name == "wide.jsonl":
        return io.BufferedReader(Spy(path, mode))
    return original(path, mode, *rest, **options)

Path.open = opened
try:
    main()
finally:
    print(sum(seen), file=sys.stderr)
"""


# Workers of one command ---


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_any_number_of_processes_writes_the_same_bytes(source, unbroken, tmp_path, processes):
    report = done(start(source, tmp_path / "out", "--processes", str(processes)))
    assert (report["units"], report["written"], report["complete"]) == (UNITS, UNITS, True)
    assert report["compilations"] <= processes  # none is known of workers that were overtaken at their last unit
    assert content(tmp_path / "out") == content(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_what_a_killed_worker_had_is_done_by_the_other(source, unbroken, tmp_path, victim):
    out = tmp_path / "out"
    process = start(source, out, "--processes", "2")
    children = when_running(process, out)
    children[victim].kill()
    ended = finished(process)
    assert gone(children)
    assert ended.returncode == 0, ended.err
    assert ended.err.startswith(f"Worker {victim} was killed by SIGKILL; the others did its units.\n")
    assert json.loads(ended.out)["complete"]
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_a_slow_worker_is_overtaken(source, unbroken, tmp_path):
    """One that does not get on at all: the other does what it has in hand."""
    out = tmp_path / "out"
    process = start(source, out, "--processes", "2")
    children = when_running(process, out)
    children[0].suspend()
    assert done(process)["written"] == UNITS
    assert gone(children)
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_when_all_workers_die_it_is_one_line_and_can_be_gone_on_with(source, unbroken, tmp_path):
    out = tmp_path / "out"
    process = start(source, out, "--processes", "2")
    children = when_running(process, out)
    for child in children:
        child.suspend()
    for child in children:
        child.kill()
    ended = finished(process)
    assert (ended.returncode, ended.out) == (2, "")
    line = f"error: Worker 0 of 2 was killed by SIGKILL. So did 1 more. {supervisor.AGAIN}\n"
    assert ended.err == line
    assert not (out / "complete.json").exists()
    found = len(commits(out))
    assert done(start(source, out, "--processes", "3"))["written"] == UNITS - found
    assert content(out) == content(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_behind(source, unbroken, tmp_path, sign):
    """Whatever ends the supervisor, and whether or not it can do something about it."""
    out, process, children = held(source, tmp_path)
    process.send_signal(sign)
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None and not all(told(child) for child in children):
        time.sleep(0.02)  # until the supervisor has heard it
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.resume()
    ended = finished(process)
    assert gone(children)
    assert not ended.out
    if sign != signal.SIGKILL:
        assert (ended.returncode, ended.err) == (130, f"interrupted. {supervisor.AGAIN}\n")
    assert 0 < len(commits(out)) < UNITS
    done(start(source, out))
    assert content(out) == content(unbroken)


@pytest.mark.slow
def test_an_example_that_is_none_ends_the_run_after_all_the_rest(source, tmp_path):
    """Whoever is given its unit fails; everything else is done before the last worker does."""
    rows = source.read_text().splitlines()
    rows[5] = '{"text": 5}'
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join(rows))
    ended = finished(start(broken, tmp_path / "out", "--processes", "2"))
    assert (ended.returncode, ended.out) == (2, "")
    assert re.fullmatch(r"error: Worker \d of 2 ended with exit code 2: .*, line 6, field 'text' is.*\n", ended.err)
    assert 1 not in commits(tmp_path / "out")
    assert len(commits(tmp_path / "out")) > UNITS - 2 * 6


@pytest.mark.slow
def test_a_program_with_a_runtime_of_its_own_keeps_it(source, tmp_path):
    """Two extractions one after the other, each process its share of the units, then something that needs the
    runtime."""
    code = """if True:
        import sys, jax, numpy
        from jax.experimental import multihost_utils
        from llama_jax import checkpoint
        from llama_lab.activations import ActivationSpec, Extractor, extract
        index, port, model, source, out = sys.argv[1:]
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), coordinator_bind_address=f"127.0.0.1:{port}")
        extractor = Extractor(checkpoint.load(model), ActivationSpec("resid_post:0"), batch=(4, 32))
        for part in ("a", "b"):
            written = extract(extractor, source, f"{out}/{part}", unit=100).written
            assert written == 6, written
        assert multihost_utils.process_allgather(numpy.int32(index)).tolist() == [0, 1]
        """
    port = free_port()
    both = [spawn("-c", code, i, port, MODEL, source, tmp_path) for i in range(2)]
    ended = [finished(process) for process in both]
    assert [e.returncode for e in ended] == [0, 0], [e.err for e in ended]
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert (tmp_path / "a" / "complete.json").exists()


@pytest.mark.slow
def test_a_mistake_is_one_line_whoever_makes_it(source, unbroken, tmp_path):
    before = content(unbroken)
    for options, words in (
        (("--out", str(unbroken), "--no-resume"), "already holds a run"),
        (("--out", str(unbroken), "--length", "16"), "another run: batch is .* there"),
        (("--source", str(tmp_path / "none.jsonl")), "No such source"),
    ):
        ended = finished(start(source, tmp_path / "out", "--processes", "2", *options))
        assert (ended.returncode, ended.out) == (2, "")
        assert re.fullmatch(f"error: .*{words}.*\n", ended.err), ended.err
    assert content(unbroken) == before


def test_ranges_of_numbers():
    assert ranges([]) == ""
    assert ranges([7]) == "7"
    assert ranges([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"


@given(st.integers(1, 64), st.integers(1, 80))
def test_cores_are_shared_out_evenly(cores, count):
    shares = [supervisor.cores_of(list(range(10, 10 + cores)), (index, count)) for index in range(count)]
    assert set().union(*shares) == set(range(10, 10 + cores))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if count <= cores:
        assert sum(sizes) == cores  # no core is anyone else's
    else:
        used = [next(iter(share)) for share in shares]
        assert max(map(used.count, used)) - min(map(used.count, used)) <= 1


def test_a_place_is_in_the_environment(monkeypatch):
    monkeypatch.delenv(supervisor.VARIABLE, raising=False)
    assert supervisor.place() is None
    monkeypatch.setenv(supervisor.VARIABLE, "3/8")
    assert supervisor.place() == supervisor.Place(3, 8)
    for text in ("3", "3/", "a/b", "3/8/1", "-1/8"):
        monkeypatch.setenv(supervisor.VARIABLE, text)
        with says("LLAMA_JAX_WORKER is"):
            supervisor.place()


def worker(index, code, error="", report=REPORT, progress=None, stopped=False):
    process = SimpleNamespace(returncode=code, poll=lambda: code, stdin=io.StringIO())
    report = report if code == 0 else None
    return supervisor.Worker(index, process, progress or Progress(0, 0, 0, 0, 0.0, 0), report, error, stopped)


def test_the_line_names_the_worker_that_was_the_cause(capsys):
    supervisor.check([worker(0, 0), worker(1, 0)], done=True)
    assert capsys.readouterr().err == ""
    supervisor.check([worker(0, 0), worker(1, -9), worker(2, -9, stopped=True)], done=True)
    assert capsys.readouterr().err == "Worker 1 was killed by SIGKILL; the others did its units.\n"
    for given_workers, line in (
        ([worker(0, -9), worker(1, -9)], "Worker 0 of 2 was killed by SIGKILL. So did 1 more."),
        (
            [worker(0, -9), worker(1, 2, "Disk full.")],
            "Worker 1 of 2 ended with exit code 2: Disk full. So did 1 more.",
        ),
        ([worker(0, 0), worker(1, 0, report=None)], "Worker 1 of 2 ended with exit code 0. What"),
    ):
        with says(line):
            supervisor.check(given_workers, done=False)
    for each in (early := [worker(0, 2, "No such model."), worker(1, 2, "No such model.")]):
        each.progress = None
    with says("No such model."):
        supervisor.check(early, done=False)


def test_a_pool_deals_out_what_is_pending_and_takes_back(monkeypatch):
    plan = MagicMock(__len__=lambda _: 10, part=lambda number: SimpleNamespace(examples=5))
    monkeypatch.setattr(supervisor, "pending", lambda out, shard: list(range(8)))
    monkeypatch.setattr(supervisor, "read_plan", lambda folder: plan)
    told, both = [], [worker(0, None), worker(1, None)]
    pool = supervisor.Pool(both, "out", None, told.append)
    assert not pool.done()
    pool.heard(both[0])
    pool.heard(both[1])
    assert [w.process.stdin.getvalue().split() for w in both] == [list("012345"), list("67")]
    both[0].progress = both[0].progress._replace(unit=0, units=1, examples=5)
    pool.heard(both[0])
    assert (told[-1].units, told[-1].examples, told[-1].total, told[-1].before) == (1, 5, 50, 10)
    both[0].process.poll = lambda: -9
    pool.lost(both[0])
    assert both[1].process.stdin.getvalue().split() == list("671234")
    for unit in (6, 7, 1, 2, 3, 4, 5):
        both[1].progress = both[1].progress._replace(unit=unit)
        pool.heard(both[1])
    assert pool.done()
    both[0].stopped, both[0].process.kill = True, lambda: None
    pool.close()
    assert both[1].process.stdin.getvalue().split() == [*"6712345", "end"]


def test_reports_are_summed(tmp_path, monkeypatch):
    stores.write(tmp_path)
    monkeypatch.setattr(supervisor, "finish", lambda out: True)
    told = Progress(5, 20, 60, 7, 2.0, 0)
    slow = worker(1, -9, progress=Progress(5, 20, 40, 7, 4.0, 0))
    other = worker(2, 0, report=replace(REPORT, tokens=40, padding=0.5), progress=told._replace(tokens=40))
    found = supervisor.report_of([worker(0, 0, progress=told), slow, other], tmp_path, None, 5)
    assert (found.units, found.rows, found.complete) == (5, sum(stores.ROWS), True)
    done = (found.written, found.tokens, found.compilations, found.seconds, found.tokens_per_second)
    assert done == (5, 140, 2, 4.0, 35.0)
    assert found.padding == pytest.approx(1 - 100 / (80 + 80))  # of those that have said so
    half = supervisor.report_of([worker(0, 0, progress=told)], tmp_path, (1, 2), 2)
    assert (half.units, half.rows) == (2, stores.ROWS[1] + stores.ROWS[3])


def test_what_a_worker_writes_is_read(capsys):
    heard, one = [], worker(0, None)
    said = {"units": 2, "examples": 8, "tokens": 90, "bytes": 7, "seconds": 1.5, "before": 4, "total": None, "unit": 3}
    one.hear(json.dumps({"progress": said}) + "\n", lambda who: heard.append(who.progress))
    for line in ("no JSON at all\n", "7\n", "[]\n", '{"reports": 1}\n', '{"progress": {"uni'):
        one.hear(line, lambda who: heard.append("wrong"))
    assert heard == [Progress(2, 8, 90, 7, 1.5, 4, None, 3)]
    one.hear(json.dumps({"report": vars(REPORT)}), lambda who: heard.append("wrong"))
    assert one.report == REPORT
    one.overhear("error: Disk full.\n")
    one.overhear("a warning\n")
    assert one.error == "Disk full."
    assert capsys.readouterr().err == "[0] a warning\n"
    one.process.stdin.close()
    one.give([1, 2])  # it has died: no error here


# Units in hands: each is done by somebody, whoever dies and whoever is slow ---


def test_a_worker_has_so_many_at_a_time_in_order_and_those_of_a_dead_one_come_last():
    dealer = Dealer(range(100))
    assert dealer.deal("a") == list(range(IN_HAND))
    assert dealer.deal("b") == list(range(IN_HAND, 2 * IN_HAND))
    assert dealer.deal("a") == []
    dealer.committed("a", 1)
    assert dealer.deal("a") == [2 * IN_HAND]
    assert 1 not in dealer.left
    dealer = Dealer(range(IN_HAND + 2))
    dealer.deal("dead")
    dealer.committed("other", 0)
    dealer.lost("dead")
    assert dealer.deal("other") == [IN_HAND, IN_HAND + 1, 1, 2, 3, 4]
    dealer.lost("nobody")


def test_who_is_idle_takes_what_lies_last_in_the_hand_of_a_slow_one():
    dealer = Dealer([7, 8, 9])
    assert dealer.deal("slow") == [7, 8, 9]
    assert dealer.deal("idle") == [9]
    assert dealer.deal("idle") == []  # one at a time
    assert dealer.deal("third") == [8]  # what fewer have
    dealer.committed("idle", 9)
    assert dealer.deal("idle") == [7]
    dealer.committed("idle", 7)
    dealer.committed("third", 8)
    assert not dealer.left
    assert dealer.deal("idle") == []
    assert dealer.hands["slow"] == [7, 8, 9]  # it has not said so: it is at one of them


@pytest.mark.parametrize("seed", range(20))
def test_all_is_done_whoever_dies(seed):
    rng = random.Random(seed)
    dealer, alive, born = Dealer(range(50)), [0, 1, 2], 3
    hands = {}
    while dealer.left:
        worker = rng.choice(alive)
        hands.setdefault(worker, []).extend(dealer.deal(worker))
        if rng.random() < 0.1:
            dealer.lost(worker)
            alive[alive.index(worker)] = born = born + 1
        elif hands[worker]:
            dealer.committed(worker, hands[worker].pop(0))
        else:
            assert len(alive) > 1  # it waits for what others have, all of which it has overtaken already
    assert not dealer.waiting or set(dealer.waiting) <= set(range(50))
