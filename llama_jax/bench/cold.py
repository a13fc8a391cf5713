"""Cold starts: each subject's first request in a process of its own, with no compiled program on disk.

What JAX has compiled once in a process serves every later subject there, so only fresh processes can say what a
placement costs to compile, and only they have a peak memory of their own. Run as a child: one JSON object on standard
input, one record as the last line of standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from llama_jax.bench.protocol import Workload, alone
from llama_jax.bench.record import Trial
from llama_jax.errors import UserError
from llama_jax.placement import Placement

LIMIT_S = 300  # a child that takes longer is stopped


def measure(
    model: str,
    placements: Sequence[Placement],
    workload: Workload,
    processes: int,
    run: str,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Trial]:
    """`processes` cold starts of each placement, interleaved, one at a time."""
    trials, total = [], processes * len(placements)
    with alone():
        for block in range(processes):
            for order, placement in enumerate(placements):
                progress(f"cold start {placement.name}", len(trials), total)
                trials.append(start(model, placement, workload, run=run, block=block, order=order, prompt=block % len(workload.prompts)))
    return trials


def start(model: str, placement: Placement, workload: Workload, prompt: int = 0, limit: float = LIMIT_S, **identity) -> Trial:
    """One cold start. Raises UserError with the child's last line when it fails or hangs."""
    spec = dict(model=model, placement=asdict(placement), workload=asdict(workload), prompt=prompt, identity=identity)
    with tempfile.TemporaryDirectory() as empty:
        environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
        if placement.compile == "persistent":
            environment["JAX_COMPILATION_CACHE_DIR"] = empty
        command = [sys.executable, "-m", "llama_jax.bench.cold"]
        try:
            child = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, timeout=limit, env=environment)
        except subprocess.TimeoutExpired:
            raise UserError(f"The cold start of {placement.name!r} took more than {limit:.0f} s and was stopped.") from None
    if child.returncode or not child.stdout.strip():
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"The cold start of {placement.name!r} failed (exit {child.returncode}): {last}")
    return Trial.model_validate_json(child.stdout.strip().splitlines()[-1])


def main() -> None:
    """The child: load, one request, one record."""
    spec = json.load(sys.stdin)
    import jax

    from llama_jax import checkpoint
    from llama_jax.bench import environment, protocol

    began = time.perf_counter_ns()
    loaded = checkpoint.load(spec["model"])
    jax.block_until_ready(loaded.params)
    load_ns = time.perf_counter_ns() - began
    workload = Workload(
        **{**spec["workload"], "prompts": tuple(p if isinstance(p, str) else tuple(p) for p in spec["workload"]["prompts"])}
    )
    who = protocol.subject(loaded, Placement(**spec["placement"]))
    record, _ = protocol.trial(who, workload, spec["prompt"], phase="cold", **spec["identity"])
    update = dict(valid=True, reason="", load_ns=load_ns, peak_rss_bytes=environment.peak_rss())
    print(record.model_copy(update=update).model_dump_json())


if __name__ == "__main__":
    main()
