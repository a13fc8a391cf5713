"""The compile guard: counts every trace, lowering and backend compilation between its `with` lines.

It listens to JAX's own monitoring events. A backend event also fires when the program came from the persistent cache,
so XLA's own compilations are `backend - cache_hits`. Any lowering or backend event in a timed region voids the trial:
a committed argument where an uncommitted one was can compile with no trace event at all.

`TorchCounter` and `TorchGuard` do the same for PyTorch: one counts what is compiled or captured, the other also forbids
it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax

from llama_jax.plumbing import compilations
from llama_lab.bench import COMPILED

NO_RETRACE = (
    "no retrace: an argument differs in where it lives or how it is laid out (committed or not, device, sharding)"
)
NO_LOWERING = "compiled ahead of time, from a program that was lowered before"
UNEXPLAINED = "traced anew; JAX gives no reason"


@dataclass(frozen=True)
class Event:
    kind: str  # trace, lower, backend, hit, miss, capture
    name: str  # the function, where JAX says
    seconds: float
    thread: str  # name of the thread that it happened in


class Region:
    """Events between the `with` lines, and what they mean for a time taken there."""

    def __init__(self):
        self.events: list[Event] = []

    def add(self, kind: str, name: str = "", seconds: float = 0.0) -> None:
        self.events.append(Event(kind, name, seconds, threading.current_thread().name))

    cause = ""  # why, where that is known

    def count(self, kind: str) -> int:
        return sum(e.kind == kind for e in self.events)

    def seconds(self, kind: str) -> float:
        return sum(e.seconds for e in self.events if e.kind == kind)

    @property
    def compilations(self) -> int:
        """Programs compiled (backend events that no persistent-cache hit explains) and CUDA graphs captured."""
        return compilations.compiled([e.kind for e in self.events]) + self.count("capture")

    @property
    def backend_seconds(self) -> float:
        return self.seconds("backend") + self.seconds("capture")

    @property
    def fired(self) -> bool:
        """Whether anything was lowered, compiled or captured: a time taken here is void."""
        return any(e.kind in ("lower", "backend", "capture") for e in self.events)

    @property
    def names(self) -> list[str]:
        """Functions that were lowered, compiled or captured, each once, in order."""
        return list(dict.fromkeys(e.name for e in self.events if e.kind in ("lower", "backend", "capture") and e.name))

    @property
    def reason(self) -> str:
        """One line that says what fired, or nothing."""
        if not self.fired:
            return ""
        names = ", ".join(self.names[:3]) + (" …" if len(self.names) > 3 else "")
        others = ", ".join(sorted({e.thread for e in self.events} - {"MainThread"}))
        captures = self.count("capture")
        programs = self.count("backend")
        what = f"{captures} CUDA graphs captured" if captures else f"{COMPILED}: {programs} programs"
        return f"{what} ({names})" + (f" in thread {others}" if others else "")


class Guard(Region):
    """Use as `with Guard() as guard: ...`, then read `guard.fired`, `guard.reason`, `guard.count(kind)`,
    `guard.seconds(kind)`.

    Guards nest: each sees all events of its own region. Events of every thread count. Other listeners stay registered.
    explain: also keep JAX's own explanation of each miss (`jax_explain_cache_misses`), see `cause`. It costs time only
    when something is traced again, but that time falls into the region.
    """

    def __init__(self, explain: bool = False):
        super().__init__()
        self.explanations = Explanations() if explain else None

    def __enter__(self) -> Guard:
        self.stack = contextlib.ExitStack()
        if self.explanations:
            self.stack.enter_context(self.explanations.collected())
        self.stack.enter_context(compilations.heard(self.add))
        return self

    def __exit__(self, *exception) -> None:
        self.stack.close()

    @property
    def cause(self) -> str:
        """Why things were compiled, as JAX explains it, one line per miss; "" when silent or not asked for."""
        if not self.explanations or not self.fired:
            return ""
        if not self.count("trace"):  # JAX then speaks of helpers that lowering made at most, never of the program
            return NO_RETRACE if self.count("lower") else NO_LOWERING
        return " | ".join(self.explanations.messages) or UNEXPLAINED


class Explanations(logging.Handler):
    """Collects what `jax_explain_cache_misses` logs; the setting is put back afterwards."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        before, logger = jax.config.jax_explain_cache_misses, logging.getLogger("jax")
        jax.config.update("jax_explain_cache_misses", True)
        logger.addHandler(self)
        yield
        logger.removeHandler(self)
        jax.config.update("jax_explain_cache_misses", before)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "CACHE MISS" in message:
            self.messages.append(" ".join(message.split()))


