"""The guard fires for every way a program can be compiled anew, and is silent when none is."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from llama_jax.bench import Guard


def scale(x, by=2.0):
    return x * by


@pytest.fixture
def program():
    f = jax.jit(scale, static_argnames="by")
    x = jnp.arange(7.0)
    f(x, by=2.0).block_until_ready()
    return f, x


def watched(run):
    with Guard() as guard:
        jax.block_until_ready(run())
    return guard


def test_silent_in_a_warm_run(program):
    f, x = program
    guard = watched(lambda: [f(x, by=2.0) for _ in range(5)])
    assert not guard.fired
    assert guard.reason == ""
    assert guard.events == []


def test_fires_for_a_growing_shape(program):
    f, _ = program
    longer = jnp.asarray(np.arange(11.0, dtype=np.float32))
    guard = watched(lambda: f(longer, by=2.0))
    assert guard.fired
    assert "scale" in guard.reason
    assert guard.compilations == 1


def test_fires_for_a_new_static_value(program):
    f, x = program
    assert watched(lambda: f(x, by=3.0)).fired


def test_fires_for_a_changed_dtype(program):
    f, _ = program
    ints = jnp.asarray(np.arange(7, dtype=np.int32))
    assert watched(lambda: f(ints, by=2.0)).fired


def test_fires_for_a_committed_array_with_no_trace_event():
    f, x = jax.jit(lambda x: x * 5.0), jnp.arange(7.0)
    f(x).block_until_ready()
    committed = jax.device_put(x, jax.devices()[0])
    guard = watched(lambda: f(committed))
    assert guard.fired
    assert guard.count("trace") == 0


def test_fires_for_a_fresh_partial():
    x = jnp.arange(5.0)
    jax.jit(partial(scale, by=4.0))(x)
    assert watched(lambda: jax.jit(partial(scale, by=4.0))(x)).fired


def test_fires_for_an_eager_op_compiled_for_the_first_time():
    x = jnp.asarray(np.ones((3, 17, 5), np.float32))
    jax.clear_caches()
    guard = watched(lambda: jnp.cumsum(x, axis=1))
    assert guard.fired
    assert not watched(lambda: jnp.cumsum(x, axis=1)).fired


def test_guards_nest_and_leave_other_listeners_alone(program):
    f, _ = program
    heard = []

    def listener(event, seconds, **details):
        heard.append(event)

    monitoring.register_event_duration_secs_listener(listener)
    try:
        x = jnp.asarray(np.ones(23, np.float32))
        with Guard() as outer:
            with Guard() as inner:
                f(x, by=2.0)
            between = len(outer.events)
            f(jnp.asarray(np.ones(29, np.float32)), by=2.0)
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
    f(jnp.asarray(np.ones(31, np.float32)), by=2.0)
    assert guard.events == []
