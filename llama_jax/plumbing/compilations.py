"""What JAX says of its own compiling, while it happens, in every thread."""

from __future__ import annotations

import contextlib
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
    """How many programs XLA compiled, from the kinds of all events: what came from the persistent cache is none."""
    return kinds.count("backend") - kinds.count("hit")
