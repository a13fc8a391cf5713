"""The JAX underneath: known miscompilations of its releases, as checks to run here.

`examine` compares with NumPy each known miscompilation of XLA that concerns a language model (products, reductions,
gathers, updates in place, loops). If one fails, a fast wrong answer is possible, and every measurement says so.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llama_jax.plumbing import xla_flags

RIGHT, NOT_RUN = "right", "does not run"
LIMIT_S = 60.0  # of a check in its own process
REMEDY = "`make setup` installs the release that was found right, `llama-jax doctor` says what fails"


@dataclass(frozen=True)
class Check:
    """A program and its expected result. run: () → (computed, expected by NumPy), two arrays.

    platform: where it was seen to fail, and is run. fatal: it may crash or hang, so it runs in a separate process.
    avoided: why this package computes correctly even if the check fails; "" if it might not.
    """

    name: str
    issue: str  # "jax #N" or "xla #N"
    known: str  # where it is reported to fail
    run: Callable[[], tuple[np.ndarray, np.ndarray]]
    platform: str = "cpu"
    fatal: bool = False
    avoided: str = ""

    @property
    def address(self) -> str:
        owner, number = self.issue.split(" #")
        return f"https://github.com/{dict(jax='jax-ml/jax', xla='openxla/xla')[owner]}/issues/{number}"


CHECKS: list[Check] = []


def check(issue: str, known: str, **options):
    """Register a function of (jax, jax.numpy) as a check under its own name. JAX is imported when it runs."""

    def keep(run):
        @functools.wraps(run)  # whose source a reader may want to see
        def run_with_jax():
            import jax

            return run(jax, jax.numpy)

        CHECKS.append(Check(run.__name__.replace("_", " "), issue, known, run_with_jax, **options))
        return run

    return keep


def in_64_bits(jax):
    """A region in which JAX keeps float64."""
    from jax import experimental

    return jax.enable_x64(True) if callable(getattr(jax, "enable_x64", None)) else experimental.enable_x64()


def squares(jax, n: int, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """|I x|² of n rows (i, 0, 0), as a product under `vmap` and a sum."""
    rows = np.zeros((n, 3), dtype)
    rows[:, 0] = np.arange(n)
    unit = np.eye(3, dtype=dtype)
    return jax.jit(jax.vmap(lambda row: jax.numpy.sum((unit @ row) ** 2)))(rows), np.arange(n, dtype=dtype) ** 2


@check("jax #39103", "CPU, 0.10.2")
def product_and_sum_in_float32(jax, jnp):
    return squares(jax, 32_769, np.float32)


@check("jax #39103", "CPU, 0.10.2")
def product_and_sum_in_float64(jax, jnp):
    with in_64_bits(jax):
        got, expected = squares(jax, 16_385, np.float64)
        return np.asarray(got), expected


@check("jax #39257", "CPU, 0.10.2 and 0.11.0: crashes or hangs", fatal=True)
def broadcast_product_and_sum_of_eight_axes(jax, jnp):
    seen, table = np.ones((10, 4, 6), np.float32), np.ones((10, 4, 6, 9, 9, 9, 9, 9), np.float32)
    program = jax.jit(
        lambda a, b: jnp.log(jnp.maximum(jnp.sum(a[..., None, None, None, None, None] * b, axis=2), 1e-9))
    )
    return program(seen, table), np.full((10, 4, 9, 9, 9, 9, 9), np.log(np.float32(6)))


@check("jax #33479", "CPU, 0.5.0 to 0.8.1", avoided="weights and tables are arguments, not constants")
def gather_of_a_constant(jax, jnp):
    table = jnp.asarray(np.broadcast_to(np.arange(6, dtype=np.int32), (2, 6)))
    return jax.jit(lambda: table[:, jnp.arange(6)] + 1)(), np.asarray(table) + 1


@check("xla #49176", "CPU, every release", avoided="a cache is written from new rows, never from a slice of itself")
def update_in_place_by_a_shifted_slice(jax, jnp):
    def shifted(x):
        base = x + np.int32(1)
        return jax.lax.dynamic_update_slice(base, base[:3], (1, 0, 0)).reshape(1, 4, 1)

    return jax.jit(shifted)(np.arange(4, dtype=np.int32).reshape(4, 1, 1)), np.array([1, 1, 2, 3]).reshape(1, 4, 1)


@check("jax #7461", "CPU, 0.2.18")
def update_by_a_shifted_sum(jax, jnp):
    return jax.jit(lambda x: x.at[1:].set(1 + x[:-1]))(np.zeros(8, np.float32)), np.float32([0] + [1] * 7)


@check("jax #10129", "CPU, 0.3.5")
def update_of_a_row_by_its_roll(jax, jnp):
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    return jax.jit(lambda x: x.at[0].set(jnp.roll(x[0], 5, axis=-1)))(x), np.stack([np.roll(x[0], 5), x[1]])


@check("xla #49121", "CPU and GPU, up to 0.11", avoided="no slice begins beyond its array")
def slice_of_a_slice_beyond_the_end(jax, jnp):
    x = np.arange(9, dtype=np.int32) * 10
    program = jax.jit(lambda x, shift, start: jax.lax.dynamic_slice(jnp.roll(x, shift), [start], [4]))
    return program(x, np.int32(4), np.int32(12)), np.roll(x, 4)[5:9]


@check("jax #9604", "CPU, 0.3.1")
def division_in_a_loop(jax, jnp):
    x = np.array([2, 2, -3], np.int32)
    return jax.jit(lambda x: jax.lax.fori_loop(1, 3, lambda i, left: jnp.floor_divide(left, x[i]), x[0]))(x), np.int32(
        -1
    )


@check("jax #29537", "CPU, 0.6.2")
def a_nan_that_is_lost(jax, jnp):
    with in_64_bits(jax):
        return np.asarray(jax.jit(lambda x: jnp.exp(x * jnp.nan))(np.float64(0.123))), np.float64(np.nan)


@check("xla #13054", "CPU, 0.4.29")
def gradient_of_products_under_vmap(jax, jnp):
    w, x, many = np.float32([1, 2, 3]), np.ones(3, np.float32), np.ones((1_000_000, 3), np.float32)

    def one(x, y):
        return (y - x) @ w + ((y - x) @ jnp.zeros((3, 3))) @ (y - x)

    return jax.jit(jax.grad(lambda x, many: jnp.mean(jax.vmap(lambda y: one(x, y))(many))))(x, many), -w


@check("jax #27796", "GPUs with --xla_gpu_deterministic_ops, 0.5.3", platform="gpu")
def update_at_each_position(jax, jnp):
    x = np.array([1, 2, 0, 0], np.int32)
    return jnp.zeros_like(x).at[jnp.arange(4)].set(x), x


@check("jax #40633", "some GPUs, 0.11.0 and 0.11.1", platform="gpu")
def operators_without_jit(jax, jnp):
    return jnp.stack([jnp.sqrt(jnp.float32(512)), *(jnp.ones(4) + 1)]), np.float32([np.sqrt(512), 2, 2, 2, 2])


@check("jax #39336", "GPUs of compute capability 12.0, 0.10.2 and 0.11.0", platform="gpu")
def scaled_product_with_a_bias(jax, jnp):
    draw = np.random.default_rng(0)
    a, b, bias = (draw.standard_normal(shape).astype(np.float32) for shape in ((32, 15), (100, 15), (32,)))
    program = jax.jit(jax.vmap(lambda scale, a, bias, b: scale * (a @ b + 100 * bias), (None, None, None, 0)))
    return program(np.float32(0.1), a, bias, b), np.float32(0.1) * (b @ a.T + 100 * bias)


def outcome(check: Check) -> str:
    """`RIGHT`, or what is wrong, in a few words."""
    try:
        got, expected = map(np.asarray, check.run())
    except Exception as error:
        return f"{NOT_RUN}: {type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if got.shape != expected.shape:
        return f"wrong: shape {got.shape} instead of {expected.shape}"
    bad = ~np.isclose(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    if not bad.any():
        return RIGHT
    first = int(np.argmax(bad))
    return f"wrong: {got.flat[first]:.9g} instead of {expected.flat[first]:.9g}, {bad.sum()} of {bad.size} values"


def outcome_apart(check: Check, limit: float = LIMIT_S) -> str:
    """As `outcome`, in a fresh process with the same settings; a crash or a hang is an outcome too."""
    code = f"from llama_jax.plumbing import runtime\nprint(runtime.outcome(runtime.named({check.name!r})))"
    how = dict(env=xla_flags.with_package(), capture_output=True, text=True, timeout=limit)
    try:
        done = subprocess.run([sys.executable, "-c", code], check=False, **how)
    except subprocess.TimeoutExpired:
        return f"hangs: no answer in {limit:g} s"
    if done.returncode:  # a signal ends what crashes
        return f"{'crashes' if done.returncode < 0 else NOT_RUN}: exit code {done.returncode}"
    return done.stdout.strip().splitlines()[-1]


def note(check: Check, outcome: str) -> str:
    """An outcome in words: one that is wrong but does not matter here says why."""
    return f"{outcome}; not met here: {check.avoided}" if outcome != RIGHT and check.avoided else outcome


def named(name: str) -> Check:
    return next(check for check in CHECKS if check.name == name)


@functools.cache
def examine(fatal: bool = False) -> dict[str, str]:
    """Outcome of each check that concerns this process's device, by name; once per process. fatal: also those that may
    crash, each in its own process."""
    import jax

    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    chosen = [check for check in CHECKS if check.platform == platform and (fatal or not check.fatal)]
    return {check.name: outcome_apart(check) if check.fatal else outcome(check) for check in chosen}


def complaint(outcomes: dict[str, str]) -> str:
    """One phrase about the outcomes of `examine`: what this JAX computes wrongly that might affect this package, and
    how many checks could not run; "" if there is nothing."""
    met = {check: outcomes.get(check.name, RIGHT) for check in CHECKS if not check.avoided}
    wrong = dict.fromkeys(c.issue for c, seen in met.items() if seen != RIGHT and not seen.startswith(NOT_RUN))
    not_run = [seen for seen in met.values() if seen.startswith(NOT_RUN)]
    phrases = [f"this JAX computes wrong values ({', '.join(wrong)})"] if wrong else []
    if not_run:
        phrases.append(f"{len(not_run)} of {len(outcomes)} checks of this JAX could not run ({not_run[0]})")
    return "; ".join(phrases)


def advice(outcomes: dict[str, str]) -> str:
    """That phrase as a sentence, with what to do about wrong values; "" if there is nothing."""
    line = complaint(outcomes)
    wrong = any(seen != RIGHT and not seen.startswith(NOT_RUN) for seen in outcomes.values())
    return f"{line}; {REMEDY}." if line and wrong else f"{line}." if line else ""


def warn(outcomes: dict[str, str]) -> None:
    """The same as a line of standard error."""
    if line := advice(outcomes):
        print(f"warning: {line}", file=sys.stderr)
