"""Tasks for the children of tests: each goes wrong in its own way."""

import atexit
import os
import signal
import sys
import time

from llama_jax.plumbing.errors import UserError


def answer(say, **given):
    print("a library prints this")
    say("seen", sorted(given))
    cores = sorted(os.sched_getaffinity(0))
    return dict(given=given, cores=cores, environment=dict(os.environ), pid=os.getpid())


def killed(say):
    say("starting", {"what": "x"})
    sys.stderr.write("first line\nthe last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def silent(say):
    sys.stderr.write("about to wait\n")
    sys.stderr.flush()
    os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "300")
    time.sleep(300)


def asleep(say):
    say("here", os.getpid())
    time.sleep(300)


def raising(say):
    raise ZeroDivisionError("in the child")


def refusing(say):
    raise UserError("There is no such thing; give another.")


def ticking(say):
    """perf_counter is the machine's own clock, the same in parent and child."""
    times = []
    for i in range(3):
        say("tick", i)
        times.append(time.perf_counter())
    return {"times": times}


def stumbling(say):
    atexit.register(os.abort)
    return {"done": True}


def mumbling(say):
    os.write(2, b"caf\xe9 \xe2\x80\x94 end")
    os._exit(3)
