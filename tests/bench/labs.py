"""A task of a measuring process, run in the test's own."""

from collections.abc import Callable

from llama_lab.bench.lab import Lab, watched
from llama_lab.bench.workload import Workload


def run(
    task: Callable, model: str, run: str = "r", block: int = 0, workload: Workload | None = None, **arguments
) -> tuple[list[dict], list[dict]]:
    """(rows, notes) that a task leaves, as JSON values."""
    said: dict[str, list] = {}
    lab = Lab(
        lambda kind, value: said.setdefault(kind, []).append(value),
        dict(run=run, block=block, process=1),
        model,
        workload,
    )
    with watched(lab):
        task(lab, **arguments)
    return said.get("trial", []), said.get("note", [])
