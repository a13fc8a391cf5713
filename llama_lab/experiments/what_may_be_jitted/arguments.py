"""What `jax.jit` makes of the arguments of a placement's functions: traced, static or donated, and why."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from llama_jax import config, transforms
from llama_jax.checkpoint.random import on_device
from llama_jax.decoding.steps import Bounds
from llama_jax.placement import LADDER, TREE, Placement, parse
from llama_jax.sampling import Sampler

ORDER = ("prefill", "extend", *TREE)  # of functions: outermost first
PLACEMENTS = (*LADDER, "step+traced", "split+donate", "layer+donate")
HEADS = ("jitted function", "under", "traced", "static", "donated", "why")
SHORT = HEADS[:-1]
STATIC = {  # argument: why it is part of the program
    "sampler": "settings, not arrays: a filter that is off adds no operation; a new temperature recompiles",
    "slots": "a shape, the length of the new cache; a new length recompiles",
}
OVER = "the old one is not read again; the new one takes its memory"
DONATED = {"carry": OVER, "cache": OVER, "entry": OVER}  # argument: why it is donated
PLAIN = "only arrays"


@dataclass(frozen=True)
class Jitted:
    """A jitted function as its callers call it: names of its arguments, in order."""

    name: str
    traced: tuple[str, ...]
    static: tuple[str, ...]  # part of the program: named so to jit, or without an array in it
    donated: tuple[str, ...]  # those of the traced ones


def jitted(placement: Placement) -> list[Jitted]:
    """What a placement jits, in the order in which a request meets it. Shapes alone go through: nothing is compiled."""
    by_name: dict[str, Jitted] = {}

    def wrap(name, function, placement, **options):
        program = transforms.compiled(name, function, placement, **options)

        def call(*args, **named):
            by_name.setdefault(name, as_called(name, function, program, args, named))
            return program(*args, **named)

        return call

    sizes = config.tiny()
    programs = transforms.assemble(sizes, placement, wrap)
    model = jax.eval_shape(partial(on_device, sizes, 0))
    model = jax.eval_shape(partial(transforms.prepare, placement=placement), model)
    ids, row = jax.ShapeDtypeStruct((1, 4), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.int32)
    jax.eval_shape(partial(request, programs, placement), model, ids, row, jax.ShapeDtypeStruct((1,), jnp.uint32))
    return list(by_name.values())


def request(programs: transforms.Programs, placement: Placement, model, ids, pad, seeds):
    """A prompt in two pieces, and tokens by each program that makes some."""
    sampler = transforms.settings(Sampler(), placement)
    token, carry = programs.prefill(model, ids, pad, seeds, sampler, slots=16)
    token, carry = programs.extend(model, ids, carry, sampler)
    if not placement.drafts:
        token, carry = programs.step(model, token, carry, sampler)
    if programs.decode:
        out = jnp.zeros((4, 1), jnp.int32) if placement.until else None
        bounds = Bounds(jnp.full(1, -1), jnp.int32(4), out)
        called = (bounds,) if placement.until or placement.drafts else ()
        _, _, token, carry = programs.decode(model, token, carry, sampler, *called)
    return token, carry


def as_called(name: str, function, program, args: tuple, named: dict) -> Jitted:
    """What jit itself says of a call's arguments. It leaves out what it was told is static; what has no array is static
    too, since it is part of the tree that the program was made for."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), args)
    by_place, by_name = getattr(program, "program", program).trace(*shapes, **named).args_info
    names = list(inspect.signature(function).bind(*args, **named).arguments)
    told = dict(zip(names, by_place, strict=False)) | by_name
    leaves = {argument: jax.tree.leaves(told.get(argument)) for argument in names}
    return Jitted(
        name,
        traced=tuple(argument for argument in names if leaves[argument]),
        static=tuple(argument for argument in names if not leaves[argument]),
        donated=tuple(argument for argument in names if any(info.donated for info in leaves[argument])),
    )


def reasons(function: Jitted) -> Iterator[str]:
    """Why each of its arguments that is not simply traced is so. Raises LookupError if nobody has said it."""
    for what, names, known in (("static", function.static, STATIC), ("donated", function.donated, DONATED)):
        for name in names:
            if name not in known:
                raise LookupError(f"Nobody says why the argument {name!r} of {function.name!r} is {what}.")
            yield f"`{name}`: {known[name]}"


def rows(placements: Sequence[str] = PLACEMENTS) -> list[tuple[str, ...]]:
    """Cells under `HEADS`, in Markdown: a row for each way in which a function is jitted, outermost functions first."""
    under: dict[Jitted, list[str]] = {}
    for name in placements:
        for function in jitted(parse(name)):
            under.setdefault(function, []).append(name)
    return [
        (code([one.name]), *map(code, (under[one], one.traced, one.static, one.donated)), because(one))
        for one in sorted(under, key=lambda one: ORDER.index(one.name))
    ]


def by_function(placements: Sequence[str] = PLACEMENTS) -> list[tuple[str, ...]]:
    """Cells under `SHORT`, in Markdown: a row per function, outermost first. An argument that is so under some of its
    placements only is followed by those, or by the others where they are fewer."""
    found: dict[str, dict[str, Jitted]] = {}
    for name in placements:
        for function in jitted(parse(name)):
            found.setdefault(function.name, {})[name] = function
    return [
        (code([name]), code(under), *(where(under, part) for part in ("traced", "static", "donated")))
        for name, under in sorted(found.items(), key=lambda item: ORDER.index(item[0]))
    ]


def where(under: dict[str, Jitted], part: str) -> str:
    """The arguments of one function that are traced, static or donated, and under which of its placements."""
    so: dict[str, list[str]] = {}
    for placement, function in under.items():
        for argument in getattr(function, part):
            so.setdefault(argument, []).append(placement)
    cells = []
    for argument, placements in so.items():
        others = [name for name in under if name not in placements]
        some = f"under {code(placements)}" if len(placements) <= len(others) else f"not under {code(others)}"
        cells.append(f"`{argument}`" + f" ({some})" * bool(others))
    return " ".join(cells)


def because(function: Jitted) -> str:
    return "; ".join(reasons(function)) or PLAIN


def code(names: Sequence[str]) -> str:
    return " ".join(f"`{name}`" for name in names)
