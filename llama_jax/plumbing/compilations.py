"""Listens to JAX's own reports of compilation, in every thread."""

from __future__ import annotations

import bisect
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator

from jax import monitoring

try:
    from jax.monitoring import unregister_event_duration_listener, unregister_event_listener
except ImportError:  # before 0.8
    from jax._src.monitoring import (
        _unregister_event_duration_listener_by_callback as unregister_event_duration_listener,
    )
    from jax._src.monitoring import _unregister_event_listener_by_callback as unregister_event_listener

DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "backend",
}
COUNTS = {"/jax/compilation_cache/cache_hits": "hit", "/jax/compilation_cache/cache_misses": "miss"}


@contextlib.contextmanager
def heard(tell: Callable[[str, str, float], None]) -> Iterator[None]:
    """Calls tell(kind, name, seconds) for each event inside.

    kind: trace, lower, backend; and hit or miss of the persistent cache. A backend event comes with a hit too. name:
    the function, where JAX says it. Other listeners stay registered.
    """

    def on_duration(event: str, seconds: float, **details) -> None:
        if kind := DURATIONS.get(event):
            name = str(details.get("fun_name", ""))  # plain when traced, jit(name) when lowered and compiled
            tell(kind, name[4:-1] if name.startswith("jit(") else name, seconds)

    def on_event(event: str, **details) -> None:
        if kind := COUNTS.get(event):
            tell(kind, "", 0.0)

    with contextlib.ExitStack() as stack:
        monitoring.register_event_duration_secs_listener(on_duration)
        stack.callback(unregister_event_duration_listener, on_duration)
        monitoring.register_event_listener(on_event)
        stack.callback(unregister_event_listener, on_event)
        yield


def compiled(kinds: list[str]) -> int:
    """How many programs XLA compiled, from the kinds of all events; programs from the persistent cache do not count."""
    return kinds.count("backend") - kinds.count("hit")


class Stretches:
    """Spans of time on the clock of `time.perf_counter`, joined where they overlap, in the order of their ends."""

    def __init__(self):
        self.begins: list[float] = []
        self.ends: list[float] = []
        self.lock = threading.Lock()

    def add(self, begin: float, end: float) -> None:
        """Add a span that ends now."""
        with self.lock:
            while self.ends and self.ends[-1] >= begin:
                begin = min(begin, self.begins.pop())
                self.ends.pop()
            self.begins.append(begin)
            self.ends.append(end)

    def within(self, begin: float, end: float) -> float:
        """Seconds of all spans between two times."""
        with self.lock:
            first = bisect.bisect_right(self.ends, begin)
            pairs = zip(self.begins[first:], self.ends[first:], strict=True)
            return sum(max(0.0, min(e, end) - max(b, begin)) for b, e in pairs)


class Watch:
    """When this process compiled, from the first look on. compiling: tracing, lowering, compiling, and reading JAX's
    own cache. keeping: reading and writing programs elsewhere (`keeping`). programs: both, without tracing, which also
    happens when nothing is compiled."""

    def __init__(self):
        self.compiling, self.keeping, self.programs = Stretches(), Stretches(), Stretches()

    def hear(self, kind: str, name: str, seconds: float) -> None:
        now = time.perf_counter()
        (self.keeping if kind == "keep" else self.compiling).add(now - seconds, now)
        if kind in ("lower", "backend", "keep"):
            self.programs.add(now - seconds, now)


@functools.cache
def watch() -> Watch:
    """The process's own watch, which listens from now on."""
    made = Watch()
    made.listening = heard(made.hear)
    made.listening.__enter__()  # and never left
    return made


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Wrap reading or writing of compiled programs that JAX does not know of: a step in which that happens does not
    count as warm."""
    began = time.perf_counter()
    try:
        yield
    finally:
        watch().hear("keep", "", time.perf_counter() - began)
