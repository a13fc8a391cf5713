"""No process outlives its parent, however the parent ends: SIGKILL, two signals at once, a crash."""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# `python -c FOLLOWER PARENT COMMAND…` becomes the command, which is told to end (SIGTERM) when its parent has ended
FOLLOWER = """import os, signal, sys
from llama_lab.bench import parent
parent.follow(int(sys.argv[1]), signal.SIGTERM)  # which a server hands on to the processes of its own
os.execv(sys.argv[2], sys.argv[2:])"""


def follow(number: int, sends: int = signal.SIGKILL) -> None:
    """From now on the kernel sends this process a signal when its parent, the process with that number, ends. On Linux
    only; elsewhere a child must notice that its output is no longer read."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sends)
    if os.getppid() != number:  # it ended before it could be followed
        os._exit(1)
