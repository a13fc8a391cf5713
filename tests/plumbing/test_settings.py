"""Settings under which the model would compute something else, or a time be that of something else: one line each."""

import os
import subprocess
import sys

import jax
import pytest

from llama_jax import generate
from llama_jax.placement import parse
from llama_jax.plumbing import runtime, settings, xla_flags
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import protocol
from tests.conftest import TINY, among_the_fast, python

OTHER = {  # a value of each option that is refused
    "jax_default_prng_impl": "rbg", "jax_random_seed_offset": 5, "jax_numpy_rank_promotion": "raise",
    "jax_dump_ir_to": "/nowhere", "jax_array_garbage_collection_guard": "log",
}  # fmt: skip


def other(name):
    if "transfer_guard" in name:
        return "disallow" if name in settings.COMPUTING else "log"
    if "behavior" in name:
        return "raise"
    return OTHER.get(name, settings.COMPUTING.get(name, settings.MEASURING.get(name))[0][0] != "True")


@pytest.fixture
def setting():
    """Set an option for this test."""
    before = {}

    def put(name, value):
        before[name] = jax.config.values[name]
        jax.config.update(name, value)

    yield put
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("name", settings.COMPUTING)
def test_an_option_under_which_the_model_computes_otherwise_is_refused(tiny, setting, name):
    setting(name, other(name))
    with pytest.raises(UserError, match=f"{name.upper()} is .*jax.config.update"):
        generate.bind(*tiny, parse("step"))


@pytest.mark.parametrize("name", sorted({*settings.MEASURING} - {*settings.COMPUTING}))
def test_an_option_that_makes_a_time_another_is_refused_where_something_is_measured(tmp_path, setting, name):
    settings.check()
    setting(name, other(name))
    settings.check()
    with pytest.raises(UserError, match=f"{name.upper()} is "), protocol.alone():
        pass


def test_a_transfer_that_is_written_down_is_fine_until_something_is_measured(setting):
    setting("jax_transfer_guard", "log")
    settings.check()
    with pytest.raises(UserError, match="every transfer is written down"):
        settings.check(measuring=True)


def test_a_region_of_64_bits_is_seen_too():
    with runtime.in_64_bits(jax), pytest.raises(UserError, match="JAX_ENABLE_X64 is 'True'"):
        settings.check()


def command(*arguments, **variables):
    """(exit code, standard output, lines of standard error) of the command line under variables of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))}
    done = subprocess.run(
        [sys.executable, "-m", "llama_lab", *arguments], env=kept | variables, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


ASK = ("generate", "--token-ids", "1,2", "-n", "2", "--model", TINY, "--placement", "step", "--no-keep")
BENCH = ("bench", "--model", TINY, "--placements", "step", "--blocks", "1", "--no-cold")
RUN = ("run", "04", "--out", "/nowhere/to/be")
REFUSED = [
    (ASK, {"JAX_ENABLE_X64": "1"}, "JAX_ENABLE_X64 is 'True': the model computes in float32 and int32; unset it."),
    (BENCH, {"JAX_DISABLE_JIT": "1"}, "JAX_DISABLE_JIT is 'True': nothing is compiled, whatever a placement's name"),
    (ASK, {"JAX_PLATFORMS": "cuda"}, "JAX does not start under JAX_PLATFORMS=cuda: "),
    (ASK, {"JAX_ENABLE_X64": "maybe"}, "JAX does not start under JAX_ENABLE_X64=maybe: invalid truth value 'maybe'"),
    (ASK, {"XLA_FLAGS": "--xla_nosuch=1"}, "Unknown flag in XLA_FLAGS: --xla_nosuch=1"),
    (ASK, {"XLA_FLAGS": "/nowhere/flags"}, 'Could not open file "/nowhere/flags"'),
    (("bench", "--self-test"), {"JAX_DISABLE_JIT": "1"}, "JAX_DISABLE_JIT is 'True': "),
    (RUN, {"XLA_FLAGS": "--xla_nosuch=1"}, "Unknown flag in XLA_FLAGS: --xla_nosuch=1"),
    (RUN, {"JAX_ENABLE_X64": "1"}, "JAX_ENABLE_X64 is 'True': "),
    ((*RUN, "--measure"), {"JAX_DISABLE_JIT": "1"}, "JAX_DISABLE_JIT is 'True': "),
]


@pytest.mark.parametrize(
    ("verb", "variables", "words"), among_the_fast([*REFUSED[:3], REFUSED[4], REFUSED[7]], REFUSED)
)
def test_what_the_environment_says_wrong_is_one_line(verb, variables, words):
    code, out, err = command(*verb, **variables)
    assert (code, out, len(err)) == (2, "", 1), err
    assert err[0].startswith(f"error: {words}")


@pytest.mark.slow
@pytest.mark.parametrize("variables", [v for verb, v, _ in REFUSED if verb == ASK])
def test_doctor_answers_whatever_the_environment_says(variables):
    code, out, err = command("doctor", "--no-probe", **variables)
    assert (code, err) == (0, [])
    name, value = next(iter(variables.items()))
    advice = out[out.index("advice:") :]
    assert value in advice or f"{name} is" in advice


def test_flags_in_a_file_are_read_as_xla_reads_them(tmp_path):
    flags = tmp_path / "flags"
    flags.write_text("--xla_cpu_multi_thread_eigen=false\n  --xla_cpu_enable_fast_math=false\n")
    code = "import llama_jax, jax, os; print(float(jax.numpy.ones(2).sum())); print(os.environ['XLA_FLAGS'])"
    total, *used = python(code, clean=True, XLA_FLAGS=str(flags))[0].splitlines()
    assert total == "2.0"
    expected = flags.read_text().split() + [xla_flags.SETTING] * (runtime_is_cured())
    assert " ".join(used).split() == expected


def runtime_is_cured():
    from jaxlib import version

    return version.__version__ in xla_flags.CURED


def test_flags_that_xla_takes_are_no_trouble(monkeypatch):
    monkeypatch.setattr(xla_flags, "started", lambda: False)
    for flags, words in (
        ("--xla_cpu_enable_fast_math=false", ""),
        ("", ""),
        ("--xla_cpu_enable_fast_math=x", "value x"),
    ):
        monkeypatch.setenv("XLA_FLAGS", flags)
        said = xla_flags.trouble()
        assert (words in said, bool(said), "\n" in said) == (True, bool(words), False)


@pytest.mark.slow
def test_a_bench_of_void_trials_alone_does_not_end_well(call, own_lock, monkeypatch):
    from llama_lab.bench import run

    real = run.phases.run

    def void(*given):
        return [t.model_copy(update=dict(valid=False, reason="failed: X")) for t in real(*given)]

    monkeypatch.setattr(run.phases, "run", void)
    code, _, err = call(*BENCH)
    assert code == 1
    assert "nothing was measured: every trial is void (failed: X)" in err
