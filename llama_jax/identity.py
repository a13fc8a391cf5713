"""What must match for a compiled program, or a measurement of one, to be valid here."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import jax
import jaxlib

from llama_jax.config import ModelConfig
from llama_jax.model import kinds
from llama_jax.placement import Placement
from llama_jax.plumbing import settings


def identity(config: ModelConfig, placement: Placement, weights: str) -> dict:
    """What must match for a program to be valid here, under readable names."""
    device = jax.devices()[0]
    processor = cpu() if device.platform == "cpu" else ""
    where = (device.platform, device.device_kind, device.client.platform_version, processor)
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    source = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    chosen = {k: v for k, v in asdict(placement).items() if k not in ("name", "compile")}
    known = {
        "jax": f"{jax.__version__}, jaxlib {jaxlib.__version__}",
        "device": " ".join(filter(None, where)),
        "model": config.shape(),
        "placement": chosen,
        "dtype of weights": weights,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "version of this package": source,
    }
    return json.loads(json.dumps(known))


def cpu() -> str:
    """The kind of CPU that machine code was made for: a hash of its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        able = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        able = platform.processor()
    return f"{platform.machine()} {hashlib.sha256(able.encode()).hexdigest()[:12]}"


def processors() -> int | None:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def of_engine(engine) -> dict:
    """What an engine's programs depend on besides their arguments."""
    here = identity(engine.config, engine.placement, kinds(engine.model))
    if engine.draft:
        here |= {"draft": engine.draft.shape(), "its weights": kinds(engine.params.draft)}
    return here | {"python": sys.version, "processors": processors(), "options": settings.values()}
