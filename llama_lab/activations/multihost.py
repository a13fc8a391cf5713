"""Several processes over one mesh, for a model larger than a device: each step needs all of them.

Without a mesh no process needs another, and nothing here is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from llama_jax.plumbing.errors import UserError

T = TypeVar("T")
JOIN = 120  # seconds that all processes have to meet
HEARTBEAT = 30  # seconds without one, and a process counts as dead: the others end


def join(seconds: int = JOIN) -> None:
    """Meet the other processes that SLURM, Open MPI, Kubernetes, a TPU pod, whatever `jax.distributed.initialize`
    detects, has started. Must come before anything that JAX computes.

    Raises UserError where no launcher is detected; where the others do not answer in time the process ends with one
    line and exit code 2, because JAX's runtime would end it with a core dump.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    with deadline(
        seconds,
        f"error: The other processes of the mesh did not answer within {seconds} s; start all of them, and check that"
        " they reach each other.",
    ):
        try:
            jax.distributed.initialize(initialization_timeout=2 * seconds, heartbeat_timeout_seconds=HEARTBEAT)
            jax.devices()  # here the processes tell each other their devices
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "No launcher is detected here; start every process of a mesh by srun, mpirun or on a TPU pod"
                f" ({type(error).__name__}: {error})."
            ) from error
        except RuntimeError as error:
            raise UserError(f"JAX could not start as one of several processes: {str(error).splitlines()[0]}") from error


@contextlib.contextmanager
def deadline(seconds: float, line: str) -> Iterator[None]:
    """End the process with one line and exit code 2 where the body takes longer."""

    def give_up() -> None:
        print(line, file=sys.stderr, flush=True)
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def agreed(value: T) -> T:
    """The first process's value, in all of them: JSON values. All must call it."""
    if jax.process_count() == 1:
        return value
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(content.size)))
    received = multihost_utils.broadcast_one_to_all(np.resize(content, size))
    return json.loads(received.astype(np.uint8).tobytes())


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """A process that fails while others wait for it leaves at once: an orderly exit would first wait for them."""
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized() or isinstance(error, SystemExit):
            raise
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr, flush=True)
        elif not isinstance(error, KeyboardInterrupt):
            traceback.print_exc()
        sys.stdout.flush()
        os._exit({UserError: 2, KeyboardInterrupt: 130}.get(type(error), 1))
