"""Work in separate threads, handed over in order: the basis of the host strategies "queue" and "callback" and of the
pipeline.

One thread produces, one reads, and whichever ends first ends the other. An error in the producing thread is raised in
the reader. A reader that leaves (a stop token, Ctrl-C, a dropped generator) stops the producing thread after its
current item.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from llama_jax.plumbing.errors import UserError

T = TypeVar("T")
END = object()


TURN_S = 0.0005  # of Python's own 5 ms a thread whose calls are shorter waits longer than it works


@contextlib.contextmanager
def in_short_turns() -> Iterator[None]:
    """Inside, other threads, which leave Python for some milliseconds at a time, wait less for this one."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Channel:
    """The channel from a producing thread to its reader. An item counts against the bound until the reader asks for the
    next.

    Slots are a queue, not a semaphore: Ctrl-C may raise inside a semaphore, which is written in Python, and leave its
    lock taken.
    """

    def __init__(self, bound: int | None):
        self.items: SimpleQueue = SimpleQueue()
        self.slots: SimpleQueue | None = None if bound is None else SimpleQueue()
        for _ in range(bound or 0):
            self.slots.put(None)
        self.closed, self.error = False, None

    def room(self) -> bool:
        """Wait until the reader has room for an item; False once it has left."""
        if self.slots and not self.closed:
            self.slots.get()
        return not self.closed

    def put(self, item) -> bool:
        """Hand an item over, without waiting; False once the reader has left."""
        self.items.put(item)
        return not self.closed

    def end(self, error: BaseException | None = None) -> None:
        """End the channel. An error overtakes the items that are still unread."""
        self.error = error
        self.items.put(END)

    def close(self) -> None:
        """The reader leaves: wakes the producing thread."""
        self.closed = True
        if self.slots:
            self.slots.put(None)

    def __iter__(self) -> Iterator:
        while True:
            if self.error:
                raise self.error
            item = self.items.get()
            if item is END or self.error:
                break
            yield item
            if self.slots:
                self.slots.put(None)
        if self.error:
            raise self.error


class Worker(threading.Thread):
    """A thread that fills a channel. Threads started in it end before it does."""

    def __init__(self, produce: Callable[[Channel], None], channel: Channel, name: str):
        super().__init__(name=name, daemon=True)
        self.produce, self.channel, self.started = produce, channel, []
        here = threading.current_thread()
        if isinstance(here, Worker):
            here.started = [w for w in here.started if w.is_alive()] + [self]
        ALIVE.add(self)

    def run(self) -> None:
        error = None
        try:
            self.produce(self.channel)
        except BaseException as caught:  # whatever it is, the reader must hear of it
            error = caught
        for worker in self.started:
            worker.join()
        self.channel.end(error)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM after the block. `Thread.start` takes locks in Python, and an exception between two of
    its lines leaves one taken for ever: the thread then never begins, or never ends."""
    here = threading.current_thread() is threading.main_thread()  # no other runs handlers
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)} if here else {}
    handlers = {s: handler for s, handler in handlers.items() if callable(handler)}
    heard = []
    try:
        for s in handlers:
            signal.signal(s, lambda *given: heard.append(given))
        yield
    finally:
        for s, handler in handlers.items():
            signal.signal(s, handler)
        for number, frame in heard:
            handlers[number](number, frame)


ALIVE: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def end_all() -> None:
    """End the threads of open iterators when Python exits: a compiled loop must not call into an interpreter that is
    gone."""
    workers = [w for w in ALIVE if w.is_alive()]
    for worker in workers:
        worker.channel.close()
    for worker in workers:
        worker.join()


def threaded(produce: Callable[[Channel], None], bound: int | None, name: str) -> Iterator:
    """The items that `produce(channel)` puts into its channel from its own thread, in order. The thread starts when the
    first item is requested.

    bound: items produced but not finished with, None for any number. Raises at once what the thread raises. Closing the
    iterator ends the thread, and returns when it has ended.
    """
    channel = Channel(bound)
    worker = Worker(produce, channel, name)
    try:
        with uninterrupted():
            worker.start()
        yield from channel
    finally:
        channel.close()
        # in another worker this may be the garbage collector, where waiting could be for ever: a worker joins at its
        # end
        if worker.is_alive() and not isinstance(threading.current_thread(), Worker):
            worker.join()


def ahead(items: Generator[T], bound: int, name: str = "ahead") -> Iterator[T]:
    """The items of a generator, made in its own thread, at most `bound` of them ahead of the reader."""

    def produce(channel: Channel) -> None:
        with contextlib.closing(items):
            while channel.room() and (item := next(items, END)) is not END and channel.put(item):
                pass

    return threaded(produce, bound, name)


class ComputingProcess:
    """The process that computes first. A fork of it has neither XLA's threads nor ours, and would wait for them for
    ever."""

    def __init__(self):
        self.pid: int | None = None

    def begin(self) -> None:
        """This process computes. Raises UserError in a fork of one that has."""
        self.check()
        self.pid = os.getpid()

    def check(self) -> None:
        """Raises UserError in a fork of a process that has computed."""
        if self.pid not in (None, os.getpid()):
            raise UserError(
                "This process is a fork of one that has used JAX, which does not survive it; start children with"
                " multiprocessing.get_context('spawn')."
            )


COMPUTING = ComputingProcess()


class Receiver:
    """Takes tokens out of compiled programs while they run, for `jax.experimental.io_callback`.

    A program keeps one receiver for good, so a new request needs no new program. The number that a request passes as an
    argument identifies its tokens. Requests may run concurrently.
    """

    def __init__(self):
        self.takers: dict[int, Callable[[np.ndarray], bool]] = {}
        self.numbers = itertools.cycle(range(1, 2**31))

    @contextlib.contextmanager
    def taking(self, take: Callable[[np.ndarray], bool]) -> Iterator[np.int32]:
        """A request's number, int32, while its tokens go to `take(tokens [1 B])`, which says whether more are
        wanted."""
        number = next(self.numbers)
        self.takers[number] = take
        try:
            yield np.int32(number)
        finally:
            del self.takers[number]

    def __call__(self, number, token) -> np.ndarray:
        """Called by the program with each row's token [B]: bool, whether no reader waits for more."""
        take = self.takers.get(int(number))
        return np.bool_(take is None or not take(np.array(token)[None]))
