"""Does the harness do what it says? Every way to compile in a timed region is injected, and the statistics are checked
by simulation.

`llama-jax bench --self-test` prints the result and fails when a class goes unnoticed or a rate falls short.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from llama_jax.plumbing import settings
from llama_lab.bench.guard import Guard, TorchGuard
from llama_lab.experiments.honest_measurement import simulation

RUNS = 1000  # simulated measurements


def numbers(*shape: int, dtype=np.float32) -> jax.Array:
    return jnp.asarray(np.arange(np.prod(shape), dtype=dtype).reshape(shape))


def warmed(function: Callable, *arguments, **options) -> Callable:
    """A jitted function that was called with these arguments. A new function shares no programs with others."""
    program = jax.jit(function, **options)
    jax.block_until_ready(program(*arguments))
    return program


def scaling() -> Callable:
    """A program that is warm for seven float32 numbers and by=2.0."""
    return warmed(lambda x, by=2.0: x * by, numbers(7), static_argnames="by")


def fresh_partial() -> Callable:
    x, scale = numbers(7), lambda x, by: x * by
    warmed(partial(scale, by=4.0), x)
    return lambda: jax.jit(partial(scale, by=4.0))(x)


def eager_operation() -> Callable:
    x = numbers(3, 17, 5)
    jax.clear_caches()
    return lambda: jnp.cumsum(x, axis=1)


def ahead_of_time() -> Callable:
    x = numbers(7)
    lowered = jax.jit(lambda x: x * 5 - 1).lower(x)
    return lambda: lowered.compile()(x)


def other_thread() -> Callable:
    worker = threading.Thread(target=scaling(), args=(numbers(11),))

    def act() -> None:
        worker.start()
        worker.join()

    return act


def cleared_caches() -> Callable:
    act = partial(scaling(), numbers(7))
    jax.clear_caches()
    return act


def growing_cache() -> Callable:
    program, x = jax.jit(lambda old, new: jnp.concatenate([old, new])), numbers(3)
    return partial(program, program(x, x), x)


PREPARED: dict[str, Callable[[], Callable]] = {  # each warms up and returns the act that compiles
    "new shape": lambda: partial(scaling(), numbers(11)),
    "new dtype": lambda: partial(scaling(), numbers(7, dtype=np.int32)),
    "new static value": lambda: partial(scaling(), numbers(7), by=3.0),
    "weak type": lambda: partial(warmed(lambda x: x + 1, jnp.float32(1)), 1.0),
    "new tree structure": lambda: partial(warmed(lambda xs: sum(xs), [numbers(7)] * 2), (numbers(7),) * 2),
    "committed argument": lambda: partial(scaling(), jax.device_put(numbers(7), jax.devices()[0])),
    "fresh partial": fresh_partial,
    "eager operation": eager_operation,
    "ahead of time": ahead_of_time,
    "other thread": other_thread,
    "cleared caches": cleared_caches,
    "growing cache": growing_cache,
}


def noticed(prepare: Callable[[], Callable]) -> bool:
    """Whether the guard fires at a prepared act, and is silent at a call that compiles nothing."""
    act, silent = prepare(), partial(scaling(), numbers(7))
    with Guard() as control:
        jax.block_until_ready(silent())
    with Guard() as guard:
        jax.block_until_ready(act())
    return guard.fired and not control.fired


def persistent_cache() -> bool:
    """A program loaded from disk: XLA compiles nothing, and yet the region paid for tracing, lowering and loading."""
    with tempfile.TemporaryDirectory() as folder:
        asked = dict(
            jax_compilation_cache_dir=folder,
            jax_persistent_cache_min_compile_time_secs=0,
            jax_persistent_cache_min_entry_size_bytes=-1,
        )
        before, x = {name: getattr(jax.config, name) for name in asked}, numbers(13)
        try:
            for name, value in asked.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            jax.block_until_ready(jax.jit(lambda x: x * 7 + 2)(x))
            jax.clear_caches()
            with Guard() as guard:
                jax.block_until_ready(jax.jit(lambda x: x * 7 + 2)(x))
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
    return guard.fired and guard.compilations == 0 and guard.count("hit") == 1


def torch_recompilation() -> bool:
    """Dynamo compiling for a new shape, under the guard's twin."""
    import torch

    torch._dynamo.reset()
    program = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    program(torch.ones(3))
    with TorchGuard() as control:
        program(torch.ones(3))
    with TorchGuard() as guard:
        program(torch.ones(5))
    return guard.fired and not control.fired


CLASSES: dict[str, Callable[[], bool]] = {name: partial(noticed, prepare) for name, prepare in PREPARED.items()} | {
    "persistent cache": persistent_cache,  # needs a cache on disk around it
    "torch recompilation": torch_recompilation,  # has a guard of its own
}


def guard_classes() -> dict[str, bool]:
    """Whether the guard fires for each way to compile in a timed region, and is silent otherwise."""
    return {name: check() for name, check in CLASSES.items()}


def run(tell: Callable[[str], None] = lambda line: None) -> dict:
    """{guard: {class: fired}, coverage, aa_false_positive_rate, power_3pct, naive, runs, shortfalls: [line, …]}. Raises
    UserError where an option of JAX keeps things from being compiled as usual."""
    settings.ready(measuring=True)
    tell(f"firing {len(CLASSES)} classes of compilation at the guard")
    fired = guard_classes()
    tell(f"simulating {RUNS} measurements")
    ours, naive = (simulation.simulate(simulation.BASE, RUNS, protocol=name) for name in ("ours", "naive"))
    rates = lambda r: dict(coverage=r.coverage, aa_false_positive_rate=r.aa_false_positive_rate, power_3pct=r.power)  # noqa: E731
    silent = [f"the guard does not notice: {name}" for name, noticed in fired.items() if not noticed]
    return {
        "guard": fired,
        **rates(ours),
        "naive": rates(naive),
        "runs": RUNS,
        "shortfalls": silent + simulation.shortfalls(ours),
    }
