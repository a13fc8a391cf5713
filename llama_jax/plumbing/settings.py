"""The environment's settings for JAX: whether JAX starts under them, and under which options this package computes and
measures what it promises.

An option has a name in `jax.config`, and the same name in capitals in the environment. The laboratory declares what
happens to all other options, and records them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

from llama_jax.plumbing import xla_flags
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown

ALLOWED, OFF = ("allow", "log", "None"), ("False",)
COMPUTING = {  # option: (its values under which the model computes what it promises, what happens under others)
    "jax_enable_x64": (OFF, "the model computes in float32 and int32"),
    "jax_default_prng_impl": (("threefry2x32",), "the same seed would draw other tokens"),
    "jax_threefry_partitionable": (("True",), "the same seed would draw other tokens"),
    "jax_random_seed_offset": (("0",), "the same seed would draw other tokens"),
    "jax_high_dynamic_range_gumbel": (OFF, "the same seed would draw other tokens"),
    "jax_no_execution": (OFF, "nothing can be computed"),
    "jax_no_tracing": (OFF, "nothing can be compiled"),
    "jax_numpy_rank_promotion": (("allow", "warn"), "the model adds arrays of different ranks"),
    "jax_allow_f16_reductions": (("True",), "weights may be bfloat16"),
    "jax_error_checking_behavior_nan": (("ignore",), "JAX cannot check a whole program"),
    "jax_error_checking_behavior_divide": (("ignore",), "JAX cannot check a whole program"),
    "jax_error_checking_behavior_oob": (("ignore",), "JAX cannot check a whole program"),
    "jax_transfer_guard": (ALLOWED, "prompts go to the device, and tokens come from it"),
    "jax_transfer_guard_host_to_device": (ALLOWED, "prompts go to the device"),
    "jax_transfer_guard_device_to_host": (ALLOWED, "tokens come from the device"),
    "jax_transfer_guard_device_to_device": (ALLOWED, "weights may have to move"),
}
QUIET = ("allow", "None")
MEASURING = {  # the same, of a time that is to be that of the placement which is named beside it
    "jax_disable_jit": (OFF, "nothing is compiled, whatever a placement's name says"),
    "jax_debug_nans": (OFF, "every result is looked at"),
    "jax_debug_infs": (OFF, "every result is looked at"),
    "jax_check_tracer_leaks": (OFF, "traces are checked and not kept"),
    "jax_enable_checks": (OFF, "JAX checks itself"),
    "jax_debug_key_reuse": (OFF, "every key is looked at"),
    "jax_experimental_unsafe_xla_runtime_errors": (OFF, "programs are compiled with checks"),
    "jax_array_garbage_collection_guard": (QUIET, "every array is watched"),
    "jax_compilation_cache_check_contents": (OFF, "what is read from the cache is compiled too"),
    "jax_transfer_guard": (QUIET, "every transfer is written down"),
    "jax_transfer_guard_host_to_device": (QUIET, "every transfer is written down"),
    "jax_transfer_guard_device_to_host": (QUIET, "every transfer is written down"),
    "jax_transfer_guard_device_to_device": (QUIET, "every transfer is written down"),
    "jax_dump_ir_to": (("",), "every program is written to files"),
}
STARTING = "JAX does not start"


def values() -> dict[str, str]:
    """Current value of each option of this JAX, as text; this thread's value if it differs."""
    import jax

    return {name: str(getattr(jax.config, name, value)) for name, value in jax.config.values.items()}


def complaints(rules: dict[str, tuple[tuple[str, ...], str]]) -> list[str]:
    """A line for each option whose value is not listed in `rules`."""
    found = values()
    wrong = {name: why for name, (good, why) in rules.items() if found.get(name, good[0]) not in good}
    return [f"{name.upper()} is {shown(found[name])}: {why}; {remedy(name)}." for name, why in wrong.items()]


def remedy(name: str) -> str:
    usual = {**MEASURING, **COMPUTING}[name][0][0]
    return "unset it" if name.upper() in os.environ else f"jax.config.update({name!r}, {usual}) puts it back"


def check(measuring: bool = False) -> None:
    """Raises UserError, one line, if an option makes the model compute something else. measuring: also if an option
    changes the program, or the time, that a placement's name stands for."""
    for line in complaints(COMPUTING) + (complaints(MEASURING) if measuring else []):
        raise UserError(line)


def ready(measuring: bool = False) -> None:
    """`start`, then `check`."""
    start()
    check(measuring)


def start() -> None:
    """Start JAX under the environment's settings. Raises UserError, one line, if it does not start: for unknown flags
    of XLA, a missing platform, an invalid value of an option."""
    if xla_flags.started():
        return
    if line := xla_flags.trouble():
        raise UserError(line)
    try:
        import jax

        jax.devices()
    except Exception as error:
        raise UserError(not_started(error)) from None


def not_started(error: Exception) -> str:
    given = " ".join(f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("JAX_"))
    why = next(iter(str(error).splitlines()), "") or f"it says {type(error).__name__} and nothing else"
    return f"{STARTING}{f' under {given}' if given else ''}: {why}; unset what it names, or correct it."


def of_import(error: BaseException) -> str:
    """The line for an error that an option's value caused while JAX was imported; "" for any other error."""
    frames = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
    return not_started(error) if isinstance(error, ValueError) and "jax._src.config" in frames else ""


def check_apart(measuring: bool = False) -> None:
    """As `ready`, for child processes, while this one leaves JAX, and a GPU, to them. Checked only if the environment
    has settings for JAX."""
    flags = os.environ.get("XLA_FLAGS", "") not in ("", xla_flags.SETTING)
    if (flags or any(name.startswith("JAX_") for name in os.environ)) and (line := trouble(f"ready({measuring})")):
        raise UserError(line)


def trouble(asked: str = "start()") -> str:
    """Why JAX does not start here, one line; "" if it does. A child process tries it, so that this one can continue
    under other settings. asked: the function of this module that must succeed there."""
    if xla_flags.started():
        return ""
    code = f"from llama_jax.plumbing import errors, settings\ntry: settings.{asked}\n"
    code += "except errors.UserError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], env=xla_flags.with_package(), capture_output=True, text=True)
    last = [*done.stderr.splitlines(), f"exit code {done.returncode}"]
    return done.stdout.strip() if done.returncode == 0 else f"{STARTING}: {last[-2 if len(last) > 1 else -1]}"


def forget() -> None:
    """Drop the environment's settings for JAX and XLA, for this process and its children."""
    for name in [name for name in os.environ if name.startswith("JAX_") or name == "XLA_FLAGS"]:
        del os.environ[name]
    xla_flags.prepare()
