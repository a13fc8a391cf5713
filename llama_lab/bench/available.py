"""Which placements and peers can run a model on this machine; for the others, why not and what would help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llama_jax import checkpoint
from llama_jax.checkpoint import Checkpoint
from llama_jax.engine import computed_on
from llama_jax.placement import Placement, parse
from llama_jax.plumbing.errors import UserError
from llama_jax.quantise import FORMS
from llama_lab.bench import protocol
from llama_lab.bench.lab import Lab
from llama_lab.bench.workload import Subject

READS_FILE = ("llama.cpp", "ik_llama.cpp", "openvino", "ollama")  # backends


def named(name: str, kinds: Sequence[str]) -> tuple[str, str]:
    """The two parts of MODEL/KIND. Raises UserError for another kind."""
    model, _, kind = name.rpartition("/")
    if kind not in kinds:
        raise UserError(f"{name!r}: write MODEL/TYPE, the type one of {', '.join(kinds)}.")
    return model, kind


def gaps(names: Sequence[str], model: str) -> list[dict]:
    """Those that cannot run this model here: {name, reason, remedy} each."""
    from llama_jax import kernels
    from llama_lab import peers

    wanting = [name for name in names if needs_kernels(name)]
    why, _, remedy = ((wanting and kernels.missing()) or "").partition("; ")
    without = dict(reason=why.rstrip(".") + ".", remedy=remedy[:1].upper() + remedy[1:])
    gaps = peers.missing([name for name in names if name in peers.PEERS], model)
    gaps += [gap for name in names if name not in peers.PEERS and (gap := draft_gap(name, model))]
    return [dict(name=name) | without for name in wanting if why] + gaps


def no_file(model: str) -> dict | None:
    """Why there is no GGUF file of a model here: {name, reason, remedy}."""

    def look() -> None:
        if checkpoint.gguf_file(model) is None:
            raise UserError(f"{model} is not a GGUF file; name one.")

    return refused(model, look)


def file_gap(name: str, model: str, wanted: str) -> dict | None:
    """Why nothing can be measured of a model's GGUF file with kernels for these instructions: {name, reason,
    remedy}."""
    from llama_jax.kernels import isa

    gap = no_file(model) or refused(name, partial(isa.target, wanted=wanted))
    return gap and gap | dict(name=name)


def refused(name: str, call: Callable[[], object]) -> dict | None:
    """The UserError that a call raises, as {name, reason, remedy}; None if it raises none."""
    try:
        call()
    except UserError as error:
        reason, _, remedy = str(error).partition("; ")
        return dict(name=name, reason=reason.removesuffix(".") + ".", remedy=remedy[:1].upper() + remedy[1:])
    return None


def draft_gap(name: str, model: str) -> dict | None:
    """Why a placement's draft model cannot draft for this one; None if it can, or none is named."""
    if (draft := parse(name).draft) is None:
        return None

    def look() -> None:
        own, its = (checkpoint.load_config(each).vocab_size for each in (model, draft))
        if own != its:
            raise UserError(f"{draft} has {its} tokens, {model} {own}; name one of the same family.")

    return refused(name, look)


def check_baseline(name: str) -> None:
    """Raises UserError for a baseline that cannot run everywhere."""
    if needs_kernels(name):
        raise UserError(f"{name} is the baseline, which must run everywhere; name a placement without kernels first.")


def needs_kernels(name: str) -> bool:
    """Whether this is a placement with compiled kernels; False for a peer."""
    return name not in peer_names() and parse(name).kernels != "none"


def form(model: str, placements: Sequence[Placement]) -> str:
    """The dtype to load a model in: the one quantised form that all placements want, else float32."""
    source = checkpoint.find(model)
    wanted = {computed_on(source, placement) for placement in placements}
    return next(iter(wanted)) if len(wanted) == 1 and wanted <= set(FORMS) else "float32"


def loaded_as(subject: str, model: str) -> str:
    """The dtype of `checkpoint.load` for what a subject computes on; peers share float32 weights."""
    if subject in peer_names():
        return "float32"
    return computed_on(checkpoint.find(model), parse(subject))


def load_alone(lab: Lab, subject: str) -> Checkpoint:
    """The checkpoint for a subject with its own process; a subject that reads the file itself needs no arrays."""
    dtype = loaded_as(subject, lab.model)
    return lab.without_weights(dtype) if backend_of(subject) in READS_FILE else lab.load(dtype)


def peer_names() -> Sequence[str]:
    from llama_lab import peers

    return tuple(peers.PEERS)


def backend_of(name: str) -> str:
    from llama_lab import peers

    return peers.get(name).backend if name in peers.PEERS else "jax"


def built(lab: Lab, loaded: Checkpoint, names: Sequence[str]) -> list[Subject]:
    """The subjects of these names, placements first; a peer that cannot be built is reported as missing."""
    known = peer_names()
    placements = [protocol.subject(loaded, parse(name)) for name in names if name not in known]
    return placements + [subject for name in names if name in known for subject in lab.peer(loaded, name)]
