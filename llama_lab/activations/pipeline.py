"""One call of `extract` that is given its units as they come: what an engine keeps in each of its workers.

    pipeline = Pipeline(partial(extract, extractor, source, out))
    pipeline.do(7)      # in any thread; returns when unit 7 is committed

As many threads as wait in `do` are as many units that reading, computing and writing overlap in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from llama_lab.activations.run import Progress, RunReport

END = object()
SPENT = ("units", "examples", "tokens", "bytes", "seconds", "before")


class Pipeline:
    """extract: called once, in a thread of its own, with `units=` and `progress=`. What it raises is raised by every
    `do` that waits, and by every later one."""

    def __init__(self, extract: Callable[..., RunReport]):
        self.extract, self.lock = extract, threading.Lock()
        self.asked: SimpleQueue[int | object] = SimpleQueue()
        self.waiting: dict[int, Future[Progress]] = {}
        self.last: Progress | None = None
        self.ended: Future[RunReport] = Future()
        threading.Thread(target=self._run, name="pipeline", daemon=True).start()

    def do(self, unit: int) -> Progress:
        """Have a unit committed; what that took: a `Progress` of it alone. Raises what `extract` raised."""
        with self.lock:
            if self.ended.done():
                self.ended.result()
                raise RuntimeError("the pipeline has been ended")
            if unit not in self.waiting:
                self.waiting[unit] = Future()
                self.asked.put(unit)
            waited = self.waiting[unit]
        return waited.result()

    def end(self) -> RunReport:
        """No more units: the report of all."""
        self.asked.put(END)
        return self.ended.result()

    def _run(self) -> None:
        try:
            report = self.extract(units=iter(self.asked.get, END), progress=self._heard)
        except BaseException as error:  # whatever it is, those who wait must hear of it
            with self.lock:
                self.ended.set_exception(error)
                for waited in self.waiting.values():
                    waited.set_exception(error)
        else:
            self.ended.set_result(report)

    def _heard(self, done: Progress) -> None:
        with self.lock:
            before, self.last = self.last, done
            if done.unit is None or (waited := self.waiting.pop(done.unit, None)) is None:
                return
            spent = {name: getattr(done, name) - getattr(before, name) for name in SPENT}
            waited.set_result(done._replace(**spent))
