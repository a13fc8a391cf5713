"""The guard fires for every way a program can be compiled anew, and is silent when none is."""

import contextlib
import logging
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from llama_lab.bench import Guard
from llama_lab.bench.guard import TorchCounter, TorchGuard
from llama_lab.experiments.honest_measurement import selftest

pytestmark = pytest.mark.usefixtures("compiling")


def scale(x, by=2.0):
    return x * by


def of_size(n):
    return jnp.asarray(np.arange(n, dtype=np.float32))


@pytest.fixture
def program():
    f = jax.jit(scale, static_argnames="by")
    x = jnp.arange(7.0)
    f(x, by=2.0).block_until_ready()
    return f, x


def watched(run, **options):
    with Guard(**options) as guard:
        jax.block_until_ready(run())
    return guard


def test_silent_in_a_warm_run(program):
    f, x = program
    guard = watched(lambda: [f(x, by=2.0) for _ in range(5)])
    assert (guard.fired, guard.reason, guard.events) == (False, "", [])


def eager():
    x = of_size(255).reshape(3, 17, 5)
    jax.clear_caches()
    return lambda: jnp.cumsum(x, axis=1)


def committed():
    f, x = jax.jit(lambda x: x * 5.0), of_size(7)
    f(x).block_until_ready()
    return partial(f, jax.device_put(x, jax.devices()[0]))


@pytest.mark.parametrize(
    ("prepare", "is_traced"),
    [
        (lambda f, x: partial(f, of_size(11), by=2.0), True),
        (lambda f, x: partial(f, x, by=3.0), True),
        (lambda f, x: partial(f, jnp.asarray(np.arange(7, dtype=np.int32)), by=2.0), True),
        (lambda f, x: committed(), False),
        (lambda f, x: lambda: jax.jit(partial(scale, by=4.0))(x), True),
        (lambda f, x: eager(), True),
    ],
    ids=["shape", "static value", "dtype", "committed", "fresh partial", "eager operation"],
)
def test_fires_for_every_way_of_compiling(program, prepare, is_traced):
    guard = watched(prepare(*program))
    assert guard.fired
    assert (guard.count("trace") > 0) == is_traced
    assert guard.compilations == 1
    assert "compiled in the timed region: 1 programs" in guard.reason


def test_guards_nest_and_leave_other_listeners_alone(program):
    f, _ = program
    heard = []

    def listener(event, seconds, **details):
        heard.append(event)

    monitoring.register_event_duration_secs_listener(listener)
    try:
        x, longer = of_size(23), of_size(29)
        with Guard() as outer:
            with Guard() as inner:
                f(x, by=2.0)
            between = len(outer.events)
            f(longer, by=2.0)
        assert inner.fired
        assert len(inner.events) == between < len(outer.events)
        assert heard
    finally:
        monitoring.unregister_event_duration_listener(listener)


def test_stops_listening_after_an_exception(program):
    f, _ = program
    guard = Guard()
    with pytest.raises(ZeroDivisionError), guard:
        raise ZeroDivisionError
    f(of_size(31), by=2.0)
    assert guard.events == []


def test_every_class_of_the_self_test_fires():
    assert selftest.guard_classes() == dict.fromkeys(selftest.CLASSES, True)


def test_a_guard_that_hears_nothing_fails_the_self_test(monkeypatch):
    monkeypatch.setattr(Guard, "add", lambda self, *event: None)
    found = selftest.guard_classes()
    assert not any(found[name] for name in selftest.CLASSES if not name.startswith("torch"))


def test_names_the_thread(program):
    f, _ = program
    longer = of_size(37)

    def run():
        worker = threading.Thread(target=lambda: f(longer, by=2.0), name="worker")
        worker.start()
        worker.join()
        return f(of_size(41), by=2.0)

    guard = watched(run)
    assert {e.thread for e in guard.events} == {"worker", threading.current_thread().name}
    assert sum(e.kind == "backend" for e in guard.events if e.thread == "worker") == 1
    assert "worker" in guard.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f, x: f(of_size(43), by=2.0), "now f32[43] and before f32[7]"),
        (lambda f, x: f(x, by=43.0), "43.0"),
        (lambda f, x: f(jax.device_put(x, jax.devices()[0]), by=2.0), "no retrace"),
    ],
    ids=["shape", "static value", "committed"],
)
def test_says_why(program, change, words):
    f, x = program
    jax.clear_caches()
    f(x, by=2.0)
    assert words in watched(lambda: change(f, x), explain=True).cause
    assert watched(lambda: change(f, x), explain=True).cause == ""  # it is known now


