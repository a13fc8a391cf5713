"""Does the harness do what it says? Every way to compile in a timed region is injected, and the statistics meet a
simulation.

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

from llama_lab.bench.guard import Guard, TorchGuard
from llama_lab.experiments.honest_measurement import simulation

RUNS = 1000  # simulated measurements


def fresh_program() -> tuple[Callable, jax.Array]:
    """A jitted function that no one has called, and an argument it is then warmed with."""

    def scale(x, by=2.0):
        return x * by

    program, x = jax.jit(scale, static_argnames="by"), jnp.asarray(np.arange(7, dtype=np.float32))
    jax.block_until_ready(program(x))
    return program, x


def new_shape():
    program, _ = fresh_program()
    longer = jnp.asarray(np.arange(11, dtype=np.float32))
    return lambda: program(longer)


def new_dtype():
    program, _ = fresh_program()
    whole = jnp.asarray(np.arange(7, dtype=np.int32))
    return lambda: program(whole)


def new_static_value():
    program, x = fresh_program()
    return lambda: program(x, by=3.0)


def weak_type():
    program = jax.jit(lambda x: x + 1)
    jax.block_until_ready(program(jnp.float32(1)))
    return lambda: program(1.0)


def new_tree():
    program, (_, x) = jax.jit(lambda tree: sum(tree)), fresh_program()
    jax.block_until_ready(program([x, x]))
    return lambda: program((x, x))


def committed_argument():
    program, x = fresh_program()
    committed = jax.device_put(x, jax.devices()[0])
    return lambda: program(committed)


def fresh_partial():
    _, x = fresh_program()
    scale = lambda x, by: x * by  # noqa: E731
    jax.block_until_ready(jax.jit(partial(scale, by=4.0))(x))
    return lambda: jax.jit(partial(scale, by=4.0))(x)


def eager_operation():
    x = jnp.asarray(np.ones((3, 17, 5), np.float32))
    jax.clear_caches()
    return lambda: jnp.cumsum(x, axis=1)


def ahead_of_time():
    _, x = fresh_program()
    lowered = jax.jit(lambda x: x * 5 - 1).lower(x)
    return lambda: lowered.compile()(x)


def other_thread():
    act = new_shape()

    def run():
        worker = threading.Thread(target=act)
        worker.start()
        worker.join()

    return run


def cleared_caches():
    program, x = fresh_program()
    jax.clear_caches()
    return lambda: program(x)


def growing_cache():
    program, x = jax.jit(lambda old, new: jnp.concatenate([old, new])), jnp.ones(3)
    longer = program(x, x)
    return lambda: program(longer, x)


def run(tell: Callable[[str], None] = lambda line: None) -> dict:
    """{guard: {class: fired}, coverage, aa_false_positive_rate, power_3pct, naive: the same rates, shortfalls: [line,
    …]}."""
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


def noticed(prepare: Callable[[], Callable]) -> bool:
    """prepare() warms up and returns the act that compiles."""
    act = prepare()
    program, x = fresh_program()
    with Guard() as control:
        jax.block_until_ready(program(x))
    with Guard() as guard:
        jax.block_until_ready(act())
    return guard.fired and not control.fired


def persistent_cache() -> bool:
    """A program loaded from disk: XLA compiles nothing, and yet the region paid for tracing, lowering and loading."""
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    x = jnp.asarray(np.ones(13, np.float32))
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, value in zip(names, (folder, 0, -1), strict=True):
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


PREPARED = {
    "new shape": new_shape,
    "new dtype": new_dtype,
    "new static value": new_static_value,
    "weak type": weak_type,
    "new tree structure": new_tree,
    "committed argument": committed_argument,
    "fresh partial": fresh_partial,
    "eager operation": eager_operation,
    "ahead of time": ahead_of_time,
    "other thread": other_thread,
    "cleared caches": cleared_caches,
    "growing cache": growing_cache,
}
CLASSES: dict[str, Callable[[], bool]] = {name: partial(noticed, prepare) for name, prepare in PREPARED.items()} | {
    "persistent cache": persistent_cache,  # needs a cache on disk around it
    "torch recompilation": torch_recompilation,  # has a guard of its own
}


def guard_classes() -> dict[str, bool]:
    """For each way to compile in a timed region: does the guard fire when it happens, and is it silent when it does
    not?"""
    return {name: check() for name, check in CLASSES.items()}
