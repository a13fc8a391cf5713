"""Which placements and peers can run a model on this machine; of the others, why not and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llama_jax import checkpoint
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import parse
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import phases, requests
from llama_lab.bench.job import Job, weights_of
from llama_lab.bench.workload import Subject, Workload


def gaps(names: Sequence[str], model: str) -> list[dict]:
    """Those that cannot run this model here: {name, reason, remedy} each."""
    from llama_lab import peers

    return without_kernels(names) + peers.missing([name for name in names if name in peers.PEERS], model)


def present(job: Job, names: Sequence[str]) -> list[str]:
    """Those that can run here; of the others the journal says why they cannot."""
    known = {gap["name"] for gap in phases.missing(job.journal)}
    for gap in gaps([name for name in names if name not in known], job.model):
        job.journal.note(missing=gap)
        known.add(gap["name"])
    return [name for name in names if name not in known]


def check_baseline(name: str) -> None:
    """Raises UserError for a baseline that cannot run everywhere."""
    if needs_kernels(name):
        raise UserError(f"{name} is the baseline, which must run everywhere; name a placement without kernels first.")


def needs_kernels(name: str) -> bool:
    """Whether this is a placement with compiled kernels; a peer is none."""
    from llama_lab import peers

    return name not in peers.PEERS and parse(name).kernels != "none"


def without_kernels(names: Sequence[str]) -> list[dict]:
    """Those that want kernels where there are none: {name, reason, remedy} each."""
    wanting = [name for name in names if needs_kernels(name)]
    if not wanting:
        return []
    from llama_jax import kernels

    why, _, remedy = (kernels.missing() or "").partition("; ")
    return (
        [dict(name=name, reason=why.rstrip(".") + ".", remedy=remedy[:1].upper() + remedy[1:]) for name in wanting]
        if why
        else []
    )


def bare(job: dict) -> tuple[Checkpoint, list, Workload | None, int]:
    """As `opened`, with no weights loaded: for a subject that reads the file by itself. The workload is None where the
    job has none."""
    source, work = checkpoint.find(job["model"]), job["workload"]
    loaded = Checkpoint(
        job["model"], source.config, None, source.tokenizer(), source.hash(), source.where, job["dtype"]
    )
    return loaded, [], Workload.from_json(work) if work else None, 0


def loaded_as(subject: str, model: str) -> str:
    """The dtype in which `checkpoint.load` gives a subject what it computes on and nothing beside it; peers share
    float32 weights."""
    if subject in peer_names():
        return "float32"
    weights = weights_of(model, parse(subject))
    return {"loaded": "float32", "f32": "float32", "bf16": "bfloat16"}.get(weights, weights)


def peer_names() -> Sequence[str]:
    from llama_lab import peers

    return tuple(peers.PEERS)


def backend_of(name: str) -> str:
    from llama_lab import peers

    return peers.get(name).backend if name in peers.PEERS else "jax"


def built(say: Callable, loaded: Checkpoint, names: Sequence[str]) -> list[Subject]:
    """The subjects of these names; a peer that cannot be built is said to be missing."""
    placements = [parse(name) for name in names if name not in peer_names()]
    return requests.build(say, loaded, dict(peers=[name for name in names if name in peer_names()]), placements, 0)
