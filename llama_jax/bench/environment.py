"""What machine, what software, what settings: everything a number needs beside it to be repeated."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from importlib import metadata
from pathlib import Path

import jax
import psutil

from llama_jax import paths

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "torch", "transformers", "gguf", "tokenizers", "llama-jax")
PREFIXES = ("XLA_", "JAX_", "OMP_", "MKL_", "OPENBLAS_")


def capture() -> dict:
    """The environment as plain JSON values. What cannot be read is "unknown"."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "unknown",
        "load": list(os.getloadavg()),
        "ram_bytes": psutil.virtual_memory().total,
        "governor": read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "devices": [f"{d.platform}:{d.device_kind}" for d in jax.devices()],
        "os": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith(PREFIXES)},
        "git": git_state(),
    }


def cpu_model() -> str:
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def peak_rss() -> int:
    """Peak resident memory of this process in bytes.

    Linux's `ru_maxrss` survives exec and so may be the parent's; VmHWM is this program's own.
    """
    for line in read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def git_state() -> dict:
    """Commit of the source tree and whether code in it differs from that commit (data and figures do not count)."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--", "llama_jax", "notebooks", "requirements.txt", "pyproject.toml")
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(changed.strip())}
    except (OSError, subprocess.SubprocessError):
        return {"commit": "unknown", "dirty": "unknown"}


def machine_line(environment: dict) -> str:
    """The line under every figure: where the numbers come from."""
    gib = environment["ram_bytes"] / 2**30
    software = f"jax {environment['packages']['jax']}, Python {environment['python']}"
    return f"{environment['cpu']}, {environment['cores']} cores, {gib:.0f} GiB · {software}"
