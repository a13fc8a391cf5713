"""The compile guard: counts every trace, lowering and backend compilation between its `with` lines.

It listens to JAX's own monitoring events. A backend event also fires when the program came from the persistent cache,
so XLA's own compilations are `backend - cache_hits`. Any lowering or backend event in a timed region voids the trial:
a committed argument where an uncommitted one was can compile with no trace event at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax import monitoring

DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "backend",
}
COUNTS = {"/jax/compilation_cache/cache_hits": "hit", "/jax/compilation_cache/cache_misses": "miss"}


@dataclass(frozen=True)
class Event:
    kind: str  # trace, lower, backend, hit, miss
    name: str  # the function, where JAX says
    seconds: float


class Guard:
    """Use as `with Guard() as guard: ...`, then read `guard.fired`, `guard.count(kind)`, `guard.seconds(kind)`.

    Guards nest: each sees all events of its own region. Events of every thread count. Other listeners stay registered.
    """

    def __init__(self):
        self.events: list[Event] = []

    def __enter__(self) -> Guard:
        monitoring.register_event_duration_secs_listener(self._on_duration)
        monitoring.register_event_listener(self._on_event)
        return self

    def __exit__(self, *exception) -> None:
        monitoring.unregister_event_duration_listener(self._on_duration)
        monitoring.unregister_event_listener(self._on_event)

    def _on_duration(self, event: str, seconds: float, **details) -> None:
        if kind := DURATIONS.get(event):
            name = str(details.get("fun_name", ""))  # plain when traced, jit(name) when lowered and compiled
            self.events.append(Event(kind, name[4:-1] if name.startswith("jit(") else name, seconds))

    def _on_event(self, event: str, **details) -> None:
        if kind := COUNTS.get(event):
            self.events.append(Event(kind, "", 0.0))

    def count(self, kind: str) -> int:
        return sum(e.kind == kind for e in self.events)

    def seconds(self, kind: str) -> float:
        return sum(e.seconds for e in self.events if e.kind == kind)

    @property
    def compilations(self) -> int:
        """Programs that XLA compiled: backend events that no persistent-cache hit explains."""
        return self.count("backend") - self.count("hit")

    @property
    def fired(self) -> bool:
        """Whether anything was lowered or compiled: a time taken here is void."""
        return bool(self.count("lower") or self.count("backend"))

    @property
    def names(self) -> list[str]:
        """Functions that were lowered or compiled, each once, in order."""
        return list(dict.fromkeys(e.name for e in self.events if e.kind in ("lower", "backend") and e.name))

    @property
    def reason(self) -> str:
        """One line that says what fired, or nothing."""
        if not self.fired:
            return ""
        names = ", ".join(self.names[:3]) + (" …" if len(self.names) > 3 else "")
        return f"compiled in the timed region: {self.count('backend')} programs ({names})"
