"""The compile guard as a pytest plugin, tried on little suites of somebody else's project."""

import pytest

from tests.conftest import among_the_fast

pytest_plugins = ["pytester"]
UNLOADED = "-p no:schemathesis -p no:langsmith_plugin"  # which each process would wait for


@pytest.fixture
def suite(pytester, monkeypatch):
    """run(code): its outcome in a pytest process that knows nothing but the plugin."""
    pytester.makefile(".toml", pyproject=f'[tool.pytest.ini_options]\naddopts = "--strict-markers {UNLOADED}"')
    for name in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(code, *options):
        jitted = "import jax, numpy as np\n@jax.jit\ndef halve(x):\n    return x / 2\n" if "halve" in code else ""
        pytester.makepyfile(f"import os, sys\nimport pytest\n{jitted}{code}")
        return pytester.runpytest_subprocess(*options)

    return run


def test_a_region_or_a_marked_test_in_which_too_much_compiles_fails(suite):
    done = suite("""
def test_warm(no_compile):
    halve(np.ones(3))
    for _ in range(2):
        with no_compile as seen:
            halve(np.zeros(3))
        assert not seen.fired

def test_other_shape(no_compile):
    halve(np.ones(4))
    with no_compile:
        halve(np.ones(5))

def test_own_failure_comes_first(no_compile):
    with no_compile:
        halve(np.ones(6))
        assert 1 == 2

@pytest.mark.compiles(at_most=1)
def test_one():
    halve(np.ones(13)), halve(np.zeros(13))

@pytest.mark.compiles(at_most=1)
def test_two():
    halve(np.ones(14)), halve(np.ones(15))

@pytest.mark.compiles(at_most=0)
def test_none():
    assert True

def test_unmarked():
    halve(np.ones(16)), halve(np.ones(17))

def test_calls_back_to_python_are_no_compilation(no_compile):
    calls, shape, x = [], jax.ShapeDtypeStruct((3,), np.float32), np.ones(3, np.float32)
    f = jax.jit(lambda x: jax.pure_callback(lambda y: (calls.append(y), np.asarray(y))[1], shape, x))
    f(x).block_until_ready()
    with no_compile:
        for _ in range(5):
            f(x).block_until_ready()
    assert len(calls) == 6
    assert "callback" in f.lower(x).as_text()  # as docs/pytest.md says
    assert "callback" not in halve.lower(x).as_text()
""")
    done.assert_outcomes(passed=5, failed=3)
    for lines in (
        ["1 program compiled where nothing may compile: halve", "*now f32[[]5[]] and before f32[[]3[]]*"],
        ["*assert 1 == 2*"],
        ["2 programs compiled where at most 1 may be: halve"],
    ):
        done.stdout.fnmatch_lines(lines)


@pytest.mark.parametrize(
    "mark", among_the_fast(("(at_most=-1)",), ["", "(1)", "(at_most='1')", "(at_most=-1)", "(most=1)"])
)
def test_a_mark_that_sets_no_bound_is_an_error_of_use(suite, mark):
    done = suite(f"@pytest.mark.compiles{mark}\ndef test_it():\n    pass\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: *test_it: write @pytest.mark.compiles(at_most=N) with N of 0 or more"])


def test_where_jit_is_off_nothing_passes_for_it(suite, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_JIT", "1")
    suite("""
def test_region(no_compile):
    halve(np.ones(3))
    with no_compile:
        halve(np.ones(5))

@pytest.mark.compiles(at_most=0)
def test_marked():
    halve(np.ones(3))
""").assert_outcomes(skipped=2)


@pytest.mark.slow
def test_the_tested_projects_settings_are_left_alone(suite):
    done = suite("""
def test_flags(no_compile):
    with no_compile:
        pass
    assert "XLA_FLAGS" not in os.environ
    assert "LLAMA_JAX_KEEP_XLA_FLAGS" not in os.environ
""")
    done.assert_outcomes(passed=1)


def test_it_is_registered_and_costs_nothing_until_it_is_used(suite):
    from importlib.metadata import entry_points

    assert [e.value for e in entry_points(group="pytest11") if e.name == "llama_jax"] == ["pytest_llama_jax"]
    done = suite("""
def test_idle():
    assert "llama_jax" not in sys.modules
""")
    done.assert_outcomes(passed=1)
