"""Rotary positions in a config.json, which may give their base and scaling at three places, and by the
type of layer."""

from __future__ import annotations

from typing import Any

from llama_jax.checkpoint.declared import Rope
from llama_jax.config import RopeScaling
from llama_jax.plumbing import boundary
from llama_jax.plumbing.errors import UserError
from llama_jax.plumbing.values import shown

PLACES = ("rope_parameters", "rope_scaling")
LONG = ("longrope", "su", "yarn")  # the second and third are older names of the first, in Phi-3 alone
FULL, LOCAL = "full_attention", "sliding_attention"
FACTORS = ("short_factor", "attention_factor", "original_max_position_embeddings")


def read(where: str, raw: dict) -> tuple[float | None, RopeScaling | None]:
    """Base and scaling."""
    given = {key: raw[key] for key in PLACES if raw.get(key) not in (None, {})}
    ropes = {key: boundary.read(Rope, value, f"{where}: {key}") for key, value in given.items()}
    thetas = {f"{key}.rope_theta": rope.rope_theta for key, rope in ropes.items()} | {
        "rope_theta": raw.get("rope_theta")
    }
    thetas = {key: theta for key, theta in thetas.items() if theta is not None}
    for values, same in ((thetas, [*thetas.values()]), (given, [rope.scaling() for rope in ropes.values()])):
        if any(value != same[0] for value in same):
            raise contradiction(where, values)
    return next(iter(thetas.values()), None), next((rope.scaling() for rope in ropes.values()), None)


def contradiction(where: str, values: dict) -> UserError:
    return UserError(f"{where}: {' and '.join(f'{key} is {shown(value)}' for key, value in values.items())};"
                     " they contradict each other, keep the right one.")  # fmt: skip


def taken_apart(where: str, family: str, raw: dict) -> tuple[dict, dict]:
    """(what `read` understands, fields of the family): Gemma 3 has a base for local layers, Phi-3 rotates a part of a
    head and has LongRoPE."""
    take = {"gemma3": local_base, "phi3": long_rope}.get(family)
    if take is None:
        return raw, {}
    rest, fields = dict(raw), {}
    for key in PLACES:
        if isinstance(value := raw.get(key), dict):
            rest[key], more = take(f"{where}: {key}", value)
            for name, theirs in more.items():
                if (other := fields.get(name, raw.get(name, theirs))) not in (None, theirs):
                    raise contradiction(where, {name: other, f"{key}.{name}": theirs})
            fields |= more
    return rest, fields


def local_base(where: str, value: dict[str, Any]) -> tuple[dict, dict]:
    """What is said by the type of layer."""
    if LOCAL not in value or value.keys() - {FULL, LOCAL}:
        return value, {}
    local = boundary.read(Rope, value[LOCAL], f"{where}.{LOCAL}")
    if local.scaling():
        raise UserError(f"{where}.{LOCAL} has the RoPE scaling {local.kind!r}; local layers are supported without one.")
    base = {} if local.rope_theta is None else {"rope_local_base_freq": local.rope_theta}
    return value.get(FULL) or {}, base


def long_rope(where: str, value: dict[str, Any]) -> tuple[dict, dict]:
    """A part of a head, and LongRoPE: `features.LongRope` says why of its two lists the shorter context's is read."""
    value = dict(value)
    fields = {"partial_rotary_factor": value.pop("partial_rotary_factor")} if "partial_rotary_factor" in value else {}
    kinds = {value.get("rope_type"), value.get("type")} if all(
        isinstance(value.get(key), str | None) for key in ("rope_type", "type")
    ) else set()  # fmt: skip
    if not kinds & {*LONG}:
        return value, fields
    if "short_factor" not in value:
        raise UserError(f"{where}: RoPE scaling 'longrope' has no short_factor.")
    fields |= {name: value.pop(name) for name in FACTORS if value.get(name) is not None}
    for name in ("long_factor", "rope_type", "type"):
        value.pop(name, None)
    return value, fields
