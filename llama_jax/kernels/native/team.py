"""Threads that share work: the caller, and helpers that XLA's pool sends when it has them.

Work is a list of phases, each with a number of parts. A thread takes free parts, first those meant for it, so that it
reads on where it stopped. When no part is left, it waits, spinning and then yielding, until those taken are done, and
continues with the next phase. So the caller alone can finish everything; a helper may come late (it runs through the
finished phases) or never; and a thread that is not running delays the others only by the part that it holds. Nothing
depends on the number of cores.

A helper that has taken a part knows that its phase is not over, so nothing of a later phase has been written, and what
it read before is valid. A helper that comes too late for a part may have read anything, and discards it.

State in bytes: 0 holders, 8 closed, 16 inside, 24 helpers that came, 32… parameters, 512… phases of 128 bytes each:
taken, done (+64).
"""

from __future__ import annotations

from llama_jax.kernels.native.ffi import pool_threads, scheduled
from llama_jax.kernels.native.machine import (
    fetch_add,
    fetch_or,
    free,
    function,
    load_i64,
    load_shared,
    malloc,
    pause,
    sched_yield,
    store_i64,
)
from llama_jax.kernels.native.octets import prefetch

CLOSED, INSIDE, CAME, PARAMETERS, PHASES, PHASE = 8, 16, 24, 32, 512, 128
MOST = 64  # parts of a phase that are taken by name: a bit each
SPINS = 2000  # pauses before a waiting thread lets others run: some 50 microseconds


@function
def assembled(phases, room):
    """A state for this many phases with `room` bytes of shared memory after them, zeroed where necessary; 0 when out of
    memory."""
    state = malloc(PHASES + PHASE * phases + room)
    if state != 0:
        for at in range(0, PHASES + PHASE * phases, 8):
            store_i64(state + at, 0)
        store_i64(state, 1)
    return state


@function
def shared(state, phases):
    """Where the shared memory begins."""
    return state + PHASES + PHASE * phases


@function
def threads(frame, most):
    """How many threads can work at once, the caller included: as many as XLA's pool has."""
    return max(min(pool_threads(frame), most), 1)


@function
def invite(frame, state, task, helpers):
    """Ask XLA's pool to send helpers. Everything that they read must be in the state by now."""
    for _ in range(helpers):
        fetch_add(state, 1)
        if not scheduled(frame, task, state):
            fetch_add(state, -1)
            return


@function
def enter(state):
    """A helper's first act: its number, from 1 on, or 0 if the work is over."""
    fetch_add(state + INSIDE, 1)
    return fetch_add(state + CAME, 1) + 1 if load_shared(state + CLOSED) == 0 else 0


@function
def leave(state):
    """A helper's last act."""
    fetch_add(state + INSIDE, -1)
    release(state)


@function
def dismiss(state):
    """The caller's last act: after this, helpers touch only the state, and the last one to leave frees it."""
    fetch_add(state + CLOSED, 1)
    while load_shared(state + INSIDE) != 0:
        pause()
        sched_yield()
    release(state)


@function
def release(state):
    if fetch_add(state, -1) == 1:
        free(state)


@function
def parameter(state, i):
    return load_i64(state + PARAMETERS + 8 * i)


@function
def set_parameter(state, i, value):
    store_i64(state + PARAMETERS + 8 * i, value)


@function
def over(state, phase, parts):
    return load_shared(state + PHASES + PHASE * phase + 64) >= parts


@function
def take(state, phase):
    """The number of the part that this thread now does; if it is not below the number of parts, none is left."""
    return fetch_add(state + PHASES + PHASE * phase, 1)


@function
def take_own(state, phase, parts, first):
    """As `take`, of at most MOST parts, beginning at `first` and going round."""
    at = state + PHASES + PHASE * phase
    taken = load_shared(at)
    for i in range(parts):
        part = (first + i) % parts
        bit = 1 << part
        if taken & bit == 0:
            taken = fetch_or(at, bit)
            if taken & bit == 0:
                return part
    return parts


@function
def done(state, phase):
    fetch_add(state + PHASES + PHASE * phase + 64, 1)


@function
def wait(state, phase, parts, ahead, lines):
    """Wait until all parts are done, and meanwhile prefetch up to `lines` times 64 bytes from `ahead` on."""
    spins = 0
    while not over(state, phase, parts):
        if spins < lines:
            prefetch(ahead + 64 * spins)
        else:
            pause()
        spins += 1
        if spins > SPINS + lines:
            sched_yield()


@function
def share(whole, parts, part):
    """Where the part-th of `parts` nearly equal shares of `whole` begins."""
    return whole * part // parts