class TorchCounter(Region):
    """Counts what PyTorch compiles and captures, with the seconds it took, and forbids nothing: for a first request.

    Dynamo reports its compilations (`torch._dynamo.callback`), including Inductor's part; of nested ones the outermost
    counts. TorchScript and captures of CUDA graphs are observed by wrapping `torch.jit.script`,
    `torch.cuda.CUDAGraph.capture_begin` and `capture_end`. A compiled program from a disk cache counts too.
    """

    def __enter__(self) -> TorchCounter:
        import torch
        import torch._dynamo  # seconds, which must not fall into what is timed

        self.stack, self.pending = contextlib.ExitStack(), {"dynamo": [], "script": [], "capture": []}
        handler, graph = torch._dynamo.callback.callback_handler, torch.cuda.CUDAGraph
        for add, remove, callback in (
            (handler.register_start_callback, handler.remove_start_callback, self._on_start),
            (handler.register_end_callback, handler.remove_end_callback, self._on_end),
        ):
            add(callback)
            self.stack.callback(remove, callback)
        self._wrap(graph, "capture_begin", before=lambda *_: self._begin("capture"))
        self._wrap(graph, "capture_end", after=lambda *_: self._end("capture", "CUDA graph"))
        self._wrap(torch.jit, "script", before=lambda *_: self._begin("script"), after=self._on_script)
        return self

    def __exit__(self, kind, error, traceback) -> bool | None:
        self.stack.close()
        while self.pending["capture"]:  # one that was never ended
            self._end("capture", "CUDA graph")
        self._name()

    def _wrap(self, owner, name: str, before: Callable = lambda *_: None, after: Callable = lambda *_: None) -> None:
        original = getattr(owner, name)

        def wrapped(*args, **options):
            before(*args)
            result = original(*args, **options)
            after(*args)
            return result

        setattr(owner, name, wrapped)
        self.stack.callback(setattr, owner, name, original)

    def _begin(self, kind: str) -> None:
        self.pending[kind].append(time.perf_counter())

    def _end(self, kind: str, name: str) -> None:
        began = self.pending[kind].pop() if self.pending[kind] else time.perf_counter()
        if not self.pending[kind]:
            self.add("capture" if kind == "capture" else "backend", name, time.perf_counter() - began)

    def _on_start(self, args) -> None:
        if args.callback_trigger.name != "CUDAGRAPH_RECORDING":  # a capture, seen as one
            self._begin("dynamo")

    def _on_end(self, args) -> None:
        if self.pending["dynamo"]:
            self._end("dynamo", args.compile_id)

    def _on_script(self, function, *_) -> None:
        self._end("script", getattr(function, "__name__", "torch.jit.script"))

    def _name(self) -> None:
        """Dynamo's numbers of compilations become the names of the functions that were compiled."""
        from torch._dynamo.utils import get_compilation_metrics

        names = {metrics.compile_id: metrics.co_name for metrics in get_compilation_metrics() if metrics.co_name}
        self.events = [replace(e, name=names.get(e.name, e.name)) for e in self.events]


class TorchGuard(TorchCounter):
    """The guard for PyTorch subjects: what `TorchCounter` counts voids the trial.

    Inside, `torch.compiler.set_stance("fail_on_recompile")` makes a recompilation raise; the region ends there, the
    error is swallowed and becomes the event. Does not nest around code that sets its own stance.
    """

    def __enter__(self) -> TorchGuard:
        import torch

        super().__enter__()
        self.stack.enter_context(torch.compiler.set_stance("fail_on_recompile"))
        return self

    @staticmethod
    def owns(error: BaseException | None) -> bool:
        """Whether an error is the stance's own: a recompilation was about to happen."""
        return error is not None and "fail_on_recompile" in str(error)

    def __exit__(self, kind, error, traceback) -> bool:
        super().__exit__(kind, error, traceback)
        if not self.owns(error):
            return False
        self.message = " ".join(str(error).split())
        self.add("backend", self.message.partition("function name: '")[2].partition("'")[0] or "torch.compile")
        return True

    message = ""  # Dynamo's own words for the recompilation

    @property
    def cause(self) -> str:
        return self.message.partition("guard failure(s): ")[2] or self.message
