"""Work in threads of its own: order, bounds, errors, and that nothing stays behind."""

import gc
import threading
import time
from queue import SimpleQueue

import numpy as np
import pytest

from llama_jax.plumbing.threads import Receiver, Worker, ahead, threaded
from llama_lab.activations.run import Supply
from tests.conftest import python


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if not isinstance(thread, Worker):  # workers have ended by now, others nobody waits for
            thread.join(timeout=10)
        assert not thread.is_alive(), thread


def numbers(n, made=None, closed=None):
    try:
        for i in range(n):
            if made is not None:
                made.append(i)
            yield i
    finally:
        if closed is not None:
            closed.append(True)


def squares(items):
    try:
        for i in items:
            yield i * i
    finally:
        items.close()


def piped(items, stages):
    for i in range(stages):
        items = ahead(squares(items) if i else items, 2)
    return items


@pytest.mark.parametrize("bound", [1, 2, 7])
def test_order_is_kept_through_stages(bound):
    items = numbers(300)
    for name in "abc":
        items = ahead(squares(items), bound, name)
    assert list(items) == [i**8 for i in range(300)]


@pytest.mark.parametrize("bound", [1, 3])
def test_no_more_than_the_bound_is_made_ahead(bound):
    made = []
    for i in (items := ahead(numbers(50, made), bound)):
        time.sleep(0.002)
        assert len(made) <= i + bound  # the item in the reader's hand counts
        if i == 20:
            break
    items.close()


def test_the_thread_starts_with_the_first_item_asked_for():
    made = []
    items = ahead(numbers(3, made), 2)
    time.sleep(0.01)
    assert made == []
    assert next(items) == 0
    items.close()


@pytest.mark.parametrize("stages", [1, 3])
def test_closing_early_ends_every_stage(stages):
    closed, made = [], []
    items = piped(numbers(10**9, made, closed), stages)
    assert next(items) == 0
    items.close()
    count = len(made)
    assert closed == [True]
    time.sleep(0.01)
    assert len(made) == count


def test_an_interrupt_while_a_thread_starts_leaves_none(monkeypatch):
    """Ctrl-C comes when the thread runs and its starter still waits to hear so."""

    def start(self):
        threading.Thread.start(self)
        raise KeyboardInterrupt

    closed = []
    monkeypatch.setattr(Worker, "start", start)
    with pytest.raises(KeyboardInterrupt):
        next(ahead(numbers(10**9, closed=closed), 2))
    assert closed == [True]


def failing(after):
    yield from range(after)
    raise ZeroDivisionError(f"after {after}")


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_an_error_comes_through_every_stage(stages):
    items = piped(failing(5), stages)
    with pytest.raises(ZeroDivisionError, match="after 5"):
        list(items)


def test_an_error_overtakes_what_is_unread():
    read = threading.Event()

    def produce(channel):
        for i in range(5):
            channel.put(i)
        read.wait()
        raise ZeroDivisionError("now")

    items = threaded(produce, None, "made")
    assert next(items) == 0
    read.set()
    time.sleep(0.05)  # four are unread
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_a_reader_blocked_on_a_silent_thread_hears_its_error():
    def produce(channel):
        time.sleep(0.05)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        next(threaded(produce, 1, "made"))


def test_a_generator_in_a_cycle_collected_by_a_worker_does_not_hang():
    """The garbage collector may close an iterator in any thread, that of its own worker included."""

    def produce(channel):
        while channel.room() and channel.put(0):
            gc.collect()

    class Holder:
        pass

    for _ in range(5):
        holder = Holder()
        holder.items, holder.me = threaded(produce, 1, "made"), holder
        next(holder.items)
        del holder
    deadline = time.monotonic() + 10
    while any(isinstance(t, Worker) for t in threading.enumerate()) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not any(isinstance(t, Worker) for t in threading.enumerate())


def test_a_supply_yields_none_when_nothing_comes_and_can_be_closed():
    given = SimpleQueue()
    supply = Supply(iter(given.get, "end"))
    items = iter(supply)
    given.put(1)
    assert next(filter(None, items)) == 1  # what comes late has a None before it
    assert next(items) is None  # nothing comes
    given.put(2)
    assert next(items) == 2
    ended = threading.Timer(0.1, supply.close)
    ended.start()
    assert list(items) in ([None], [])  # it would wait for ever
    given.put("end")
    assert list(filter(None, Supply([1, 2]))) == [1, 2]

    def fails():
        yield 1
        raise ZeroDivisionError

    items = filter(None, Supply(fails()))
    assert next(items) == 1
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_a_receiver_keeps_requests_apart_and_reports_that_nobody_waits():
    receiver, one, two = Receiver(), [], []
    with receiver.taking(lambda block: bool(one.append(block)) or True) as first:
        with receiver.taking(lambda block: bool(two.append(block))) as second:
            assert first != second
            assert not receiver(first, np.int32([1, 2]))
            assert receiver(second, np.int32([3, 4]))  # it wants no more
        assert receiver(second, np.int32([5, 6]))  # it is gone
    assert [b.tolist() for b in one] == [[[1, 2]]]
    assert [b.tolist() for b in two] == [[[3, 4]]]


LEAVE = """
import llama_jax as ll
from llama_jax import config
from llama_jax.checkpoint import random, tensors
tiny = config.tiny()
params = tensors.assemble(random.open_random(tiny, 0), "float32")
streams = [ll.stream(ll.bind(tiny, params, ll.parse(name)), [[1, 2]], 200) for name in ("loop+callback", "step+queue")]
print([len(next(s)) + len(next(s)) for s in streams])
"""


@pytest.mark.slow
def test_python_may_leave_while_streams_are_open():
    assert python(LEAVE)[0] == "[2, 2]"
