"""Threads that share a token, in real processes: one core, more threads than cores, Ctrl-C, and children of a process
that decodes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from llama_jax.plumbing import paths
from tests.conftest import python

pytestmark = pytest.mark.slow
LIMIT = 200  # seconds after which a process hangs
MODEL = "random:smollm2-135m,num_hidden_layers=2,vocab_size=3001"
DIGEST = """
import hashlib, glob, json, sys, threading
import numpy as np, jax, llama_jax as ll
from llama_jax import generate
checkpoint = ll.load("MODEL")
def digest(name, i=0):
    engine = engines[name]
    answer = ll.answer(engine, [[5, 9, 33, i]], 40)[0].token_ids
    logits = np.asarray(generate.logits(engine, [1, 2, 3, 5, 8, 13, 21, i]))
    return hashlib.sha256(logits.tobytes() + repr(answer).encode()).hexdigest()
engines = {name: ll.build(checkpoint, name) for name in ("step+fused", "loop+fused", "loop+gemv")}
""".replace("MODEL", MODEL)
PRINT = """
alone = {f"{name} {i}": digest(name, i) for name in engines for i in range(2)}
together = {}
def run(name, i):
    together[f"{name} {i}"] = digest(name, i)
threads = [threading.Thread(target=run, args=(name, i)) for name in engines for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
def comm(path):
    try:
        return open(path).read().strip()
    except OSError:  # this thread has ended since it was listed
        return ""
pool = sum(comm(path) == "tf_XLAEigen" for path in glob.glob("/proc/self/task/*/comm"))
print(json.dumps(dict(alone=alone, together=together, pool=pool)))
"""


def outcome(code, *before, **settings):
    """The JSON that a process prints, which has `digest` and its engines."""
    return json.loads(python(DIGEST + code, before=before, limit=LIMIT, **settings)[0].splitlines()[-1])


def test_one_core_and_more_threads_than_cores_give_the_same_bits():
    """Six decodes one after the other and all at once, on one core, on as many threads as cores, and on four times as
    many."""
    usual = outcome(PRINT)
    assert usual["together"] == usual["alone"]
    assert len(set(usual["alone"].values())) == 4  # two prompts; steps and the loop are of one mind
    many = outcome(PRINT, NPROC="8")
    assert many["pool"] >= 8
    assert many["alone"] == many["together"] == usual["alone"]
    if shutil.which("taskset"):
        for settings in ({}, dict(NPROC="4")):  # one thread, and four threads of a team, on one core
            pinned = outcome(PRINT, "taskset", "-c", str(min(os.sched_getaffinity(0))), **settings)
            assert pinned["alone"] == pinned["together"] == usual["alone"]


AFFINITY = """
import os, time
mine = sorted(os.sched_getaffinity(0))
def everywhere(cores):  # of every thread that there is, as `taskset -a -p` sets it from outside
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), cores)
        except ProcessLookupError:
            pass
usual, stop, taken = {name: digest(name) for name in engines}, threading.Event(), 0
def take():
    global taken
    while not stop.wait(0.003):
        taken += 1
        everywhere(mine[:1] if taken % 2 else mine)
thread = threading.Thread(target=take)
thread.start()
meanwhile = [{name: digest(name) for name in engines} == usual for _ in range(3)]
stop.set()
thread.join()
everywhere(mine[:1])
after = {name: digest(name) for name in engines} == usual
print(json.dumps(dict(meanwhile=meanwhile, after=after, often=taken > 9)))
"""


@pytest.mark.parametrize(
    "changes", [{}, dict(NPROC="4", OMP_NUM_THREADS="1", KMP_AFFINITY="compact", GOMP_CPU_AFFINITY="0")]
)
def test_cores_that_are_taken_away_and_given_back_while_it_runs_change_no_bit(changes):
    assert outcome(AFFINITY, **changes) == dict(meanwhile=[True] * 3, after=True, often=True)


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background is started deaf to it
engine = engines[sys.argv[1]]
print("ready", flush=True)
try:
    while True:
        for block in ll.stream(engine, [[1, 2, 3]], 4000, length=16, slots=4096):
            pass
except KeyboardInterrupt:
    print("interrupted", digest("step+fused") == digest("step+fused"), flush=True)
    sys.exit(130)
"""


@pytest.mark.parametrize("name", ["loop+fused", "step+fused"])
def test_ctrl_c_ends_a_decode_and_leaves_the_kernels_whole(name):
    """A loop in one call ends with that call, as `loop` does without kernels; then everything still works."""
    command, pipe = [sys.executable, "-c", DIGEST + INTERRUPTED, name], subprocess.PIPE
    env = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    process = subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "interrupted True\n"), err[-2000:]


CHILDREN = """
import multiprocessing, os, subprocess
def work(n):
    return sum(range(n))
expected = digest("step+fused")
stop, digests = threading.Event(), []
def decode():
    while not stop.is_set():
        digests.append(digest("step+fused"))
thread = threading.Thread(target=decode)
thread.start()
with multiprocessing.get_context("fork").Pool(2) as pool:  # children that do not use JAX, forked while threads decode
    sums = pool.map(work, [10, 1000, 100000])
other = subprocess.run([sys.executable, "-c", "from llama_jax.kernels import gemv;"
                        "from tests.kernels.test_gemv import *;"
    "x, w = activations(2, 64), weight('q4_0', 20, 64); close(gemv.product(x, w.data, w.shape), x, w); print('right')"],
    capture_output=True, text=True, timeout=LIMIT)
child = os.fork()  # one that ends at once, as if it had failed before it started anything
if child == 0:
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
stop.set()
thread.join()
print(json.dumps(dict(sums=sums, other=other.stdout.strip() or other.stderr, status=status,
                      same=set(digests) == {expected}, n=len(digests), after=digest("step+fused") == expected)))
""".replace("LIMIT", str(LIMIT))


def test_children_of_a_process_that_decodes():
    children = outcome(CHILDREN)
    assert children.pop("n") > 0
    assert children == dict(sums=[45, 499500, 4999950000], other="right", status=7, same=True, after=True)


LEAVING = """
threads = [threading.Thread(target=digest, args=(name,)) for name in engines]
[t.start() for t in threads]
[t.join() for t in threads]
digest("step+fused")
print(json.dumps("leaving"), flush=True)
"""


def test_a_process_that_ends_right_after_a_decode_ends_well():
    """The object code stays in its place until the very end: helpers may still be on their way to it."""
    for _ in range(3):
        assert outcome(LEAVING) == "leaving"
