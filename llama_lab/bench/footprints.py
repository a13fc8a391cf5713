"""Peak memory of a subject's own process: one answer in a process that holds nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from pkgutil import resolve_name

from llama_jax.checkpoint import Checkpoint
from llama_lab.bench import environment, summary
from llama_lab.bench.available import backend_of, built, load_alone
from llama_lab.bench.cold import as_first
from llama_lab.bench.experiment import Point
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Trial
from llama_lab.bench.standings import of_run, weights
from llama_lab.bench.workload import Workload

MEMORY = "memory"
LIBRARIES = {  # modules, or `module:function` where a function loads them
    "torch": ("torch", "transformers"),
    "llama.cpp": ("llama_cpp",),
    "ik_llama.cpp": ("llama_lab.peers.ik_llamacpp:library",),
    "openvino": ("openvino_genai",),
    "ollama": ("ollama",),
}


def file_bytes(loaded: Checkpoint) -> int | None:
    """Size of the one file that holds the weights; None if there is none."""
    path = Path(loaded.source)
    return path.stat().st_size if path.is_file() else None


def points(names: Sequence[str], starts: int, workload: Workload) -> list[Point]:
    """One answer of each subject in `starts` fresh processes that have loaded nothing else."""
    return [
        Point(f"{MEMORY} {name}", block, alone, 1, dict(subject=name, order=i), f"memory of {name}", workload=workload)
        for block in range(starts)
        for i, name in enumerate(names)
    ]


def alone(lab: Lab, subject: str, order: int) -> None:
    """One request; its peak memory is the subject's. The note says what the process held before the model."""
    backend = backend_of(subject)
    for library in LIBRARIES.get(backend, ()):
        module = resolve_name(library)
        if ":" in library:
            module()
    lab.notes.update(subject=subject, libraries_rss_bytes=environment.peak_rss())
    for one in built(lab, load_alone(lab, subject), [subject]):
        record, _ = lab.trial(one, lab.workload, 0, order=order, phase="cold")
        lab.keep(as_first(record, peak_rss_bytes=environment.peak_rss()))


def table(trials: Sequence[Trial], notes: Sequence[dict], names: Sequence[str]) -> list[dict]:
    """One entry per subject that was measured: {name, backend, dtype, peak: bytes of each process, libraries: bytes
    held before the model (median), weights, kv: bytes as predicted}. notes: of the measuring processes, as the meta
    file keeps them."""
    loaded = [note for note in notes if "libraries_rss_bytes" in note]
    held = summary.grouped(loaded, itemgetter("subject"), itemgetter("libraries_rss_bytes"))
    good = summary.grouped([t for t in of_run(trials, MEMORY) if t.valid and t.peak_rss_bytes], "subject")
    entries = []
    for name in names:
        if mine := good.get(name):
            first, peak = mine[0], [t.peak_rss_bytes for t in mine]
            entry = dict(name=name, backend=first.backend, dtype=weights(first), peak=peak)
            sizes = dict(weights=first.weights_bytes, kv=first.kv_bytes)
            entries.append(entry | dict(libraries=summary.median(held.get(name, []))) | sizes)
    return entries
