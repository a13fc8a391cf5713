"""A pytest plugin for any project that uses JAX: tests that fail when something compiles that should not.

    def test_decode(no_compile):
        step(x)                              # warm-up: may compile
        with no_compile:
            step(x + 1)                      # fails here if it does

    @pytest.mark.compiles(at_most=1)         # programs compiled in the whole test
    def test_one_program_for_all_lengths(): ...

It counts what `llama_lab.bench.guard` counts: backend compilations of every thread, programs read from the persistent
cache included, because a test should not depend on the cache's contents. docs/pytest.md lists what it cannot count,
such as callbacks to Python.
"""

from __future__ import annotations

import pytest


def guard():
    """A new compile guard. The package's own settings for XLA are kept away from the tested project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_JAX_KEEP_XLA_FLAGS", "1")
        from llama_lab.bench.guard import Guard
    return Guard(explain=True)


def told(seen, allowed: str) -> str:
    """What was compiled, by name, and why, as JAX explains it."""
    made = seen.count("backend") or seen.count("lower")
    return f"{made} {'program' if made == 1 else 'programs'} compiled {allowed}: {', '.join(seen.names)}\n{seen.cause}"


def check_jit() -> None:
    """Skips the test if jit is off: it would always pass."""
    import jax

    if jax.config.jax_disable_jit:
        pytest.skip("jax_disable_jit is on, so nothing that is jitted can compile")


class NoCompile:
    """`with no_compile:` fails the test if anything is lowered or compiled inside; usable any number of times."""

    def __enter__(self):
        check_jit()
        self.guard = guard().__enter__()
        return self.guard

    def __exit__(self, kind, error, traceback):
        self.guard.__exit__(kind, error, traceback)
        if error is None and self.guard.fired:
            pytest.fail(told(self.guard, "where nothing may compile"), pytrace=False)


@pytest.fixture
def no_compile():
    """A region in which nothing may compile: `with no_compile: ...`, after a warm-up."""
    return NoCompile()


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "compiles(at_most): the test fails if more programs are compiled while it runs (JAX)"
    )


def allowed(item) -> int | None:
    """How many programs a test may compile; None without the mark. Raises pytest.UsageError for an invalid mark."""
    mark = item.get_closest_marker("compiles")
    if mark is None:
        return None
    most = mark.kwargs.get("at_most")
    if mark.args or set(mark.kwargs) != {"at_most"} or not isinstance(most, int) or isinstance(most, bool) or most < 0:
        raise pytest.UsageError(f"{item.nodeid}: write @pytest.mark.compiles(at_most=N) with N of 0 or more")
    return most


def pytest_collection_modifyitems(items):
    for item in items:
        allowed(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    most = allowed(item)
    if most is None:
        return (yield)
    check_jit()
    with guard() as seen:
        result = yield
    if seen.count("backend") > most:
        pytest.fail(told(seen, f"where at most {most} may be"), pytrace=False)
    return result
