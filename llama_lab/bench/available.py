"""Which placements and peers can run a model on this machine; of the others, why not and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llama_jax import checkpoint
from llama_jax.checkpoint import Checkpoint
from llama_jax.placement import Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS
from llama_lab.bench import protocol
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject

if TYPE_CHECKING:
    from llama_lab.bench.experiment import Runner
    from llama_lab.bench.journal import Journal


def gaps(names: Sequence[str], model: str) -> list[dict]:
    """Those that cannot run this model here: {name, reason, remedy} each."""
    from llama_lab import peers

    return without_kernels(names) + peers.missing([name for name in names if name in peers.PEERS], model)


def missing(journal: Journal) -> list[dict]:
    """What could not be measured, as the journal's notes say: {name, reason, remedy}, each once."""
    return list({note["missing"]["name"]: note["missing"] for note in journal.notes if "missing" in note}.values())


def present(runner: Runner, names: Sequence[str]) -> list[str]:
    """Those that can run here; of the others the journal says why they cannot."""
    known = {gap["name"] for gap in missing(runner.journal)}
    for gap in gaps([name for name in names if name not in known], runner.model):
        runner.journal.note(missing=gap)
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


def form(model: str, placements: Sequence[Placement]) -> str:
    """The dtype to load a model in: the one quantised form that all placements want, so that their process never holds
    float weights."""
    wanted = {weights_of(model, p) for p in placements}
    return wanted.pop() if len(wanted) == 1 and wanted <= set(FORMS) else "float32"


def weights_of(model: str, placement: Placement) -> str:
    """The form of weights that a placement computes on: kernels that are to take what was loaded take the file's own
    blocks."""
    if placement.weights == "loaded" and placement.kernels != "none":
        return checkpoint.own_blocks(checkpoint.find(model))
    return placement.weights


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


def built(lab: Lab, loaded: Checkpoint, names: Sequence[str]) -> list[Subject]:
    """The subjects of these names, placements first; a peer that cannot be built is said to be missing."""
    placements = [protocol.subject(loaded, parse(name)) for name in names if name not in peer_names()]
    return placements + [who for name in names if name in peer_names() for who in lab.peer(loaded, name)]
