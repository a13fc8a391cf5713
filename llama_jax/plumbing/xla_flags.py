"""The flag of XLA that this package needs to compute correctly; set when the package is imported, before JAX starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

# XLA:CPU hands products and reductions to YNNPACK. Without the reductions it computes right; without all of them too,
# but a first token then takes up to half as long again (data/performance-changes.csv).
FLAG = "--xla_cpu_experimental_ynn_fusion_type"
SETTING = f"{FLAG}=-reduce"
KEEP = "LLAMA_JAX_KEEP_XLA_FLAGS"  # set to anything: XLA_FLAGS stay as they are, whatever this JAX then computes
CURED = ("0.10.2", "0.11.0")  # releases of jaxlib that know the flag and compute wrong values, or crash, without it
LATE = (
    "jaxlib {release} computes wrong values or crashes on a CPU (jax #39103, #39257), and JAX was started before"
    " llama_jax could prevent it: import llama_jax first, or set XLA_FLAGS={setting}"
)


def prepare() -> None:
    """Add to XLA_FLAGS what this jaxlib needs to compute correctly. What the user set there, or in a file that it
    names, is kept.

    Warns if JAX has already read the flags. `KEEP` in the environment leaves everything alone.
    """
    try:
        from jaxlib import version
    except ImportError:  # a command line that only asks for help
        return
    flags = given()
    if flags is None:  # a file that cannot be read, of which XLA says so
        return
    if version.__version__ not in CURED or FLAG in flags or os.environ.get(KEEP):
        return
    if started():
        warnings.warn(LATE.format(release=version.__version__, setting=SETTING), RuntimeWarning, stacklevel=3)
    os.environ["XLA_FLAGS"] = f"{flags} {SETTING}".strip()  # for children too


def given() -> str | None:
    """XLA_FLAGS, or what the file holds that they name, as XLA reads them; None for a file that cannot be read."""
    flags = os.environ.get("XLA_FLAGS", "")
    if not flags or flags.lstrip().startswith("-"):
        return flags
    try:
        return Path(flags).read_text().strip()
    except (OSError, ValueError):
        return None


def trouble() -> str:
    """XLA's complaint about the flags, one line; "" if it accepts them. XLA ends a process with unknown flags, so a
    child tries them (0.2 s), and only if the user has set any."""
    if os.environ.get("XLA_FLAGS", "") in ("", SETTING) or started():
        return ""
    code = "from jaxlib import xla_client; xla_client.CompileOptions()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace", check=False)
    said = re.findall(r"^[EF]\d{4} [^]]*\] (.*)$", done.stderr, re.MULTILINE)  # as absl writes errors and fatal ones
    return f"{said[0]} (XLA_FLAGS; unset or correct it)" if done.returncode and said else ""


def with_package() -> dict[str, str]:
    """The environment of a child that imports this package."""
    home = str(Path(__file__).resolve().parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))}


def started() -> bool:
    """Whether JAX has made its client, and so read XLA_FLAGS."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return getattr(bridge, "backends_are_initialized", bool)()  # not public: where it is gone, nothing is known


def shipped() -> dict[str, str]:
    """Environment of a child that runs JAX as shipped: without what `prepare` adds, which another jaxlib may not
    know."""
    given = " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag != SETTING)
    return {"XLA_FLAGS": given, KEEP: "1"}
