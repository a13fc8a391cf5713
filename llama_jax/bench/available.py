"""Which placements and peers can run a model on this machine; of the others, why not and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from llama_jax.bench import phases
from llama_jax.bench.job import Job
from llama_jax.errors import UserError
from llama_jax.placement import parse


def gaps(names: Sequence[str], model: str) -> list[dict]:
    """Those that cannot run this model here: {name, reason, remedy} each."""
    from llama_jax import peers

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
    from llama_jax import peers

    return name not in peers.PEERS and parse(name).kernels != "none"


def without_kernels(names: Sequence[str]) -> list[dict]:
    """Those that want kernels where there are none: {name, reason, remedy} each."""
    wanting = [name for name in names if needs_kernels(name)]
    if not wanting:
        return []
    from llama_jax import kernels

    why, _, remedy = (kernels.missing() or "").partition("; ")
    return [dict(name=name, reason=why.rstrip(".") + ".", remedy=remedy[:1].upper() + remedy[1:]) for name in wanting] if why else []
