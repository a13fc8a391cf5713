"""A machine that was never measured: its headline as `run --measure` leaves it, and what doctor says of it."""

import json

from llama_jax import checkpoint
from llama_jax.plumbing import runtime
from llama_lab.bench import AGAIN, record
from llama_lab.bench.seal import ROW, SEAL, sealed, sealed_row
from llama_lab.sharing import contribution
from tests.bench.test_record import trial

MACHINE = "a-b-avx2-2-cores"
ENVIRONMENT = {
    "cpu": "A B", "cores": 2, "affinity": [0, 1], "load": [0.1, 0.2, 0.3], "ram_bytes": 2**34, "kernels": "avx2",
    "devices": ["cpu:cpu"], "os": "Linux-6.1-x86_64", "python": "3.11.7", "settings": {"XLA_FLAGS": "--a=-b"},
    "packages": {"jax": "0.10.2", "llama-jax": "0.1.0", "numpy": "2.4.6"},
    "runtime": {check.name: runtime.RIGHT for check in runtime.CHECKS if check.platform == "cpu"},
    "watch": {"others_cpu": 0.0, "steal": 0.0, "load_before": 0.1},
}  # fmt: skip
DOCTOR = {
    "machine": {"cpu": "A B", "cores": 2}, "packages": {"jax": "0.10.2"}, "devices": ["cpu:0"], "advice": [],
    "jax computes": {"product and sum in float32 (jax #39103):": "right"}, "kernels": {"isa": "avx2", "cpu": "haswell"},
    "peers": {"llama.cpp": "runs llamacpp"}, "weights": {"name": "m", "path": "/home/alice/m.gguf"},
    "bandwidth_gbps": 20.0,
}  # fmt: skip
RATES = {"eager": 4, "step": 20, "step" + AGAIN: 20, "loop": 23, "loop+fused": 60, "llamacpp": 40}


def rows(blocks=6, machine=1.0, rates=RATES, **changes):
    """Trials of a headline: every subject once a block, the baseline twice."""
    found = []
    for block in range(blocks):
        for order, (name, rate) in enumerate(rates.items()):
            gap = 1e3 / (rate * machine * (1 + 0.001 * (block % 3)))
            own = dict(quantisation="gguf-q4_1") if name == "llamacpp" else {}
            facts = dict(model=checkpoint.DEFAULT, run="main", order=order, bandwidth_gbps=20.0 * machine)
            facts |= dict(bytes_per_token=2e8 if rate > 30 else 5e8, tokens_sha256="t" if not own else f"own {block}")
            times = [5 + i * gap for i in range(4)]
            found.append(trial(name, block, times, **{**facts, **own, **changes}))
    return found


def headline(folder, trials=None, environment=ENVIRONMENT, **meta):
    """FOLDER/data with that table."""
    about = dict(environment=environment, parameters={"model": checkpoint.DEFAULT, "blocks": 6}, baseline="step")
    return record.write(
        folder / "data" / f"{contribution.HEADLINE}.csv", rows() if trials is None else trials, **{**about, **meta}
    )


def contributed(folder, trials=None, **more):
    """The file that this machine contributes, written into FOLDER."""
    headline(folder, trials, **more)
    made = contribution.build(folder, DOCTOR, ("avx2", "fma"))
    path = folder / made.path.name
    path.write_text(made.text)
    return path


def rewritten(path, change=lambda about, lines: None):
    """The same file with all its digests made anew after `change(about, rows)`: what a check must find by itself."""
    first, *lines = map(json.loads, path.read_text().splitlines())
    about = first["meta"]
    change(about, lines)
    texts = tuple(sealed_row({k: v for k, v in line.items() if k != ROW}) for line in lines)
    about |= dict(rows=len(texts), rows_sha256=contribution.digest_of(texts))
    about.pop(SEAL)
    path.write_text("".join(f"{line}\n" for line in (json.dumps({"meta": sealed(about)}), *texts)))
    return path
