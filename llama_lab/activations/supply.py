"""Examples from an iterator that may wait for ever, each asked for when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

T = TypeVar("T")
END = object()
PATIENCE = 0.01  # seconds


class Supply:
    """The items of an iterator that may wait for ever, each asked for when it is needed, in a thread that nobody waits
    for; None once where an item does not come at once. `close` ends who waits for the next item, and lets go of the
    iterator at its next one."""

    def __init__(self, items: Iterable[T]):
        self.items: SimpleQueue = SimpleQueue()
        self.wanted, self.closed = threading.Semaphore(0), False
        threading.Thread(target=self.fetch, args=(iter(items),), name="supply", daemon=True).start()

    def fetch(self, items: Iterator[T]) -> None:
        item: object = None
        while item is not END and not isinstance(item, Failed):
            self.wanted.acquire()
            if self.closed:
                return
            try:
                item = next(items, END)
            except BaseException as error:  # whatever it is, the reader must hear of it
                item = Failed(error)
            self.items.put(item)

    def __iter__(self) -> Iterator[T | None]:
        while not self.closed:
            self.wanted.release()
            try:
                item = self.items.get(timeout=PATIENCE)
            except Empty:
                yield None
                item = self.items.get()
            if isinstance(item, Failed):
                raise item.error
            if item is END:
                return
            yield item

    def close(self) -> None:
        self.closed = True
        self.items.put(END)
        self.wanted.release()


class Failed(NamedTuple):
    """Instead of an item: what was raised."""

    error: BaseException