def test_explaining_leaves_the_setting_and_other_handlers_as_they_were(program):
    f, _ = program
    before, handlers = jax.config.jax_explain_cache_misses, list(logging.getLogger("jax").handlers)
    guard = Guard(explain=True)
    with contextlib.suppress(ZeroDivisionError), guard:
        f(of_size(47), by=2.0)
        raise ZeroDivisionError
    assert guard.cause
    assert jax.config.jax_explain_cache_misses == before
    assert logging.getLogger("jax").handlers == handlers


def test_hits_and_misses_of_the_persistent_cache_are_told_apart(tmp_path, program):
    from jax.experimental.compilation_cache import compilation_cache

    least = "jax_persistent_cache_min_"
    names = ("jax_compilation_cache_dir", f"{least}compile_time_secs", f"{least}entry_size_bytes")
    before = {name: getattr(jax.config, name) for name in names}
    x = of_size(53)
    try:
        for name, value in zip(names, (str(tmp_path), 0, -1), strict=True):
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        first = watched(lambda: jax.jit(scale)(x))
        jax.clear_caches()
        second = watched(lambda: jax.jit(scale)(x))
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
    assert (first.count("miss"), first.count("hit"), first.compilations) == (1, 0, 1)
    assert (second.count("hit"), second.compilations) == (1, 0)
    assert second.fired  # lowering and loading took time, though XLA compiled nothing


def torch_program():
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    f = torch.compile(lambda x: x * 2 + 1, backend="eager", dynamic=False)
    f(torch.ones(3))
    return torch, f


def test_the_torch_twin_is_silent_when_warm_and_fires_on_a_recompilation():
    torch, f = torch_program()
    with TorchGuard() as guard:
        f(torch.ones(3))
    assert not guard.fired
    with TorchGuard() as guard:
        f(torch.ones(5))
        pytest.fail("the region ends where the recompilation is")
    assert guard.fired
    assert "expected 3, actual 5" in guard.cause
    assert f(torch.ones(5)).shape == (5,)  # outside, the stance is what it was


def test_the_torch_counter_counts_what_the_guard_forbids():
    torch, f = torch_program()
    with TorchCounter() as region:
        f(torch.ones(3))
    assert (region.fired, region.compilations, region.reason) == (False, 0, "")
    with TorchCounter() as region:
        assert f(torch.ones(5)).shape == (5,)
        assert f(torch.ones(7)).shape == (7,)
    assert (region.fired, region.compilations) == (True, 2)
    assert region.backend_seconds == region.seconds("backend") > 0
    assert region.names == ["<lambda>"]
    with TorchCounter() as region:
        f(torch.ones(5))
    assert not region.fired


def test_the_torch_counter_leaves_pytorch_as_it_was():
    torch, _ = torch_program()
    handler, graph = torch._dynamo.callback.callback_handler, torch.cuda.CUDAGraph

    def hooks():
        callbacks = list(handler.start_callbacks), list(handler.end_callbacks)
        return graph.capture_begin, graph.capture_end, torch.jit.script, callbacks

    before = hooks()
    for region in (TorchCounter, TorchGuard):
        with pytest.raises(ZeroDivisionError), region():
            raise ZeroDivisionError
        assert hooks() == before


def test_a_capture_and_a_script_are_counted_with_their_seconds(monkeypatch):
    torch, _ = torch_program()
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda graph, *args, **options: None)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", lambda graph: time.sleep(0.01))
    for kind in (TorchCounter, TorchGuard):
        with kind() as region:
            torch.cuda.CUDAGraph.capture_begin(object(), pool=None)
            torch.cuda.CUDAGraph.capture_end(object())
            torch.jit.script(scripted_in_a_test)
        assert (region.count("capture"), region.count("backend"), region.compilations) == (1, 1, 2)
        assert region.seconds("capture") >= 0.01
        assert region.names == ["CUDA graph", "scripted_in_a_test"]
        assert region.reason == "1 CUDA graphs captured (CUDA graph, scripted_in_a_test)"


def scripted_in_a_test(x):
    return x + 1
